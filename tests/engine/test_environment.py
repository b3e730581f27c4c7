"""What engine processes inherit, and where downloads go."""

from __future__ import annotations

import socket

from hookserve.engine.environment import (
    child_environment,
    default_cache_dir,
    worker_environment,
)


def test_openmp_threads_of_the_engine_spin_as_the_operator_says() -> None:
    assert child_environment({})["GOMP_SPINCOUNT"] == "20000"
    assert child_environment({"GOMP_SPINCOUNT": "7"})["GOMP_SPINCOUNT"] == "7"
    assert "GOMP_SPINCOUNT" not in child_environment({"OMP_WAIT_POLICY": "active"})


def test_the_engine_takes_huge_pages_unless_the_operator_tunes_glibc() -> None:
    assert child_environment({"A": "b"})["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    said = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "GOMP_SPINCOUNT": "7"}
    assert child_environment(said) == said


def test_ranks_meet_on_the_loopback_interface_whatever_the_operator_says() -> None:
    """Whoever reaches the port of a rank could speak as one."""
    environment = worker_environment({"A": "b", "GLOO_SOCKET_IFNAME": "eth0"})
    name = environment.pop("GLOO_SOCKET_IFNAME")
    assert name == "lo" and name in [name for _, name in socket.if_nameindex()]
    assert environment == child_environment({"A": "b"})


def test_downloads_go_where_somebody_said_or_where_the_desktop_standard_puts_them() -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": "/c"}) == "/c/hookserve"
    assert default_cache_dir({"XDG_CACHE_HOME": "/c", "HOOKSERVE_CACHE": "/d"}) == "/d"
    assert default_cache_dir({}).endswith("/.cache/hookserve")
