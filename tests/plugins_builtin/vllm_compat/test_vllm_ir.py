"""Implementations of ops that packages for vLLM register: which run, and on what."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.hookspecs import Host, PluginSettings
from hookserve.hookspecs.types import Role
from hookserve.ops.context import set_model_context
from hookserve.ops.dispatch import OpSet
from hookserve.ops.layernorm import RMSNorm
from plugin_folder import install_plugin

pytestmark = pytest.mark.usefixtures("vllm_facade")

HEADER = """
from vllm import ir

calls = []

def takes(x, weight, epsilon, variance_size=None):
    return x.shape[0] < 3

def takes_both(x, x_residual, weight, epsilon, variance_size=None):
    return x.shape[0] < 2

def alone(x, weight, epsilon, variance_size=None):
    calls.append("alone")
    return ir.ops.rms_norm(x, weight, epsilon) + 1

def both(x, x_residual, weight, epsilon, variance_size=None):
    calls.append("both")
    x_residual += x
    x.copy_(ir.ops.rms_norm(x_residual, weight, epsilon) + 2)
    return x, x_residual

def register():
"""
ALONE = "    ir.ops.rms_norm.register_impl('mine', supports_args=takes)(alone)\n"
BOTH = (
    "    ir.ops.fused_add_rms_norm.register_impl("
    "'mine', supports_args=takes_both, inplace=True)(both)\n"
)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Host]:
    """A factory: a host, of a worker by default, in which one package's function has run."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(body: str, role: Role = "worker") -> Host:
        groups = {"vllm.general_plugins": {"mine": "toy_kernels:register"}}
        install_plugin(tmp_path, "toy_kernels", {"toy_kernels": HEADER + body}, groups=groups)
        return Host((role,), PluginSettings())

    return make


def norm_of(host: Host, **options: Any) -> tuple[RMSNorm, OpSet]:
    ops = OpSet(host.registry("oot_op"), host.registry("op_provider"), **options)
    with set_model_context(static_forward_context={}, dtype=torch.float32, block_size=4, ops=ops):
        return RMSNorm(8), ops


def calls() -> list[str]:
    found: list[str] = importlib.import_module("toy_kernels").calls
    return found


def test_a_function_computes_what_it_takes_and_torch_the_rest(load: Callable[[str], Host]) -> None:
    host = load(ALONE)
    assert host.problems() == []
    norm, ops = norm_of(host)
    plain = RMSNorm(8)
    few, many = torch.randn(2, 8), torch.randn(5, 8)

    torch.testing.assert_close(norm(few), plain(few) + 1)
    assert torch.equal(norm(many), plain(many))
    normalised, total = norm(few, few)
    torch.testing.assert_close(normalised, plain(few * 2) + 1)
    assert torch.equal(total, few * 2)
    assert calls() == ["alone", "alone"]
    (row,) = [row for row in ops.rows() if row.op == "rms_norm"]
    owner = "toy-kernels:vllm.general_plugins:mine"
    assert (row.implementation, row.owner) == ("mine", owner)


def test_both_kinds_under_one_name_are_one_provider(load: Callable[[str], Host]) -> None:
    norm, _ = norm_of(load(ALONE + BOTH))
    plain, x = RMSNorm(8), torch.randn(1, 8)
    given = x.clone()

    normalised, total = norm(x, x)
    torch.testing.assert_close(normalised, plain(x * 2) + 2)
    assert torch.equal(total, given * 2) and torch.equal(x, given)
    two = torch.randn(2, 8)
    torch.testing.assert_close(norm(two, two)[0], plain(two * 2) + 1)
    assert calls() == ["both", "alone"]


def test_both_kinds_are_there_after_a_host_that_has_no_use_for_them(
    load: Callable[..., Host],
) -> None:
    """A function runs once in a process, which may have one host after another."""
    front = load("    calls.append('ran')\n" + ALONE + BOTH, "front")
    assert front.problems() == [] and calls() == ["ran"]
    front.close()
    norm, _ = norm_of(Host(("worker",), PluginSettings()))
    norm(torch.randn(1, 8))
    norm(torch.randn(1, 8), torch.randn(1, 8))
    assert calls() == ["ran", "alone", "both"]


def test_the_operator_leaves_it_out_by_name(load: Callable[[str], Host]) -> None:
    host = load(BOTH + ALONE)
    norm, ops = norm_of(host, preferred={"rms_norm": ["torch"]})
    norm(torch.randn(1, 8))
    assert calls() == []
    assert [row.implementation for row in ops.rows() if row.op == "rms_norm"] == ["torch"]


def test_what_is_not_supported_here_is_not_registered(load: Callable[[str], Host]) -> None:
    host = load("    ir.ops.rms_norm.register_impl('mine', supported=False)(alone)\n")
    assert host.problems() == []
    assert "rms_norm.mine" not in host.registry("op_provider").names()
    ir = importlib.import_module("vllm.ir")
    assert ir.ops.rms_norm.supported_providers() == ["native"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("ir.ops.rms_norm.register_impl('native')(alone)", "'native' cannot provide rms_norm"),
        ("ir.ops.rms_norm.register_impl('mine', inplace=True)", "inplace is not for it"),
        ("ir.ops.rms_norm.register_impl('mine')(both)", "has other parameters than rms_norm: exp"),
        (
            "ir.ops.rms_norm.register_impl('mine')(alone); "
            "ir.ops.rms_norm.register_impl('mine')(lambda *, x: x)",
            "has other parameters",
        ),
        (
            "ir.ops.rms_norm.register_impl('mine')(alone); "
            "ir.ops.rms_norm.register_impl('mine')(takes)",
            "rms_norm has a function of provider 'mine' already",
        ),
    ],
)
def test_what_cannot_be_an_implementation_takes_its_package_out(
    load: Callable[[str], Host], body: str, told: str
) -> None:
    (problem,) = load(f"    {body}\n").problems()
    assert told in problem


def test_what_is_registered_shows_and_that_of_a_package_that_fails_later_does_not(
    load: Callable[[str], Host], tmp_path: Path
) -> None:
    fails = HEADER + ALONE + "    calls.append('ran')\n    raise ValueError('no such device')\n"
    groups = {"vllm.general_plugins": {"a_mine": "a_kernels:register"}}
    install_plugin(tmp_path, "a_kernels", {"a_kernels": fails}, groups=groups)
    shows = "    calls.append(ir.ops.rms_norm.supported_providers())\n"
    after = "    import a_kernels\n    calls.extend(a_kernels.calls)\n"
    host = load(after + shows + ALONE + shows + BOTH)
    (problem,) = host.problems()
    assert "no such device" in problem
    assert calls() == ["ran", ["native"], ["native", "mine"]]


def test_the_ops_mean_what_the_layers_compute() -> None:
    ops = importlib.import_module("vllm.ir.ops")
    x, residual, norm = torch.randn(3, 8), torch.randn(3, 8), RMSNorm(8, eps=1e-5)
    norm.weight.data.normal_()
    torch.testing.assert_close(ops.rms_norm(x, norm.weight, 1e-5), norm(x))
    both = ops.fused_add_rms_norm(x, residual, norm.weight, 1e-5)
    torch.testing.assert_close(both, norm(x, residual))
    halved = ops.rms_norm(x, None, 0.0, 4)
    torch.testing.assert_close(halved[:, :4].square().mean(-1), torch.ones(3))
