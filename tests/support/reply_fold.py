"""The fold of a streamed reply: what a client that puts its events together has at the end.

It is written from the shapes of the OpenAI API, knows nothing of how they came to be, and merges
fields that it has never heard of as clients do: texts are put one behind the other, parts of lists
with an ``index`` go to their entry, and of anything else the last one counts.
"""

from __future__ import annotations

import json
from typing import Any

_ONCE = ("role", "id", "type", "finish_reason", "object")
"""Texts that come whole."""


def events_of(body: str) -> list[dict[str, Any]]:
    """The events of a stream, which must end as one does."""
    blocks = body.split("\n\n")
    assert blocks.pop() == "", "the last event is not ended"
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def fold(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole reply as the events have it; of a chat, ``delta`` has become ``message``."""
    folded: dict[str, Any] = {}
    for event in events:
        merge(folded, event)
    for choice in folded["choices"]:
        if "delta" in choice:
            choice["message"] = {"refusal": None, **choice.pop("delta")}
            for call in choice["message"].get("tool_calls", ()):
                del call["index"]
    folded["choices"].sort(key=lambda choice: choice["index"])
    if folded.get("usage", 0) is None:
        del folded["usage"]
    return folded


def merge(into: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        known = into.get(name)
        if known is None:
            into[name] = _copied(value)
        elif isinstance(value, dict) and name != "usage":
            merge(known, value)
        elif isinstance(value, list):
            _merge_lists(known, value)
        elif isinstance(value, str) and name not in _ONCE and isinstance(known, str):
            into[name] = _joined(name, known, value)
        elif value is not None:
            into[name] = value


def _joined(name: str, known: str, value: str) -> str:
    """What says who answers is in each event."""
    return known if name in ("model", "system_fingerprint") else known + value


def _copied(value: Any) -> Any:
    copied: Any = value
    if isinstance(value, dict):
        copied = {}
        merge(copied, value)
    elif isinstance(value, list):
        copied = []
        _merge_lists(copied, value)
    return copied


def _merge_lists(known: list[Any], value: list[Any]) -> None:
    for item in value:
        if not (isinstance(item, dict) and "index" in item):
            known.append(_copied(item))
            continue
        same = [each for each in known if each["index"] == item["index"]]
        if same:
            merge(same[0], item)
        else:
            known.append(_copied(item))


def check_events(events: list[dict[str, Any]]) -> None:
    """What holds for the events of every stream, whatever they say."""
    assert len({(e["id"], e["object"], e["created"], e["model"]) for e in events}) == 1
    ended: set[int] = set()
    opened: set[int] = set()
    for at, event in enumerate(events):
        if not event["choices"]:
            assert at == len(events) - 1, "only the last event has no choice"
            assert event["usage"] is not None
            continue
        (choice,) = event["choices"]
        index = choice["index"]
        assert index not in ended, "more of a choice that has ended"
        if choice["finish_reason"] is not None:
            ended.add(index)
        if "delta" in choice:
            assert ("role" in choice["delta"]) == (index not in opened)
        opened.add(index)
        assert _says_something(choice), f"an event that says nothing: {choice}"
    assert ended == opened


def _says_something(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta", {})
    said = [choice.get("text"), choice["finish_reason"], choice.get("token_ids")]
    return any([*said, choice["logprobs"], *delta.values()])
