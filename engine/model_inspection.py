"""Looking at a third party's model class before an engine is started for it.

The front does not import model code: a class that a plugin names by its path is imported in an
inspector, a process of its own, whose answer is kept on disk. A built-in is known, a plugin may
state the facts itself (``ModelEntry.info``), and a process that is the worker too imports the class
anyway. What a class must have is ``model_registry``'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hookserve.hookspecs import Denied, Manifest
from hookserve.hookspecs.errors import PluginError
from hookserve.hookspecs.manifest import find_failures

from .environment import default_cache_dir
from .errors import EngineStartError
from .inspector_child import InspectorChild, InspectorEndedError
from .inspector_messages import Inspect, Inspected, Refused
from .messages import ManifestSent
from .model_facts import ModelFacts, facts_of, stated_facts
from .model_facts_cache import FactsCache
from .model_registry import (
    check_architecture,
    check_is_served,
    import_architecture,
    unserved_need,
)
from .plugin_restarts import PluginRestarts

if TYPE_CHECKING:
    from hookserve.hookspecs import Claim, Host

    from .config import EngineConfig

logger = logging.getLogger(__name__)

START_S = 60.0
"""For what is the host's own in an inspector."""


def check_model_class(config: EngineConfig, host: Host, cache_dir: str | None = None) -> None:
    """Refuse a model that a third party registers and that cannot be served, before an engine is
    started for it.

    Raises:
        UnknownArchitectureError: nobody registers one of the architectures.
        hookserve.hookspecs.PluginError: the class cannot be had, does not keep the contract, or is
            not served here.
        EngineStartError: the inspector could not do its work.
    """
    name = check_architecture(config.model.architectures, host)
    claim = _claim(name, host)
    if "worker" in host.roles or claim.plugin.is_builtin:
        return
    _, need = _look_at(name, host, config, cache_dir)
    check_is_served(name, host, need)


def inspect_model(
    architectures: Sequence[str], host: Host, *, cache_dir: str | None = None
) -> ModelFacts:
    """The facts about the first of the architectures that is registered, also of one that is not
    served here. Imports the class in a worker alone, or where it was handed over as an object.

    Args:
        cache_dir: of the program; ``None``: where it is by default.

    Raises:
        as ``check_model_class``.
    """
    facts, _ = _look_at(check_architecture(architectures, host), host, None, cache_dir)
    return facts


def _look_at(
    name: str, host: Host, config: EngineConfig | None, cache_dir: str | None
) -> tuple[ModelFacts, str | None]:
    """The facts about a registered architecture, and why it is not served here.

    Args:
        config: what the inspector's plugins are told; ``None``: there is none yet.
    """
    claim = _claim(name, host)
    info = getattr(claim.declaration, "info", None)
    if info is not None:
        try:
            return stated_facts(name, info), None
        except ValueError as error:
            raise PluginError(claim.owner, "register", f"model {name!r}: {error}") from error
    if "worker" in host.roles or not isinstance(claim.target, str):
        name, model_class = import_architecture([name], host)
        with host.enter(claim.plugin):
            return facts_of(name, model_class), unserved_need(model_class)
    if "inspector" not in claim.plugin.facts.roles:
        return ModelFacts(architecture=name, is_text_generation_model=True), None
    cache = FactsCache(cache_dir or default_cache_dir(), claim, host)
    inspected = cache.read()
    if inspected is None:
        since_ns = time.time_ns()
        inspected = _inspect(name, host, config)
        cache.write(inspected, since_ns)
    else:
        logger.debug("model %r of %s: facts from %s", name, claim.owner, cache.path)
    return inspected.facts, inspected.need


def _claim(name: str, host: Host) -> Claim:
    claim = host.registry("model").get(name)
    assert claim is not None, name
    return claim


def _inspect(name: str, host: Host, config: EngineConfig | None) -> Inspected:
    """Ask inspectors until one has an answer; plugins that fail in one are put out everywhere."""
    restarts = PluginRestarts(host, "the inspector")
    while True:
        claim = _claim(check_architecture([name], host), host)
        answer = _ask(claim, host, config, tuple(restarts.denied))
        if not isinstance(answer, list):
            return answer
        restarts.decide(answer)


def _ask(
    claim: Claim, host: Host, config: EngineConfig | None, denied: tuple[Denied, ...]
) -> Inspected | list[Denied]:
    """What one inspector says, or the plugins that fail in it."""
    started = time.monotonic()
    plugins = msgspec.structs.replace(host.settings, denied=denied)
    patience_s = host.settings.startup_hook_timeout_s
    with InspectorChild.start() as child:
        child.tell(Inspect(claim.name, config, plugins))
        try:
            sent = child.expect(START_S + patience_s, ManifestSent)
            manifest = msgspec.convert(sent.manifest, Manifest)
            # Another's role may leave the inspector out, so that it has less than the front.
            if failures := find_failures(host.manifest(), manifest):
                return failures
        except InspectorEndedError as error:
            if error.crash is None:
                raise
            return [error.crash]
        answer = _expect_answer(child, claim, patience_s)
    if isinstance(answer, Refused):
        if answer.detail:
            logger.error("model %r of %s:\n%s", claim.name, claim.owner, answer.detail.rstrip())
        raise PluginError(claim.owner, answer.stage, answer.message)
    taken = time.monotonic() - started
    logger.info("model %r of %s: inspected in %.1f s", claim.name, claim.owner, taken)
    return answer


def _expect_answer(child: InspectorChild, claim: Claim, patience_s: float) -> Inspected | Refused:
    """From here on it is the class's own code that runs."""
    what = f"model {claim.name!r}: the process that imported {claim.target_text()}"
    try:
        answer = child.expect(patience_s, Inspected, Refused)
    except InspectorEndedError as error:
        raise PluginError(claim.owner, "import", f"{what} {error.how}") from error
    except EngineStartError as error:
        raise PluginError(claim.owner, "import", f"{what} failed: {error}") from error
    assert isinstance(answer, Inspected | Refused)
    return answer
