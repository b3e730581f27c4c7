"""The forms in which prompts are given, and what each wrong one is told."""

from __future__ import annotations

from typing import Any

import pytest

from hookserve.engine.errors import InvalidRequestError
from hookserve.engine.prompts import Prompt, read_prompts


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a", [Prompt("a", None)]),
        ([1, 2], [Prompt(None, [1, 2])]),
        (["a", [3], (4, 5)], [Prompt("a", None), Prompt(None, [3]), Prompt(None, [4, 5])]),
        ({"prompt": "a", "cache_salt": "s"}, [Prompt("a", None, "s")]),
        ([{"prompt_token_ids": [1], "prompt": "x"}], [Prompt("x", [1])]),
        ([], []),
    ],
)
def test_each_form_is_read(given: Any, read: list[Prompt]) -> None:
    assert read_prompts(given) == read


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        (7, "prompts", "got int"),
        (["a", 7], "prompts[1]", "got 7"),
        (b"a", "prompts", "got bytes"),
        ([b"a"], "prompts[0]", "got b'a'"),
        ([[1, "b"]], "prompts[0]", "expected a text"),
        ([[True]], "prompts[0]", "expected a text"),
        ({"promt": "a"}, "prompt", "did you mean 'prompt'"),
        ({"multi_modal_data": 1}, "prompt", "unknown key"),
        ({}, "prompt", "needs 'prompt'"),
        ({"prompt": 1}, "prompt.prompt", "expected a text"),
        ({"prompt_token_ids": "a"}, "prompt.prompt_token_ids", "list of token ids"),
        ({"prompt": "a", "cache_salt": ""}, "prompt.cache_salt", "not empty"),
    ],
)
def test_what_is_no_prompt_is_named(given: Any, param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        read_prompts(given)
    assert caught.value.param == param
