"""A small random Llama checkpoint whose tokens are words, so that every field of a request can act:
its tokenizer adds BOS and puts spaces between words, and its template has options.

Token 0 to 255 are the words ``w0`` to ``w255``; the special ones are ``tiny_llama``'s.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from tiny_llama import SPECIALS, write_tiny_llama

BOS, END = 256, 257
CHAT_TEMPLATE = (
    "{% if mood %}w200 {{ mood }} {% endif %}{% if reasoning_effort %}w201 {% endif %}"
    "{% for tool in tools or [] %}w202 {% endfor %}"
    "{% for message in messages %}<|start|> w10 {{ message.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|start|> w11 {% endif %}"
)


def write_wordy_llama(folder: Path) -> Path:
    write_tiny_llama(folder)
    words = {f"w{number}": number for number in range(256)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[0]} $A", special_tokens=[(SPECIALS[0], BOS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), "chat_template": CHAT_TEMPLATE}
    path.write_text(json.dumps(settings))
    return folder
