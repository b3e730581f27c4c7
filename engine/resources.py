"""What this process may use of the machine: threads and memory, each with the reason.

Reads affinity, the processors' topology and control groups (both versions). Nothing here is
about models or devices; nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
_GIB = 2**30


class CgroupMount(NamedTuple):
    """Where a controller's files are, and the way up from this process' group."""

    version: int
    folders: list[Path]
    """From the process' own group to the top of what is mounted."""


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _read_whole_number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _group_paths(root: Path) -> dict[str, str]:
    """Controller to this process' group; ``""`` is the unified hierarchy."""
    paths: dict[str, str] = {}
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in [""] if number == "0" else names.split(","):
            paths[name] = path
    return paths


def _mounts(root: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """``(type, root inside the file system, mount point, options)`` of each cgroup mount."""
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if separator and len(fields) >= 5 and kind and kind[0] in ("cgroup", "cgroup2"):
            yield kind[0], fields[3], fields[4], kind[-1].split(",")


def find_cgroup(controller: str, root: Path = ROOT) -> CgroupMount | None:
    """The groups that limit this process for ``"cpu"`` or ``"memory"``; ``None`` if there are none.

    A hierarchy of version 1 that is mounted for the controller wins over the unified one.
    """
    groups = _group_paths(root)
    found: CgroupMount | None = None
    for kind, inside, point, options in _mounts(root):
        version = 1 if kind == "cgroup" else 2
        if version == 1 and controller not in options:
            continue
        group = groups.get(controller if version == 1 else "")
        if group is None or (found is not None and found.version == 1):
            continue
        # In a container the mount may show only a part of the hierarchy, or another root.
        relative = os.path.relpath(group, inside) if group.startswith(inside) else "."
        top = root / point.lstrip("/")
        own = top if relative == "." else top / relative
        folders = [own, *own.parents]
        found = CgroupMount(version, folders[: folders.index(top) + 1])
    return found


def cpu_quota(root: Path = ROOT) -> float | None:
    """Processors that the control groups grant, or ``None`` for no limit."""
    mount = find_cgroup("cpu", root)
    quotas = []
    for folder in mount.folders if mount else []:
        if mount is not None and mount.version == 2:
            quota, _, period = (_read(folder / "cpu.max") or "").strip().partition(" ")
        else:
            quota = (_read(folder / "cpu.cfs_quota_us") or "").strip()
            period = (_read(folder / "cpu.cfs_period_us") or "").strip()
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def physical_cores(cpus: set[int], root: Path = ROOT) -> int:
    """Cores behind the given logical processors: siblings of one core count once."""
    cores = set()
    for cpu in cpus:
        siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add((siblings or str(cpu)).strip())
    return len(cores)


def choose_num_threads(
    root: Path = ROOT, cpus: set[int] | None = None, num_ranks: int = 1
) -> tuple[int, str]:
    """Compute threads for this process, and why.

    Args:
        root: where ``/proc`` and ``/sys`` are read from.
        cpus: logical processors that may be used; ``None`` asks the system.
        num_ranks: processes that compute at the same time and share them evenly.
    """
    if cpus is None:
        has_affinity = hasattr(os, "sched_getaffinity")
        cpus = os.sched_getaffinity(0) if has_affinity else set(range(os.cpu_count() or 1))
    count = physical_cores(cpus, root)
    quota = cpu_quota(root)
    if quota is not None and quota < count:
        count, reason = int(quota), f"the control group grants {quota:g} processors"
    elif count < len(cpus):
        reason = f"{count} cores behind the {len(cpus)} processors of the affinity mask"
    else:
        reason = f"{count} processors in the affinity mask"
    if num_ranks > 1:
        count, reason = count // num_ranks, f"{reason}, shared by {num_ranks} ranks"
    return max(1, count), reason


def _memory_stat(folder: Path, key: str) -> int:
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdecimal():
            return int(value)
    return 0


def _cgroup_free_memory(root: Path) -> int | None:
    """Bytes below the tightest limit of the control groups; ``None`` for no limit.

    File pages that the kernel would drop under pressure count as free.
    """
    mount = find_cgroup("memory", root)
    free: list[int] = []
    for folder in mount.folders if mount else []:
        if mount is not None and mount.version == 2:
            limit = _read_whole_number(folder / "memory.max")
            used = _read_whole_number(folder / "memory.current")
            dropped = _memory_stat(folder, "inactive_file")
        else:
            limit = _read_whole_number(folder / "memory.limit_in_bytes")
            used = _read_whole_number(folder / "memory.usage_in_bytes")
            dropped = _memory_stat(folder, "total_inactive_file")
        if limit is not None and used is not None:
            free.append(max(0, limit - max(0, used - dropped)))
    return min(free, default=None)


def total_memory(root: Path = ROOT) -> int:
    """Bytes of the machine, or of the tightest control group if that is less."""
    mount = find_cgroup("memory", root)
    name = "memory.max" if mount and mount.version == 2 else "memory.limit_in_bytes"
    limits = [_read_whole_number(folder / name) for folder in (mount.folders if mount else [])]
    machine = _meminfo(root, "MemTotal")
    return min([machine, *(limit for limit in limits if limit is not None)])


def _meminfo(root: Path, key: str) -> int:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory(root: Path = ROOT) -> tuple[int, str]:
    """Bytes that can still be taken without swapping or hitting a limit, and why that many."""
    machine = _meminfo(root, "MemAvailable")
    group = _cgroup_free_memory(root)
    if group is not None and group < machine:
        return group, f"{group / _GIB:.2f} GiB are free below the control group's limit"
    return machine, f"{machine / _GIB:.2f} GiB are free on this machine"


def process_memory(root: Path = ROOT) -> int:
    """Resident bytes of this process."""
    fields = (_read(root / "proc/self/statm") or "0 0").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
