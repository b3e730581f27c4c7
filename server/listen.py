"""The socket to listen at, bound before anything slow begins, and who holds it if it is taken."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any

from hookserve.engine.errors import EX_UNAVAILABLE, HookserveError

BACKLOG = 2048
_LISTEN_STATE = "0A"


class ListenError(HookserveError):
    """The address cannot be listened at."""

    exit_code = EX_UNAVAILABLE


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is a free one.

    Raises:
        ListenError: naming address and port, and the process that holds the port if it can be seen.
    """
    family, _, _, _, address = _resolve(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(
                f"port {port} at {host} is in use{_held_by(port)}; choose another with --port"
            ) from error
        raise ListenError(f"cannot listen at {host} port {port}: {error.strerror}") from error
    return sock


def _resolve(host: str, port: int) -> tuple[Any, ...]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ListenError(f"cannot listen at host {host!r}: {reason}") from error


def check_address(host: str, uds: str | None) -> None:
    """Raise the ``ListenError`` of an address that can never be had, without taking it."""
    if uds is None:
        _resolve(host, 0)
        return
    folder = os.path.dirname(uds) or "."
    if not os.path.isdir(folder):
        raise ListenError(f"cannot listen at socket {uds!r}: there is no folder {folder!r}")
    _refuse_other_file(uds)


def listen_unix(path: str) -> socket.socket:
    """A listening Unix socket. A file left by a server that is gone is replaced.

    Raises:
        ListenError: something else has that path, or somebody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind(path)
        sock.listen(BACKLOG)
    except (OSError, ValueError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or error
        raise ListenError(f"cannot listen at socket {path!r}: {reason}") from error
    except ListenError:
        sock.close()
        raise
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket at which nobody listens; raises for anything else that is there."""
    _refuse_other_file(path)
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise ListenError(f"socket {path} is in use; choose another path with --uds")


def _refuse_other_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ListenError(f"{path} exists and is no socket; choose another path with --uds")


def address_of(sock: socket.socket) -> str:
    """What a person puts into a browser: ``http://127.0.0.1:8000``."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[0], name[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _held_by(port: int) -> str:
    """``" by process N (name)"`` for who listens at the port, or nothing if that is not visible."""
    inodes = _listening_inodes(port)
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _has_link(entry / "fd", wanted):
            with contextlib.suppress(OSError):
                return f" by process {entry.name} ({(entry / 'comm').read_text().strip()})"
    return ""


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN_STATE and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(fields[9])
    return inodes


def _has_link(folder: Path, wanted: set[str]) -> bool:
    """Whether a file descriptor in the folder is one of the wanted; false if not ours to see."""
    with contextlib.suppress(OSError):
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link) in wanted:
                    return True
    return False
