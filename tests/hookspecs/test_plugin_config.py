"""A plugin's section of ``--plugin-config``: converted by its schema, refused with names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from hookserve.hookspecs import Host, RequiredPluginError, hookimpl
from hookserve.hookspecs.plugin_config import PluginConfigError


class Window(msgspec.Struct, frozen=True):
    seconds: float = 1.0
    names: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True):
    threshold: float = 0.5
    count: Annotated[int, msgspec.Meta(ge=1)] = 3
    mode: Literal["soft", "hard"] = "soft"
    window: Window | None = None
    windows: list[Window] = []
    tenants: dict[str, Window] = {}
    free: dict[str, Any] = {}


class Thing:
    """Keeps what it was configured with, hook by hook."""

    schema: Any = Limits

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def settings_schema(self, ctx: Any) -> Any:
        self.seen.append(ctx.config)
        return self.schema

    @hookimpl
    def model_source(self, ctx: Any) -> None:
        self.seen.append(ctx.config)


def make(make_host: Any, schema: Any, section: Any = None, **settings: Any) -> tuple[Host, Thing]:
    thing = Thing()
    thing.schema = schema
    config = {} if section is None else {"Thing": section}
    return make_host(thing, config=config, **settings), thing


def test_every_later_hook_sees_the_section_as_the_schema_makes_it(make_host: Any) -> None:
    section = {"threshold": 1, "window": {"seconds": 2, "names": ["a"]}, "free": {"any": [None]}}
    _, thing = make(make_host, Limits, section)
    before, after = thing.seen
    assert before == section
    assert after == Limits(threshold=1.0, window=Window(2.0, ("a",)), free={"any": [None]})
    assert type(after.threshold) is float


def test_without_a_section_there_are_the_defaults_and_without_a_schema_the_mapping(
    make_host: Any,
) -> None:
    _, thing = make(make_host, Limits)
    assert thing.seen == [{}, Limits()]
    _, thing = make(make_host, None, {"anything": 1})
    assert thing.seen == [{"anything": 1}, {"anything": 1}]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"treshold": 0.3}, "unknown key 'treshold'; did you mean threshold?"),
        ({"window": {"secnds": 1}}, "unknown key 'window.secnds'; did you mean seconds?"),
        ({"windows": [{}, {"nmes": []}]}, "unknown key 'windows[1].nmes'; did you mean names?"),
        ({"tenants": {"a": {"secs": 1}}}, "unknown key 'tenants.a.secs'; did you mean seconds?"),
        ({"threshold": "0.3"}, "threshold: expected 'float', got 'str'"),
        ({"threshold": True}, "threshold: expected 'float', got 'bool'"),
        ({"count": 1.5}, "count: expected 'int', got 'float'"),
        ({"count": 0}, "count: expected 'int' >= 1"),
        ({"windows": [{"seconds": None}]}, "windows[0].seconds: expected 'float', got 'null'"),
        ({"mode": "hrd"}, "mode: invalid enum value 'hrd'; expected one of 'soft', 'hard'"),
    ],
)
def test_a_section_that_does_not_fit_stops_the_start_with_plugin_key_and_what_was_expected(
    section: dict[str, Any], said: str, make_host: Any
) -> None:
    with pytest.raises(PluginConfigError) as caught:
        make(make_host, Limits, section)
    assert str(caught.value) == f"--plugin-config: the section of object:Thing: {said}"
    assert caught.value.exit_code == 78


def test_a_bad_section_is_only_reported_where_one_looks(make_host: Any) -> None:
    host, _ = make(make_host, Limits, {"treshold": 1}, strict=False)
    assert "did you mean threshold?" in host.describe()[0].state_text()


class Needy(msgspec.Struct):
    url: str


class Odd(msgspec.Struct):
    lock: "Missing"  # type: ignore[name-defined]  # noqa: F821, UP037


class Picky(msgspec.Struct):
    n: int = 0

    def __post_init__(self) -> None:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (dict, "settings_schema returned <class 'dict'>; expected a msgspec.Struct class or None"),
        (Limits(), "settings_schema returned Limits(threshold=0.5"),
        (Odd, "settings_schema gave Odd, which takes no section: NameError: name 'Missing'"),
        (Picky, "settings_schema gave Picky, which takes no section: SystemExit: 3"),
        (Needy, "object:Thing: lacks the key 'url'; it needs a section there"),
    ],
)
def test_what_is_wrong_with_a_schema_puts_its_plugin_out(
    schema: Any, said: str, make_host: Any
) -> None:
    host, thing = make(make_host, schema)
    (report,) = host.describe()
    assert (report.state, report.stage) == ("out", "register")
    assert report.error is not None
    assert said in report.error
    assert thing.seen == [{}], "no other hook of it is asked"
    with pytest.raises(RequiredPluginError):
        make(make_host, schema, require=("Thing",))


def test_a_section_stays_as_it_was_given_whatever_the_plugin_does_to_its_own(
    make_host: Any,
) -> None:
    host, thing = make(make_host, None, {"list": [1]})
    thing.seen[0]["list"].append(2)
    assert host.settings.config == {"Thing": {"list": [1]}}
