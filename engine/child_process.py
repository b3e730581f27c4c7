"""A child process of ours, seen from both ends: how its parent starts it, and how it lives.

``spawn`` is the parent's end; ``ChildProcess`` and ``run_child`` are the child's, which is a module
run as ``python -P -m MODULE --fd N --mark M``. What the two say to each other is their own
business.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NoReturn

from hookserve.hookspecs.context import owner_of
from hookserve.hookspecs.crash_mark import CrashMark
from hookserve.hookspecs.errors import HostError, describe_error, traceback_of
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.patch_owners import PATCHED, all_patches
from hookserve.hookspecs.plugin import is_builtin
from hookserve.hookspecs.settings import CRASH_STAGE, Denied

from .channel import Channel, ChannelClosed
from .errors import EX_SOFTWARE, HookserveError
from .messages import Failed

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def module_command(module: str) -> tuple[str, ...]:
    """How ``module`` is run by the interpreter that runs this, without the working folder on its
    search path."""
    return (sys.executable, "-P", "-m", module)


# -- the parent's end -----------------------------------------------------------------------------


def spawn(
    command: Sequence[str], environment: Mapping[str, str], mark: CrashMark
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start ``command --fd N --mark M``; the process, and this end of the socketpair whose other
    end N is.

    The child inherits the environment given, its end of the pair and the mark in which it leaves
    word of whose code it runs, and nothing else. The kernel ends it with the *thread* that started
    it, so outside of the main thread a thread of its own does that, and stays as long as the child.

    Raises:
        OSError: the system starts no process.
    """
    if sys.platform != "linux" or threading.current_thread() is threading.main_thread():
        return _spawn_here(command, environment, mark)
    started: Future[tuple[subprocess.Popen[bytes], socket.socket]] = Future()
    threading.Thread(
        target=_spawn_and_stay,
        args=(command, environment, mark, started),
        name=f"spawner of {command[-1]}",
        daemon=True,
    ).start()
    return started.result()


def _spawn_here(
    command: Sequence[str], environment: Mapping[str, str], mark: CrashMark
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno()), "--mark", str(mark.fileno())],
                pass_fds=(theirs.fileno(), mark.fileno()),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def _spawn_and_stay(
    command: Sequence[str],
    environment: Mapping[str, str],
    mark: CrashMark,
    started: Future[tuple[subprocess.Popen[bytes], socket.socket]],
) -> None:
    try:
        process, ours = _spawn_here(command, environment, mark)
        ended = os.pidfd_open(process.pid)
    except BaseException as error:  # whoever waits for the child is told, whatever it is
        started.set_exception(error)
        return
    started.set_result((process, ours))
    del process, ours
    select.select([ended], [], [])
    os.close(ended)


def describe_exit(code: int | None) -> str:
    """How a process ended, for a sentence: ``"was killed by SIGKILL"``.

    Args:
        code: as ``Popen.poll`` gives it; ``None``: it has not ended.
    """
    if code is None:
        return "closed its channel"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def find_crash(mark: CrashMark, process: str, code: int | None) -> Denied | None:
    """The plugin whose code ran when a child ended without a word; built-ins are the host itself.

    Args:
        process: what the child is to its plugins, such as ``"engine"``.
        code: as for ``describe_exit``.
    """
    identity = mark.read()
    if identity is None or is_builtin(identity):
        return None
    ran = f"its code ran when the process {describe_exit(code)}"
    return Denied(identity, process, CRASH_STAGE, ran)


def whose_code_runs(found: Denied | None = None) -> str:
    """What ``find_crash`` found of a child that has not ended, for a sentence."""
    return "" if found is None else f" (the code of plugin {found.identity} runs)"


def open_pidfd(pid: int) -> int | None:
    """``None`` where the system has none: then only the closed channel tells of a death."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None


# -- the child's end ------------------------------------------------------------------------------


class ChildProcess(ABC):
    """The life of a child; ``run`` is all of it. ``name`` stands in what it says of itself."""

    name = "child"

    def __init__(self, channel: Channel, crash_mark: CrashMark | None = None) -> None:
        self.channel = channel
        self.crash_mark = crash_mark
        self.stopping = False

    def run(self) -> int:
        """The exit code.

        Raises:
            ChannelClosed: the parent is gone.
        """
        try:
            return self.serve()
        except ChannelClosed:
            raise
        except caught() as error:  # a plugin's sys.exit must not end the process without a word
            return self._fail(error)

    @abstractmethod
    def serve(self) -> int:
        """Do what the parent asks for until it asks to stop; the exit code."""

    def _fail(self, error: BaseException) -> int:
        """Tell the parent why this process ends, and whose code it was; the exit code."""
        failed = describe_failure(error, self.name)
        logger.debug("%s", failed.detail)
        self.channel.send(failed)
        return failed.exit_code


def describe_failure(error: BaseException, who: str) -> Failed:
    """What ends a process, as its last message: an error for people as it is, any other with the
    name of who raised it and the plugin whose code it was."""
    if isinstance(error, HookserveError | HostError):
        code, message = error.exit_code, str(error)
    else:
        owner = owner_of(error)
        said = describe_error(error)
        by = f" in the code of plugin {owner}" if owner is not None and owner not in said else ""
        code, message = EX_SOFTWARE, f"{who} raised {said}{by}"
    patches = all_patches() if code == EX_SOFTWARE else None
    if patches is not None and PATCHED not in message:
        message += f"; it may come of {patches}"
    return Failed(code, message, traceback_of(error))


def die_with_parent() -> bool:
    """Ask the kernel to kill this process when its parent dies; false if the parent died before.

    Where there is no such call the closed channel alone tells of the parent's end.
    """
    if sys.platform != "linux":
        return True
    import ctypes

    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def run_child(
    prog: str,
    make: Callable[[Channel, CrashMark | None], ChildProcess],
    argv: Sequence[str] | None = None,
) -> int:
    """Read ``--fd N`` and ``--mark M`` from the command line, run the child on that socket, and end
    with what it says; returns only if there is no parent to speak to."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the parent")
    parser.add_argument("--mark", type=int, help="inherited file for whose code runs; else untold")
    arguments = parser.parse_args(argv)
    # The terminal sends these to the whole group; only the front decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not die_with_parent():
        return 0
    channel = Channel(socket.socket(fileno=arguments.fd))
    crash_mark = None if arguments.mark is None else CrashMark.open(arguments.mark)
    with contextlib.suppress(ChannelClosed):
        leave(make(channel, crash_mark).run())
    os._exit(0)  # nobody is left to tell anything to


def leave(code: int) -> NoReturn:
    """End the process without waiting for threads, and without taking every object of torch apart,
    which takes a second on a busy machine. What was registered to run at exit runs."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
