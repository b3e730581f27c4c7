"""Wire types that both generation routes share: sampling fields, ``stream_options``, ``usage``.

Types and ranges of single fields are declared here; what several fields say together, and what the
model knows, is ``sampling``'s.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from .wire_form import FormFields

MAX_STOP_STRINGS = 16
MAX_STOP_LEN = 1024
"""Characters."""
MAX_STOP_IDS = 1024
MAX_CHOICES = 128
"""Most sequences for one prompt: of ``n``, and of ``best_of``."""
MAX_BIASED_TOKENS = 300
MAX_ALLOWED_TOKENS = 16384
MAX_BAD_WORDS = 256
MAX_BAD_WORD_LEN = 256
"""Characters."""
MAX_SALT_LEN = 1024
"""Characters."""
MAX_XARGS_BYTES = 64 * 2**10
"""As JSON, of what plugins and of what the template is given; each sequence has the former."""
MAX_TEMPLATE_OPTIONS = 64
DEFAULT_MAX_TOKENS = 16
"""Of a completion; a chat has all that is left."""

Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=2.0)]
TopP = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
MaxTokens = Annotated[int, msgspec.Meta(ge=1)]
TokenId = Annotated[int, msgspec.Meta(ge=0)]
StopText = Annotated[
    str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_STOP_LEN})
]
"""``sampling`` holds it to this, so that it can name the one at fault."""
StopTexts = Annotated[
    list[StopText], msgspec.Meta(extra_json_schema={"maxItems": MAX_STOP_STRINGS})
]
StopTokenIds = Annotated[list[TokenId], msgspec.Meta(max_length=MAX_STOP_IDS)]
NumChoices = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
MinP = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
RepetitionPenalty = Annotated[float, msgspec.Meta(ge=0.001, le=1000.0)]
"""Any positive number has a meaning; beyond these, logits are no numbers any more."""
Penalty = Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
LogitBias = Annotated[dict[str, float], msgspec.Meta(max_length=MAX_BIASED_TOKENS)]
"""JSON's keys are texts; ``sampling`` reads the token ids, so that it can name the one at fault."""
AllowedTokenIds = Annotated[
    list[TokenId], msgspec.Meta(min_length=1, max_length=MAX_ALLOWED_TOKENS)
]
BadWord = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_BAD_WORD_LEN)]
BadWords = Annotated[list[BadWord], msgspec.Meta(max_length=MAX_BAD_WORDS)]
MinTokens = Annotated[int, msgspec.Meta(ge=0)]
NumLogprobs = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
"""-1 is the whole vocabulary; the server's own limit is looked at later."""
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
TruncatePromptTokens = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
CacheSalt = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT_LEN)]
RequestId = Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]{1,128}\Z")]
"""What may stand in a header, without spaces."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """Without a meaning on a server of one's own."""


class SamplingFields(FormFields, frozen=True, kw_only=True):
    """The fields that act in both routes; ``null`` is the same as absent."""

    model: str | None = None
    n: NumChoices | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    bad_words: BadWords | None = None
    seed: Seed | None = None
    stop: StopText | StopTexts | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    max_tokens: MaxTokens | None = None
    min_tokens: MinTokens | None = None
    prompt_logprobs: NumLogprobs | None = None
    truncate_prompt_tokens: TruncatePromptTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    """Where a longer prompt is cut off; without it on the left: its end is kept."""
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    request_id: RequestId | None = None
    """In the place of the header ``X-Request-Id``, and a part of the reply's ``id``."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    """For plugins' logits processors."""


NOT_BUILT_COMMON: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "logprob_token_ids": ([],),
    "watermarking": (False,),
    "repetition_detection": (),
    "session_id": (),
    "return_token_offsets": (False,),
    "return_prompt_text": (False,),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "stream_interval": (1,),
}
"""Known fields that do not act yet, each with the values that change nothing."""


def usage(num_prompt: int, num_completion: int, num_cached: int) -> dict[str, Any]:
    """The ``usage`` object. Prompt tokens are counted once a prompt, cached ones are among them."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
