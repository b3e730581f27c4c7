"""A small random Llama checkpoint whose tokens are words, so that every field of a request can act:
its tokenizer adds BOS and puts spaces between words, and its template has options.

Token 0 to 159 are the words ``w0`` to ``w159``; from 160 on are the visible ASCII characters, each
joined to what is before it; the special ones are ``tiny_llama``'s.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tiny_llama import SPECIALS, write_tiny_llama

NUM_WORDS = 160
CHARACTERS = "".join(map(chr, range(33, 127)))
BOS, END = 256, 257
CHAT_TEMPLATE = (
    "{% if mood %}w100 {{ mood }} {% endif %}{% if reasoning_effort %}w101 {% endif %}"
    "{% for tool in tools or [] %}w102 {% endfor %}"
    "{% for message in messages %}<|start|> w10 {{ message.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|start|> w11 {% endif %}"
)


def character_token(character: str) -> int:
    return NUM_WORDS + CHARACTERS.index(character)


def write_wordy_llama(folder: Path) -> Path:
    write_tiny_llama(folder)
    words = [f"w{number}" for number in range(NUM_WORDS)]
    pieces = [f"##{character}" for character in CHARACTERS]
    unused = [f"unused{number}" for number in range(BOS - len(words) - len(pieces))]
    vocabulary = {word: number for number, word in enumerate((*words, *pieces, *unused))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[0]} $A", special_tokens=[(SPECIALS[0], BOS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), "chat_template": CHAT_TEMPLATE}
    path.write_text(json.dumps(settings))
    return folder
