if __name__ != "hookserve.engine.text":
    raise ImportError("import hookserve.engine.text: the folder is installed under that name")
