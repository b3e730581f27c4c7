"""``docs/api.md`` names every field that acts, with the limits that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookserve.engine import request_limits
from hookserve.server import limits, prompt_encoder, sampling, wire_common
from hookserve.server.wire_chat import ChatRequest
from hookserve.server.wire_completions import CompletionRequest
from hookserve.server.wire_json import UNUSED_FIELDS


@pytest.fixture(scope="module")
def page(source_root: Path) -> str:
    return (source_root / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_field_that_acts_is_named(page: str) -> None:
    fields = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    named = set(re.findall(r"`([a-z_]+)[:`]", page))
    assert fields - {"prompt", "messages"} <= named


def test_every_field_that_is_accepted_without_effect_is_named(page: str) -> None:
    (sentence,) = re.findall(r"[^.]*mean nothing on a server", page)
    assert set(re.findall(r"`([a-z_]+)`", sentence)) == UNUSED_FIELDS


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        (r"`n` \(1 to (\d+)\)", wire_common.MAX_CHOICES),
        (r"has (\d+) sequences at most", sampling.MAX_SEQUENCES),
        (r"`logit_bias` .* to (\d+), \d+ at most", sampling.MAX_BIAS),
        (r"`logit_bias` .*, (\d+) at most", wire_common.MAX_BIASED_TOKENS),
        (r"`allowed_token_ids` .*, (\d+) at most", wire_common.MAX_ALLOWED_TOKENS),
        (r"`bad_words` .*, (\d+) at most", wire_common.MAX_BAD_WORDS),
        (r"`bad_words` .* of (\d+) characters", wire_common.MAX_BAD_WORD_LEN),
        (r"`stop` .* of (\d+) at most", wire_common.MAX_STOP_STRINGS),
        (r"`stop` .* of (\d+) characters", wire_common.MAX_STOP_LEN),
        (r"`stop_token_ids` .*, (\d+) at most", wire_common.MAX_STOP_IDS),
        (r"list of either, (\d+) at", limits.MAX_PROMPTS),
        (r"`messages` are (\d+) at", limits.MAX_MESSAGES),
        (r"has (\d+) characters at most, or", prompt_encoder.MAX_TEXT_CHARS),
        (r"at most, or (\d+) tokens", prompt_encoder.MAX_LIST_TOKENS),
        (r"variables of the template, (\d+) at most", wire_common.MAX_TEMPLATE_OPTIONS),
        (r"by (\d+) log-probabilities", request_limits.MAX_STEP_LOGPROBS),
        (r"`cache_salt` .* (\d+) characters", wire_common.MAX_SALT_LEN),
    ],
)
def test_the_limits_are_the_codes(page: str, pattern: str, limit: int) -> None:
    found = re.search(pattern, page)
    assert found is not None
    assert int(found[1]) == limit
