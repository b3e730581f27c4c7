"""What the operator says of structured output: ``--structured-outputs-config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from .config import StructuredOutputsConfig
from .refusal import refuse

if TYPE_CHECKING:
    from .engine_args import EngineArgs

_NAME = "structured_outputs_config"


def read_structured_outputs(args: EngineArgs) -> StructuredOutputsConfig:
    """
    Raises:
        ConfigError: an unknown key, or a value of another type.
    """
    given = args.structured_outputs_config
    known = StructuredOutputsConfig.__struct_fields__
    for key in given:
        if key not in known:
            raise refuse(args, _NAME, key, "keys", known)
    try:
        return msgspec.convert(given, StructuredOutputsConfig)
    except msgspec.ValidationError as error:
        raise refuse(args, _NAME, given, f"other values ({error})") from error
