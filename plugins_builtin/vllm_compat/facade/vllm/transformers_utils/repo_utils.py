"""Files of a model, local ones alone."""

from __future__ import annotations

import os
from typing import Any

from hookserve.engine.regular_file import read_json_object
from hookserve.plugins_builtin.vllm_compat.revisions import refuse_revision

__all__ = ["file_or_path_exists", "get_hf_file_to_dict"]

__surface__ = {
    "file_or_path_exists": "live: whether a local folder has a file; what is on the hub is fetched "
    "by the hook model_source before anybody looks",
    "get_hf_file_to_dict": "live: a JSON file of a local folder",
    "hf_api": "refused: models are fetched by the hook model_source; install huggingface-hub and "
    "use it yourself",
}


def file_or_path_exists(
    model: str | os.PathLike[str], config_name: str, revision: str | None = None
) -> bool:
    """
    Raises:
        ValueError: a revision, which local folders have none of.
    """
    refuse_revision(model, revision)
    return os.path.isfile(os.path.join(model, config_name))


def get_hf_file_to_dict(
    file_name: str, model: str | os.PathLike[str], revision: str | None = None
) -> dict[str, Any] | None:
    """``None``: there is no such file. Raises as ``file_or_path_exists``."""
    if not file_or_path_exists(model, file_name, revision):
        return None
    return read_json_object(os.path.join(model, file_name))
