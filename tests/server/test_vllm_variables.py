"""The variables of vLLM that the server's settings heed."""

from __future__ import annotations

from typing import Any

import pytest

from hookserve.engine.errors import ConfigError
from hookserve.server.settings import Settings, resolve_settings

HOME = {"HOME": "/home/me"}


def resolve(given: dict[str, Any] | None = None, **environ: str) -> Settings:
    return resolve_settings(given or {}, {**HOME, **environ})


@pytest.mark.checklist(121)
def test_the_level_of_the_log_is_vllms_where_nobody_says_another() -> None:
    assert resolve().server.log_level == "INFO"
    settings = resolve(VLLM_LOGGING_LEVEL="debug")
    assert settings.server.log_level == settings.engine_args.log_level == "DEBUG"
    assert str(settings.origins["log_level"]) == "environment VLLM_LOGGING_LEVEL"
    ours = resolve(VLLM_LOGGING_LEVEL="DEBUG", HOOKSERVE_LOG_LEVEL="ERROR")
    assert ours.server.log_level == "ERROR"
    assert resolve({"log_level": "warning"}, VLLM_LOGGING_LEVEL="DEBUG").server.log_level == (
        "WARNING"
    )
    with pytest.raises(ConfigError, match=r"log-level 'loud' \(from environment VLLM_LOGGING_LE"):
        resolve(VLLM_LOGGING_LEVEL="loud")


@pytest.mark.checklist(89)
@pytest.mark.parametrize(
    ("text", "expected"), [("2.5", 2.5), ("0", 10), ("-1", 10), ("0.0", 10), ("", 10)]
)
def test_an_interval_that_is_not_above_zero_means_the_default(text: str, expected: float) -> None:
    assert resolve(VLLM_LOG_STATS_INTERVAL=text).server.log_stats_interval == expected
    assert resolve(
        VLLM_LOG_STATS_INTERVAL=text, HOOKSERVE_LOG_STATS_INTERVAL="3"
    ).server.log_stats_interval == pytest.approx(3)


def test_a_key_of_vllms_closes_the_server() -> None:
    (key,) = resolve(VLLM_API_KEY="secret").server.api_key
    assert "secret" not in repr(key)
    assert len(resolve(VLLM_API_KEY="secret", HOOKSERVE_API_KEY="mine").server.api_key) == 1
