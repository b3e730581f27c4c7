"""`lm-eval`, model `local-completions`: log-likelihoods, and generation, on tasks made here."""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "any"}
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="lm-eval-")

import lm_eval
from checks import Server, check, main
from lm_eval.tasks import TaskManager

DOCS = [
    {"question": f"Which colour has number {number}?", "answer": number % 2} for number in range(6)
]
CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": ["red", "blue"],
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc"}],
}
GENERATION = {
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["e"], "max_gen_toks": 8},
    "metric_list": [{"metric": "exact_match"}],
}


def evaluate(server: Server, fields: dict[str, Any]) -> list[Any]:
    """The samples of a task over ``DOCS``."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "docs.jsonl")
        data.write_text("\n".join(json.dumps(doc) for doc in DOCS))
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        task = {"task": "ours", "test_split": "test", **source, **fields}
        Path(folder, "ours.yaml").write_text(json.dumps(task))  # JSON is YAML
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "model": server.model,
                "base_url": f"{server.api}/completions",
                "tokenizer": server.tokenizer,
                "tokenizer_backend": "huggingface",
                "num_concurrent": 2,
                "max_retries": 1,
            },
            tasks=["ours"],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            log_samples=True,
            bootstrap_iters=0,
        )
    return sorted(found["samples"]["ours"], key=lambda sample: sample["doc_id"])


def complete(server: Server, **fields: Any) -> Any:
    body = json.dumps({"model": server.model, **fields}).encode()
    asked = urllib.request.Request(f"{server.api}/completions", body)
    asked.add_header("content-type", "application/json")
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return json.load(reply)["choices"][0]


@check
def log_likelihoods(server: Server) -> None:
    samples = evaluate(server, CHOICE)
    assert len(samples) == len(DOCS)
    for sample in samples:
        question = sample["doc"]["question"]
        for word, (told, _) in zip(("red", "blue"), sample["filtered_resps"], strict=True):
            text = f"{question} {word}"
            scored = complete(server, prompt=text, max_tokens=0, echo=True, logprobs=0)["logprobs"]
            behind = [
                value
                for value, offset in zip(
                    scored["token_logprobs"], scored["text_offset"], strict=True
                )
                if offset >= len(question)
            ]
            assert abs(float(told) - sum(behind)) < 1e-3, (told, behind)


@check
def generation(server: Server) -> None:
    for sample in evaluate(server, GENERATION):
        alone = complete(
            server, prompt=sample["doc"]["question"], temperature=0, max_tokens=8, stop="e"
        )
        assert sample["resps"][0][0] == alone["text"]


if __name__ == "__main__":
    main("lm_eval")
