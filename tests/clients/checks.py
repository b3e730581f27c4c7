"""The frame of a client's script: its checks, one line of JSON for each, and the versions.

A script is run with the server's address and the model's name, in an environment that has the
client and not the server. Only the standard library.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

KEY = "any"


class Server(NamedTuple):
    url: str
    model: str
    tokenizer: str
    """The folder of the model's tokenizer, for clients that want one; else empty."""

    @property
    def api(self) -> str:
        return f"{self.url}/v1"


Check = Callable[[Server], None]
_CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Names a function whose assertions are the check; the underscores become spaces."""
    _CHECKS.append(function)
    return function


def main(*packages: str) -> None:
    """Run every check, and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("tokenizer", nargs="?", default="")
    server = Server(**vars(parser.parse_args()))
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({"versions": versions}), flush=True)
    for function in _CHECKS:
        start, problem = time.perf_counter(), None
        try:
            function(server)
        except Exception as error:
            problem = "".join(traceback.format_exception(error))
        name = function.__name__.replace("_", " ")
        seconds = round(time.perf_counter() - start, 2)
        print(json.dumps({"check": name, "problem": problem, "seconds": seconds}), flush=True)
