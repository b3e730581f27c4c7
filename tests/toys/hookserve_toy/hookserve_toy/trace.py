"""One line of JSON for each thing that happened, in the file that TOY_TRACE names."""

from __future__ import annotations

import json
import os


def note(event: str, **facts: object) -> None:
    path = os.environ.get("TOY_TRACE")
    if path:
        line = json.dumps({"event": event, "pid": os.getpid(), **facts}) + "\n"
        # One write of one short line to a file opened for appending does not tear.
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
