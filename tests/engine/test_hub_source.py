"""Hub names, through ``huggingface-hub`` itself against a hub of one repository on this machine."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMIT = "a" * 40
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle",
    "chat_template.jinja": b"template",
}
PROGRAM = """
import sys
from hookserve.engine.errors import ModelSourceError
from hookserve.engine.model_sources import HubSource
try:
    print(HubSource().resolve(sys.argv[1], revision=None, cache_dir=sys.argv[2]))
except ModelSourceError as error:
    print(error)
    sys.exit(error.exit_code)
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as a download asks: the commit, the list of files, the files."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        name = self.path.partition("?")[0].rsplit("/", 1)[-1]
        if self.path.startswith("/api/models/org/name/tree/"):
            listing = [
                {"type": "file", "path": file, "size": len(data), "oid": "b" * 40}
                for file, data in FILES.items()
            ]
            body = json.dumps(listing).encode()
        elif self.path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": file} for file in FILES]
            answer = {"id": "org/name", "sha": COMMIT, "siblings": siblings}
            body = json.dumps(answer).encode()
        elif self.path.startswith("/org/name/resolve/") and name in FILES:
            body = FILES[name]
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{name}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def resolve(port: int, reference: str, cache: Path) -> tuple[int, str]:
    """In a process of its own: the library reads its environment when it is imported."""
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HOME": str(cache / "hf-home"),
    }
    command = [sys.executable, "-c", PROGRAM, reference, str(cache)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout.strip()


def test_a_snapshot_has_what_is_served_and_stays_without_the_hub(
    tmp_path: Path, hub: http.server.ThreadingHTTPServer
) -> None:
    code, path = resolve(hub.server_port, "org/name", tmp_path)
    assert code == 0
    found = {p.name: p.read_bytes() for p in Path(path).iterdir()}
    assert found == {name: data for name, data in FILES.items() if not name.endswith(".bin")}
    nobody_listens = 1
    assert resolve(nobody_listens, "org/name", tmp_path) == (0, path)


def test_what_the_hub_does_not_have_is_one_sentence(
    tmp_path: Path, hub: http.server.ThreadingHTTPServer
) -> None:
    code, message = resolve(hub.server_port, "org/other", tmp_path)
    assert code == 75
    assert message.startswith("org/other: could not be fetched from the hub")
    assert len(message.splitlines()) == 1
