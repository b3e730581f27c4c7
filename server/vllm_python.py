"""``python -m hookserve.server.vllm_python SCRIPT.py [ARG ...]``: runs a program that was written
for vLLM in a process that serves the package ``vllm``, and has loaded its plugins.

``-m MODULE`` runs a module. Program, arguments and errors are as under ``python`` itself. The
process has the roles of an ``LLM``, which the program may make; what it registers by itself is its
own, and, as under vLLM, unknown in processes that are started from here.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from hookserve.engine.errors import HookserveError
from hookserve.engine.log import log_host
from hookserve.engine.offline_host import offline_settings
from hookserve.hookspecs import Host, HostError, Plugin, bootstrap

from .logging_setup import start_logging
from .settings import resolve_settings

USAGE = "usage: python -m hookserve.server.vllm_python SCRIPT.py|-m MODULE [ARG ...]"
_EXIT_USAGE = 2
_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130


def run(words: Sequence[str]) -> int:
    """Run the program that the words name; return the exit code, where it does not exit itself."""
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    is_module = words[:1] == ["-m"]
    named = list(words[1:] if is_module else words)
    if not named or (named[0].startswith("-") and not is_module):
        print(USAGE, file=sys.stderr)
        return _EXIT_USAGE
    try:
        start_logging(resolve_settings({}), "Program")
        host = bootstrap(("front", "engine", "worker"), offline_settings())
        host.hold()  # engines of the program come and go
        host.adapters.prepare()
        log_host(host)
    except (HookserveError, HostError) as error:
        print(f"vllm_python: {error}", file=sys.stderr)
        return error.exit_code
    try:
        return _as_owner(host, named[0], lambda: (_module if is_module else _script)(named))
    finally:
        host.close()


def _as_owner(host: Host, name: str, program: Callable[[], int]) -> int:
    """Run the program as the owner of what it registers."""
    owner = Plugin(f"program:{name}", name, "program", load=lambda: None, file=name)
    host.give_registrar(owner)
    with host.enter(owner):
        return program()


def _module(words: list[str]) -> int:
    sys.argv[:] = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    return 0


def _script(words: list[str]) -> int:
    path = os.path.abspath(words[0])  # as Python names it; ``sys.argv`` has what was written
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        print(f"vllm_python: can't open file {words[0]!r}: {error.strerror}", file=sys.stderr)
        return _EXIT_USAGE
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv[:] = words
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    try:
        exec(compile(source, path, "exec"), vars(main))
    except (KeyboardInterrupt, Exception) as error:
        _show(error, path)
        return _EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else _EXIT_FAILED
    return 0


def _show(error: BaseException, path: str) -> None:
    """As Python shows what nobody caught: from the program's own first line on."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(error), error, trace)
    else:
        sys.excepthook(type(error), error, trace)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
