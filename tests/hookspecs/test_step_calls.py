"""The stream of weights as plugins change it: whose failure is whose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hookserve.hookspecs import PluginError, hookimpl, running
from hookserve.hookspecs.errors import RequiredPluginError

Weights = Iterator[tuple[str, Any]]


class Renaming:
    @hookimpl(tryfirst=True)
    def weights(self, iterator: Weights) -> Weights:
        for name, tensor in iterator:
            yield f"model.{name}", tensor


class Doubling:
    @hookimpl
    def weights(self, iterator: Weights) -> Weights:
        return ((name, 2 * tensor) for name, tensor in iterator)


class Silent:
    @hookimpl
    def weights(self, iterator: Weights) -> None:
        return None


class Late:
    """Raises behind the second one."""

    @hookimpl
    def weights(self, iterator: Weights) -> Weights:
        yield next(iterator)
        yield next(iterator)
        raise LookupError("no third one")


class Nameless:
    @hookimpl
    def weights(self, iterator: Weights) -> Any:
        return (tensor for _, tensor in iterator)


class Early:
    @hookimpl
    def weights(self, iterator: Weights) -> Any:
        return 7


class Swallowing:
    """Takes any end of what it reads for the end."""

    @hookimpl
    def weights(self, iterator: Weights) -> Weights:
        try:
            yield from iterator
        except Exception:
            return


class Retelling:
    @hookimpl
    def weights(self, iterator: Weights) -> Weights:
        try:
            yield from iterator
        except Exception as error:
            raise RuntimeError("something is wrong") from error


def checkpoint(count: int = 3, *, damaged: bool = False) -> Weights:
    for number in range(count):
        assert running() is None, "the checkpoint is read in a plugin's name"
        yield f"w{number}", number
    if damaged:
        raise OSError("the disk is gone")


def out(host: Any) -> list[str]:
    return [failure.identity for failure in host.failures()]


def test_each_changes_what_the_one_before_has_made_of_it(make_host: Any) -> None:
    host = make_host(Silent(), Renaming(), Doubling(), roles=["worker"])
    stream = host.calls.weights(checkpoint(), None)
    assert list(stream) == [("model.w0", 0), ("model.w1", 2), ("model.w2", 4)]


def test_a_stream_that_nobody_changes_is_the_stream_itself(make_host: Any) -> None:
    host = make_host(Silent(), roles=["worker"])
    weights = checkpoint()
    assert host.calls.weights(weights, None) is weights


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (Late, "hook weights raised LookupError: no third one"),
        (Nameless, "weights yielded a int; expected pairs of a name and a tensor"),
    ],
)
def test_what_is_raised_while_the_stream_is_read_is_its_plugins(
    plugin: type, said: str, make_host: Any
) -> None:
    host = make_host(plugin(), Doubling(), roles=["worker"])
    with pytest.raises(PluginError, match=said) as raised:
        list(host.calls.weights(checkpoint(), None))
    assert raised.value.identity == f"object:{plugin.__name__}"
    assert out(host) == [f"object:{plugin.__name__}"]


def test_what_is_no_stream_is_refused_at_once(make_host: Any) -> None:
    host = make_host(Early(), Doubling(), roles=["worker"])
    assert list(host.calls.weights(checkpoint(2), None)) == [("w0", 0), ("w1", 2)]
    assert out(host) == ["object:Early"]


def test_a_plugin_that_must_work_stops_the_start(make_host: Any) -> None:
    host = make_host(Late(), roles=["worker"], require=("Late",))
    with pytest.raises(RequiredPluginError, match="object:Late"):
        list(host.calls.weights(checkpoint(), None))


@pytest.mark.parametrize("plugin", [Renaming, Doubling, Swallowing, Retelling])
def test_what_is_raised_behind_a_plugin_is_not_its_failure(plugin: type, make_host: Any) -> None:
    """Also where the plugin hides it, or tells it in other words."""
    host = make_host(plugin(), roles=["worker"])
    with pytest.raises(OSError, match="the disk is gone"):
        list(host.calls.weights(checkpoint(damaged=True), None))
    assert out(host) == []


def test_of_two_plugins_it_is_the_one_that_raised(make_host: Any) -> None:
    host = make_host(Late(), Retelling(), roles=["worker"])
    with pytest.raises(PluginError, match="object:Late"):
        list(host.calls.weights(checkpoint(), None))
    assert out(host) == ["object:Late"]
