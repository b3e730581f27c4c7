"""Text to tokens and back: tokenizer, chat template, the one output processor. Free of torch."""

if __name__ != "hookserve.engine.text":
    raise ImportError("import hookserve.engine.text: the folder text is installed under that name")
