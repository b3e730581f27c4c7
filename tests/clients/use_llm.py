"""The `llm` command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import KEY, Server, check, main


def llm(server: Server, *words: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        models = [
            f"- model_id: local\n  model_name: {server.model}\n  api_base: {server.api}\n"
            "  supports_schema: true\n  supports_tools: true\n",
            f"- model_id: text\n  model_name: {server.model}\n  api_base: {server.api}\n"
            "  completion: true\n",
        ]
        Path(folder, "extra-openai-models.yaml").write_text("".join(models))
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": KEY}
        done = subprocess.run(
            [Path(sys.executable).with_name("llm"), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


@check
def streamed(server: Server) -> None:
    words = ("-m", "local", "-o", "max_tokens", "8", "-o", "temperature", "0", "Name a colour.")
    assert llm(server, *words) == llm(server, "--no-stream", *words)


@check
def schema(server: Server) -> None:
    form = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    shown = llm(server, "-m", "local", "-o", "seed", "1", "--schema", json.dumps(form), "A colour?")
    assert json.loads(shown)["colour"] in ("red", "blue")


@check
def completions(server: Server) -> None:
    assert llm(server, "-m", "text", "-o", "max_tokens", "4", "One two").strip() != ""


if __name__ == "__main__":
    main("llm", "openai")
