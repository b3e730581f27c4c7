"""What routes of plugins make of the requests that they read with vLLM's models."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from hookserve.engine.errors import NotServedError
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.sampling_rules import RequestOutputKind
from hookserve.engine.structured_outputs import StructuredOutputsParams

pytestmark = pytest.mark.usefixtures("vllm_facade")


def completion(**fields: Any) -> Any:
    home = importlib.import_module("vllm.entrypoints.openai.completion.protocol")
    return home.CompletionRequest(prompt="a", **fields)


def test_a_completion_is_sampled_as_by_the_servers_route() -> None:
    request = completion(
        n=2,
        top_p=0.5,
        stop="x",
        seed=3,
        stream=True,
        logprobs=2,
        top_k=7,
        logit_bias={"5": 1.5},
        stop_token_ids=[4],
        response_format={"type": "json_object"},
        vllm_xargs={"mine": 1},
        min_tokens=None,
    )
    defaults = {"temperature": 0.25, "top_p": 0.9, "max_tokens": 99}
    assert request.to_sampling_params(8, defaults) == SamplingParams(
        n=2,
        temperature=0.25,
        top_p=0.5,
        top_k=7,
        stop=["x"],
        seed=3,
        logprobs=2,
        logit_bias={5: 1.5},
        stop_token_ids=[4],
        max_tokens=8,
        structured_outputs=StructuredOutputsParams(json_object=True),
        extra_args={"mine": 1},
        output_kind=RequestOutputKind.DELTA,
    )
    plain = SamplingParams(max_tokens=16, output_kind=RequestOutputKind.FINAL_ONLY)
    assert completion().to_sampling_params(16) == plain
    echo = completion(echo=True, max_tokens=0, logprobs=1).to_sampling_params(0, {})
    assert (echo.max_tokens, echo.prompt_logprobs) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"use_beam_search": True}, NotServedError, "use_beam_search is not served here; leave it"),
        ({"suffix": "b"}, NotServedError, "to_sampling_params: suffix is not served here"),
        ({"top_k": "many"}, ValueError, r"Expected `int \| null`, got `str` - at `\$\.top_k`"),
        ({"n": 3, "best_of": 2}, ValueError, r"best_of: 2 is not at least n \(3\)"),
        ({"guided_regex": "a", "guided_json": {}}, ValueError, "is given too; one form is all"),
    ],
)
def test_what_cannot_be_raises_by_its_name(
    fields: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        completion(**fields).to_sampling_params(4)


def test_a_chat_request_of_a_parser_has_no_such_parameters() -> None:
    home = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    with pytest.raises(NotServedError, match=r"^to_sampling_params: a chat request as parsers see"):
        home.ChatCompletionRequest().to_sampling_params(4, {})
