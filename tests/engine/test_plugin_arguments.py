"""The hook ``engine_config``: who may change which argument, and how it is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.config import EngineConfig
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.llm import LLM
from hookserve.hookspecs import (
    Denied,
    Host,
    PluginConflictError,
    PluginSelectionError,
    PluginSettings,
    RequiredPluginError,
    bootstrap,
    hookimpl,
)

LOGGER = "hookserve.engine.plugin_arguments"


class Changing:
    """Answers with what it was made with; keeps what it was asked about."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.given: list[Mapping[str, Any]] = []

    @hookimpl
    def engine_config(self, config: Any) -> Any:
        self.given.append(config)
        return self.answer(config) if callable(self.answer) else self.answer


class Other(Changing):
    pass


class Silent:
    @hookimpl
    def process_started(self) -> None:
        """Has no hook that changes anything."""


@pytest.fixture
def front() -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def start(*objects: object, **settings: Any) -> Host:
        hosts.append(bootstrap(["front"], PluginSettings(allow=(), **settings), objects=objects))
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


def build(host: Host, model: Path, **values: Any) -> EngineConfig:
    return EngineArgs(model=str(model), **values).to_engine_config(host)


def test_each_plugin_gets_what_those_before_it_left_and_is_asked_once(
    front: Callable[..., Host], tiny_llama: Path
) -> None:
    first = Changing({"max_num_seqs": 4, "hf_overrides": {"rope_theta": 5.0}})
    second = Other(lambda config: {"block_size": config["max_num_seqs"] * 2})
    config = build(front(first, second), tiny_llama, seed=3)
    assert (config.scheduler.max_num_seqs, config.cache.block_size) == (4, 8)
    assert config.model.hf_config["rope_theta"] == 5.0
    assert config.model.seed == 3
    assert len(first.given) == len(second.given) == 1
    assert first.given[0]["max_num_seqs"] == 32
    assert "sources" not in first.given[0]


def test_what_is_given_is_a_copy(front: Callable[..., Host], tiny_llama: Path) -> None:
    def spoil(config: Mapping[str, Any]) -> None:
        config["hf_overrides"]["rope_theta"] = 1.0

    args = EngineArgs(model=str(tiny_llama), hf_overrides={"rope_theta": 7.0})
    config = args.to_engine_config(front(Changing(spoil)))
    assert config.model.hf_config["rope_theta"] == args.hf_overrides["rope_theta"] == 7.0


def test_a_change_is_one_line_and_a_warning_where_the_operator_had_spoken(
    front: Callable[..., Host], tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    sources = {"block_size": "flag --block-size"}
    host = front(Changing({"max_num_seqs": 4, "block_size": 32, "seed": 0}))
    EngineArgs(model=str(tiny_llama), sources=sources).to_engine_config(host)
    told = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == LOGGER]
    by = "plugin object:Changing set"
    assert told == [
        ("INFO", f"{by} max_num_seqs to 4 (it was 32)"),
        ("WARNING", f"{by} block_size to 32 (it was 16, from flag --block-size)"),
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"max_num_seq": 4}, "the engine has no argument 'max_num_seq'; did you mean max_num_seqs"),
        ({"sources": {}}, "the engine has no argument 'sources'"),
        ({"max_num_seqs": "4"}, "max_num_seqs cannot be '4': Expected 'int', got 'str'"),
        ({"max_num_seqs": True}, "max_num_seqs cannot be True: Expected 'int', got 'bool'"),
        ({"block_size": 257}, "block_size cannot be 257; expected at most 256"),
        ({"dtype": "float8"}, "dtype cannot be 'float8'; expected one of auto, float32"),
        ([("seed", 1)], "engine_config returned a list; expected the changed fields by name"),
        (lambda config: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_puts_its_plugin_out_and_changes_nothing(
    answer: Any, said: str, front: Callable[..., Host], tiny_llama: Path
) -> None:
    host = front(Changing(answer), Other({"seed": 8}))
    config = build(host, tiny_llama)
    assert (config.model.seed, config.scheduler.max_num_seqs, config.cache.block_size) == (
        8,
        32,
        16,
    )
    (failure,) = host.failures()
    assert failure.identity == "object:Changing"
    assert said in failure.error


def test_a_required_plugin_that_answers_wrongly_stops_the_start(
    front: Callable[..., Host], tiny_llama: Path
) -> None:
    host = front(Changing({"nothing": 1}), require=("Changing",))
    with pytest.raises(RequiredPluginError, match=r"no argument 'nothing'.*it is required"):
        build(host, tiny_llama)


def test_two_that_want_different_values_are_a_conflict_with_names_and_ways_out(
    front: Callable[..., Host], tiny_llama: Path
) -> None:
    host = front(Changing({"max_num_seqs": 4}), Other({"max_num_seqs": 8}))
    with pytest.raises(PluginConflictError) as caught:
        build(host, tiny_llama)
    for words in (
        f"'max_num_seqs' is set to 4 by object:Changing ({__file__})",
        f"to 8 by object:Other ({__file__})",
        "--prefer engine_config:max_num_seqs=object:Changing",
        "--prefer engine_config:max_num_seqs=object:Other",
        "--disable-plugins",
    ):
        assert words in str(caught.value)
    assert caught.value.exit_code == 78


def test_equal_values_of_two_are_none(front: Callable[..., Host], tiny_llama: Path) -> None:
    host = front(Changing({"max_num_seqs": 4}), Other({"max_num_seqs": 4}))
    assert build(host, tiny_llama).scheduler.max_num_seqs == 4


@pytest.mark.parametrize(("preferred", "value"), [("Changing", 4), ("Other", 8)])
def test_a_preference_decides_whatever_the_order(
    preferred: str, value: int, front: Callable[..., Host], tiny_llama: Path
) -> None:
    prefer = (f"engine_config:max_num_seqs={preferred}",)
    host = front(Changing({"max_num_seqs": 4}), Other({"max_num_seqs": 8}), prefer=prefer)
    assert build(host, tiny_llama).scheduler.max_num_seqs == value


@pytest.mark.parametrize(
    ("prefer", "said"),
    [
        ("engine_config:max_num_seq=Changing", "no argument 'max_num_seq'; did you mean max_num_"),
        ("engine_config:seed=Silent", "object:Silent has no hook engine_config"),
    ],
)
def test_a_preference_that_decides_nothing_is_an_error(
    prefer: str, said: str, front: Callable[..., Host], tiny_llama: Path
) -> None:
    host = front(Changing(None), Silent(), prefer=(prefer,))
    with pytest.raises(PluginSelectionError, match=said):
        build(host, tiny_llama)


def test_what_stays_of_a_plugin_that_goes_out_later_is_told(
    front: Callable[..., Host], tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = front(Changing({"max_num_seqs": 4, "seed": 0}))
    build(host, tiny_llama)
    host.deny(Denied("object:Changing", "engine", "run", "OSError: only there"))
    line = "plugin object:Changing is out; what it set for the engine stays: max_num_seqs"
    assert line in [record.getMessage() for record in caplog.records]


def test_offline_too_and_objects_stay_in_one_process(tiny_llama: Path, torch_threads: None) -> None:
    with LLM(str(tiny_llama), plugins=[Changing({"max_num_seqs": 2})]) as llm:
        assert llm.llm_engine.engine_config.scheduler.max_num_seqs == 2
    with pytest.raises(ConfigError, match="worker processes cannot be handed one"):
        LLM(str(tiny_llama), plugins=[Changing({"tensor_parallel_size": 2})])
