"""Modules of small things that packages written for vLLM import: variables, errors, helpers."""

from __future__ import annotations

import asyncio
import importlib
import logging.config
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine.errors import InvalidRequestError, QueueFullError
from hookserve.engine.log import own_logging
from hookserve.hookspecs import Plugin
from hookserve.hookspecs.context import enter
from hookserve.server.errors import ApiError, engine_failure

pytestmark = pytest.mark.usefixtures("vllm_facade")


def served(name: str) -> Any:
    return importlib.import_module(f"vllm.{name}")


def test_variables_are_read_each_time_with_vllms_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = served("envs")
    for name in envs.environment_variables:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert (envs.VLLM_PLUGINS, envs.is_set("VLLM_PLUGINS")) == (None, False)
    assert (envs.VLLM_LOGGING_LEVEL, envs.VLLM_LOG_STATS_INTERVAL) == ("INFO", 10.0)
    assert (envs.VLLM_CONFIGURE_LOGGING, envs.VLLM_USE_V2_MODEL_RUNNER) == (True, None)
    assert envs.VLLM_CACHE_ROOT == "/home/me/.cache/vllm"
    monkeypatch.setenv("VLLM_PLUGINS", "a, b")
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "-3")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert (envs.VLLM_PLUGINS, envs.is_set("VLLM_PLUGINS")) == (["a", " b"], True)
    assert (envs.VLLM_LOG_STATS_INTERVAL, envs.VLLM_USE_V2_MODEL_RUNNER) == (10.0, False)
    assert {name: read() for name, read in envs.environment_variables.items()}.keys() >= set(
        dir(envs)
    ) - {"environment_variables", "is_set"}
    assert not hasattr(envs, "VLLM_NO_SUCH_THING")
    with pytest.raises(AttributeError, match="VLLM_NO_SUCH_THING"):
        envs.is_set("VLLM_NO_SUCH_THING")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("VLLMValidationError", 400),
        ("VLLMNotFoundError", 404),
        ("VLLMUnprocessableEntityError", 422),
        ("QueueOverflowError", 503),
        ("RetryableRequestError", 503),
    ],
)
def test_errors_of_requests_are_our_own(name: str, status: int) -> None:
    exceptions = served("exceptions")
    error = getattr(exceptions, name)("what is wrong")
    assert isinstance(error, exceptions.VLLMError)
    assert isinstance(error, QueueFullError if status == 503 else InvalidRequestError)
    told = error if isinstance(error, ApiError) else engine_failure(error)
    assert (told.status, told.message) == (status, "what is wrong")
    wrong = exceptions.VLLMValidationError("no", parameter="top_p", value=3)
    assert (engine_failure(wrong).param, wrong.value) == ("top_p", 3)
    assert isinstance(wrong, ValueError)


def test_modules_are_imported_by_name_and_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    utils = served("utils.import_utils")
    (tmp_path / "by_file.py").write_text("VALUE = 3")
    (tmp_path / "broken.py").write_text("1 / 0")
    assert utils.import_plugin("json").__name__ == "json"
    assert utils.import_plugin(str(tmp_path / "by_file.py")).VALUE == 3
    assert utils.resolve_obj_by_qualname("by_file.VALUE") == 3
    assert utils.import_plugin(str(tmp_path / "broken.py")) is None
    assert "ZeroDivisionError" in caplog.text
    assert "broken.py cannot be imported, and the program goes on without it" in caplog.text
    with enter(Plugin("d:g:asker", "asker", "g", load=lambda: None)):
        assert utils.import_plugin(str(tmp_path / "broken.py")) is None
    assert "broken.py cannot be imported, and plugin d:g:asker goes on" in caplog.text
    with pytest.raises(ModuleNotFoundError, match="no file"):
        utils.import_from_path("gone", tmp_path / "gone.py")
    names: dict[str, Any] = {}
    names["late"] = utils.LazyLoader("late", names, "by_file")
    assert names["late"].VALUE == 3 and names["late"].__name__ == "by_file"


def test_an_operator_is_torchs_own() -> None:
    utils = served("utils.torch_utils")

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    utils.direct_register_custom_op("test_twice", twice, fake_impl=torch.empty_like)
    op = torch.ops.vllm.test_twice
    assert op(torch.ones(2)).tolist() == [2, 2]
    assert op(torch.ones(2, device="meta")).device.type == "meta"
    with pytest.raises(RuntimeError, match="test_twice"):
        utils.direct_register_custom_op("test_twice", twice)
    with utils.set_default_torch_dtype(torch.bfloat16):
        assert torch.ones(1).dtype is torch.bfloat16
    assert torch.ones(1).dtype is torch.float32
    padded = utils.make_tensor_with_pad([[1], [2, 3]], pad=0, dtype=torch.int64)
    assert padded.tolist() == [[1, 0], [2, 3]]
    assert utils.is_torch_equal_or_newer("2.0") and not utils.is_torch_equal_or_newer("99.1.0")


def test_small_helpers() -> None:
    math, lists = served("utils.math_utils"), served("utils.collection_utils")
    assert [math.cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [math.next_power_of_2(n) for n in (0, 1, 2, 5)] == [1, 1, 2, 8]
    assert [math.prev_power_of_2(n) for n in (0, 1, 2, 7)] == [0, 1, 2, 4]
    assert (math.round_up(5, 4), math.round_down(5, 4)) == (8, 4)
    assert math.largest_power_of_2_divisor(24) == 8
    assert lists.is_list_of([1, "a"], int) and not lists.is_list_of([1, "a"], int, check="all")
    assert dict(lists.full_groupby([1, 2, 3], key=lambda n: n % 2)) == {1: [1, 3], 0: [2]}
    swapped = {"a": 1, "b": 2}
    lists.swap_dict_values(swapped, "a", "c")
    assert swapped == {"b": 2, "c": 1}
    assert list(lists.chunk_list([1, 2, 3], 2)) == [[1, 2], [3]]
    functions = served("utils.func_utils")
    calls: list[int] = []
    once = functions.run_once(lambda: calls.append(1))
    once(), once()
    assert calls == [1]
    assert functions.supports_kw(lambda *, a: a, "a", requires_kw_only=True)
    assert not functions.supports_kw(lambda a: a, "a", requires_kw_only=True)
    ports = served("utils.network_utils").get_open_ports_list(3)
    assert len(set(ports)) == 3
    host_port = served("utils.network_utils").join_host_port("::1", 80)
    assert served("utils.network_utils").split_host_port(host_port) == ("::1", 80)
    assert len(served("utils").random_uuid()) == 32


def test_iterators_are_merged_and_what_one_raises_ends_all() -> None:
    merge = served("utils.async_utils").merge_async_iterators
    closed: list[int] = []

    async def count(number: int, fails: bool = False) -> AsyncGenerator[int, None]:
        try:
            for each in range(number):
                yield each
            if fails:
                raise KeyError("at its end")
        finally:
            closed.append(number)

    async def run() -> list[tuple[int, int]]:
        found = [pair async for pair in merge(count(2), count(3))]
        with pytest.raises(KeyError):
            async for _ in merge(count(1, fails=True), count(10**9)):
                pass
        return found

    assert sorted(asyncio.run(run())) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert sorted(closed) == [1, 2, 3, 10**9]


def test_a_programs_own_parser_reads_the_engines_arguments() -> None:
    parser = served("utils").FlexibleArgumentParser()
    args_class = served("engine.arg_utils").AsyncEngineArgs
    words = ["--max_model_len=4k", "--dtype", "half", "--no-enable-prefix-caching", "-tp", "2"]
    parsed = args_class.add_cli_args(parser).parse_args(words)
    args = args_class.from_cli_args(parsed)
    assert type(args) is args_class
    assert (args.max_model_len, args.dtype, args.tensor_parallel_size) == (4000, "float16", 2)
    assert args.enable_prefix_caching is False and args.block_size == 16
    with pytest.raises(SystemExit):
        parser.parse_args(["--block-size", "none"])


def test_templates_and_ids_of_chats(tmp_path: Path) -> None:
    chats = served("renderers.chat_utils")
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    assert chats.load_chat_template(tmp_path / "chat.jinja") == "{{ messages }}"
    assert chats.load_chat_template("{{ x }}") == "{{ x }}"
    assert chats.load_chat_template("plain", is_literal=True) == "plain"
    assert chats.load_chat_template(None) is None
    with pytest.raises(ValueError, match="expected a file that exists"):
        chats.load_chat_template("gone.jinja")
    make = served("entrypoints.chat_utils").make_tool_call_id
    assert make("kimi_k2", "f", 2) == "functions.f:2"
    assert make() != make()


def test_configurations_are_read_as_the_server_reads_them(tiny_llama: Path) -> None:
    config = served("transformers_utils.config")
    read = config.get_config(tiny_llama, hf_overrides_kw={"rope_theta": 7.0})
    assert (read.model_type, read.rope_theta) == ("llama", 7.0)
    assert config.get_config(tiny_llama, True, None).model_type == "llama", "as programs call it"
    assert config.get_hf_text_config(read) is read
    assert not config.is_encoder_decoder(read)
    repo = served("transformers_utils.repo_utils")
    assert repo.file_or_path_exists(tiny_llama, "config.json")
    assert not repo.file_or_path_exists(tiny_llama, "gone.json")
    assert repo.get_hf_file_to_dict("config.json", tiny_llama)["model_type"] == "llama"
    assert repo.get_hf_file_to_dict("gone.json", tiny_llama) is None
    tokenizers = served("tokenizers")
    for read_it in (
        lambda: repo.file_or_path_exists(tiny_llama, "config.json", "main"),
        lambda: repo.get_hf_file_to_dict("config.json", tiny_llama, "main"),
        lambda: config.get_config(tiny_llama, False, "main"),
        lambda: tokenizers.get_tokenizer(tiny_llama, revision="main"),
    ):
        with pytest.raises(ValueError, match="revision 'main'"):
            read_it()
    with pytest.raises(ValueError, match="tokenizer_mode 'slow': expected 'auto' or 'hf'"):
        tokenizers.get_tokenizer(tiny_llama, tokenizer_mode="slow")
    asked = {"tokenizer_mode": "auto", "trust_remote_code": False, "revision": None}
    assert tokenizers.get_tokenizer(tiny_llama, **asked).encode("a", False)
    tokenizer = tokenizers.cached_get_tokenizer(str(tiny_llama))
    assert tokenizer is served("transformers_utils.tokenizer").cached_get_tokenizer(str(tiny_llama))
    assert isinstance(tokenizer, tokenizers.TokenizerLike)


def test_variables_are_set_for_a_block_and_changes_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_VARIABLE", "1")
    monkeypatch.setenv("MY_OTHER", "")  # so that it is taken away afterwards
    del os.environ["MY_OTHER"]
    utils = served("utils.system_utils")
    with utils.set_env_var("MY_OTHER", "2"), utils.set_env_var("MY_VARIABLE", "2"):
        assert (os.environ["MY_VARIABLE"], os.environ["MY_OTHER"]) == ("2", "2")
    assert os.environ["MY_VARIABLE"] == "1" and "MY_OTHER" not in os.environ
    utils.update_environment_variables({"MY_VARIABLE": "3", "MY_OTHER": "4"})
    assert os.environ["MY_VARIABLE"] == "3"
    assert [record.getMessage() for record in caplog.records] == [
        "MY_VARIABLE changes from '1' to '3'"
    ]


def test_a_cache_forgets_what_was_not_asked_for_longest() -> None:
    cache = served("utils.cache").LRUCache(2)
    cache["a"], cache["b"] = 1, 2
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert ("a" in cache, "b" in cache, len(cache)) == (True, False, 2)
    assert cache.get("b", "gone") == "gone" and cache.pop("a") == 1
    assert (cache.stat().hits, cache.stat().total, cache.stat().hit_ratio) == (1, 2, 0.5)


def test_leaves_of_nested_values() -> None:
    trees = served("utils.jsontree")
    value = {"a": [1, (2, 3)], "b": 4}
    assert trees.json_map_leaves(lambda n: n * 2, value) == {"a": [2, (4, 6)], "b": 8}
    assert list(trees.json_iter_leaves(value)) == [1, 2, 3, 4]
    assert trees.json_reduce_leaves(max, value) == 4 == trees.json_count_leaves(value)


def test_a_package_that_copies_the_way_of_logging_keeps_its_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = served("logger").DEFAULT_LOGGING_CONFIG
    own_logging("INFO", "Front")
    config["loggers"]["my_package"] = {"handlers": ["vllm"], "level": "INFO", "propagate": True}
    logging.config.dictConfig(config)
    served("logger").init_logger("vllm.my_plugin").info("still heard")
    served("logger").init_logger("my_package").warning("heard too")
    shown = [line.rpartition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["still heard", "heard too"]


def test_shapes_of_pooling_are_made_of_what_a_pooler_gives() -> None:
    outputs = served("outputs")
    pooled = outputs.PoolingOutput(torch.tensor([0.5, 1.0]))
    assert outputs.EmbeddingOutput.from_base(pooled).embedding == [0.5, 1.0]
    assert outputs.EmbeddingOutput.from_base(pooled).hidden_size == 2
    assert outputs.ClassificationOutput.from_base(pooled).num_classes == 2
    assert outputs.ScoringOutput.from_base(outputs.PoolingOutput(torch.tensor([2.0]))).score == 2
    with pytest.raises(ValueError, match=r"shape \(1, 2\): expected one vector"):
        outputs.EmbeddingOutput.from_base(outputs.PoolingOutput(torch.ones(1, 2)))
    made = outputs.EmbeddingRequestOutput("r", pooled, [1, 2], 0, True)
    assert (made.prompt_token_ids, made.num_cached_tokens, made.finished) == ([1, 2], 0, True)
    params = served("pooling_params").PoolingParams(task="embed", extra_kwargs={"a": [1]})
    copied = params.clone()
    copied.extra_kwargs["a"].append(2)
    assert params.extra_kwargs == {"a": [1]} and copied.task == "embed"
