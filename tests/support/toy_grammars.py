"""A grammar backend whose grammars are lists of token ids, for engines without a tokenizer.

The text of a spec is JSON: ``{"steps": [[1, 2], [3]], "least": 1}`` allows one of the ids of each
step in turn, and an end from ``least`` tokens on (without it, behind the last step). ``"loop"``:
the last step repeats. ``"fail"`` names a method that raises ``"error"``; ``"wait"``: compiling
waits until ``may_go_on`` is set.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np

from hookserve.hookspecs.grammar_types import GrammarSpec, GrammarVocabulary

ERRORS = {"ValueError": ValueError, "RuntimeError": RuntimeError}
may_go_on = threading.Event()
compiled: list[str] = []
"""Texts, in order."""


class ToyBackend:
    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.num_tokens = len(vocabulary.tokens)

    @staticmethod
    def validate(spec: GrammarSpec) -> None:
        _raise(json.loads(spec.text), "validate")

    def compile(self, spec: GrammarSpec) -> ToyGrammar:
        wanted = json.loads(spec.text)
        if wanted.get("wait"):
            assert may_go_on.wait(30)
        compiled.append(spec.text)
        _raise(wanted, "compile")
        return ToyGrammar(wanted)


class ToyGrammar:
    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.num_bytes = wanted.get("num_bytes", 100)

    def matcher(self) -> ToyMatcher:
        _raise(self.wanted, "matcher")
        return ToyMatcher(self.wanted)


class ToyMatcher:
    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.steps: list[list[int]] = wanted["steps"]
        self.at = 0

    def _next(self) -> list[int]:
        last = len(self.steps) - 1
        if self.at > last and not self.wanted.get("loop"):
            return []
        return self.steps[min(self.at, last)]

    def fill_mask(self, mask: np.ndarray[Any, Any]) -> None:
        _raise(self.wanted, "fill_mask")
        for token_id in self._next():
            mask.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)

    def accept(self, token_id: int) -> bool:
        _raise(self.wanted, "accept")
        if token_id not in self._next():
            return False
        self.at += 1
        return True

    def can_end(self) -> bool:
        return bool(self.at >= self.wanted.get("least", len(self.steps)))

    def is_finished(self) -> bool:
        return self.can_end() and not self._next()


def _raise(wanted: dict[str, Any], method: str) -> None:
    if wanted.get("fail") == method:
        raise ERRORS[wanted["error"]]("as it was told")
