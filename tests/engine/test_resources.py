"""Threads and memory from a machine that is written into a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookserve.engine import resources

GIB = 2**30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         100 kB\nMemAvailable:    8388608 kB\n"


@pytest.fixture
def machine(tmp_path):
    """Write files below a root, ``machine({"proc/meminfo": …})``; the root."""

    def write(files: dict[str, str]) -> Path:
        for name, text in {"proc/meminfo": MEMINFO, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def v2(limits: dict[str, str], group: str = "/a/b", inside: str = "/") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": (
            f"30 23 0:26 {inside} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
        ),
        **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()},
    }


def v1(limits: dict[str, str], group: str = "/job") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"5:memory:{group}\n3:cpu,cpuacct:{group}\n0::/\n",
        "proc/self/mountinfo": (
            "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        ),
        **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()},
    }


def test_without_limits_the_machine_decides(machine):
    root = machine({})
    assert resources.available_memory(root)[0] == 8 * GIB
    assert resources.total_memory(root) == 16 * GIB
    assert resources.choose_num_threads(root, {0, 1, 2}) == (3, "3 processors in the affinity mask")


def test_version_2_takes_the_tightest_limit_on_the_way_up(machine):
    root = machine(
        v2(
            {
                "a/b/cpu.max": "max 100000\n",
                "a/cpu.max": "250000 100000\n",
                "a/b/memory.max": "max\n",
                "a/memory.max": f"{2 * GIB}\n",
                "a/memory.current": f"{GIB}\n",
                "a/memory.stat": f"anon 5\ninactive_file {GIB // 4}\n",
                "a/b/memory.current": "7\n",
            }
        )
    )
    assert resources.cpu_quota(root) == 2.5
    threads, reason = resources.choose_num_threads(root, {0, 1, 2, 3})
    assert threads == 2 and "2.5 processors" in reason
    available, reason = resources.available_memory(root)
    assert available == GIB + GIB // 4
    assert "1.25 GiB" in reason and "control group" in reason
    assert resources.total_memory(root) == 2 * GIB


def test_version_1(machine):
    root = machine(
        v1(
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "memory/job/memory.limit_in_bytes": f"{3 * GIB}\n",
                "memory/job/memory.usage_in_bytes": f"{2 * GIB}\n",
                "memory/job/memory.stat": "cache 1\ntotal_inactive_file 4096\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "0\n",
            }
        )
    )
    # Half a processor is still one thread.
    assert resources.choose_num_threads(root, {0, 1})[0] == 1
    assert resources.available_memory(root)[0] == GIB + 4096


def test_a_container_that_sees_only_its_own_group(machine):
    # The mount shows the group itself as its root: the path in /proc has no place below it.
    limits = {
        "memory.max": f"{GIB}\n",
        "memory.current": "0\n",
        "cpu.max": "100000 100000\n",
    }
    root = machine(v2(limits, group="/docker/x/job", inside="/docker/x/job"))
    assert resources.available_memory(root)[0] == GIB
    assert resources.cpu_quota(root) == 1.0
    root = machine(v2(limits, group="/elsewhere", inside="/docker/x"))
    assert resources.available_memory(root)[0] == GIB


def test_two_threads_of_a_core_count_once(machine):
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 2},{cpu % 2 + 2}"
        for cpu in range(4)
    }
    threads, reason = resources.choose_num_threads(machine(files), {0, 1, 2, 3})
    assert threads == 2
    assert "2 cores" in reason


def test_ranks_share_the_threads_and_each_has_one_at_least(machine):
    root = machine({})
    shared = {n: resources.choose_num_threads(root, set(range(7)), n) for n in (1, 2, 3, 9)}
    assert {n: threads for n, (threads, _) in shared.items()} == {1: 7, 2: 3, 3: 2, 9: 1}
    assert shared[2][1] == "7 processors in the affinity mask, shared by 2 ranks"
    assert "shared" not in shared[1][1]


def test_this_machine_answers():
    assert resources.choose_num_threads()[0] >= 1
    assert 0 < resources.available_memory()[0] <= resources.total_memory()
    assert resources.process_memory() > 2**20
