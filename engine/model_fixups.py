"""Classes that change the whole configuration for one architecture, declared by the hook
``hf_config`` under the architecture's name.

They run in front, before the platform has its word; what they change crosses to the other processes
as plain data (``config_changes``). Those that change the model's own values alone are
``hf_configs``'. Nothing here imports torch.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from .config import EngineConfig
from .config_changes import fold_changes
from .hf_configs import changes_everything
from .plugin_code import as_plugin
from .vllm_config import ModelConfig, VllmConfig

if TYPE_CHECKING:
    from hookserve.hookspecs import Host


class VerifyAndUpdateConfig:
    """Base of such classes; they are never instantiated. Any class that has the first method is
    one."""

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """Change the tree, or raise what is wrong with it."""
        raise TypeError("a fix-up of a configuration must define verify_and_update_config")

    @staticmethod
    def verify_and_update_model_config(model_config: ModelConfig) -> None:
        """The same for the model's section; called first."""


def apply_fixups(config: EngineConfig, host: Host) -> EngineConfig:
    """Let the fix-up of each architecture of the model change the tree, and return the struct with
    the changes.

    Raises:
        ConfigError: a changed field that is not plain data, or of the wrong type.
        hookserve.hookspecs.PluginError: a fix-up raised.
    """
    registry = host.registry("hf_config")
    for name in config.model.architectures:
        claim = registry.get(name)
        if claim is None:
            continue
        target: Any = registry.resolve(name)
        if not changes_everything(target):
            continue
        tree = VllmConfig.from_engine_config(copy.deepcopy(config))
        with as_plugin(host, claim.owner, f"hf_config '{name}'"):
            first = getattr(target, "verify_and_update_model_config", None)
            if first is not None:
                first(tree.model_config)
            target.verify_and_update_config(tree)
        config = fold_changes(config, tree, claim.owner)
    return config
