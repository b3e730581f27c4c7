"""The front's log: format and level from the settings, and the lines that waited for it."""

from __future__ import annotations

import logging
import sys

from hookserve.engine.log import configure_logging

from .settings import Settings


def use_color(settings: Settings) -> bool:
    """Colour is for terminals, and not where ``NO_COLOR`` is set."""
    return settings.color and sys.stderr.isatty()


def start_logging(settings: Settings, role: str = "Front") -> logging.Logger:
    """Set up the ``hookserve`` logger, and log what resolving the settings had to say."""
    logger = configure_logging(settings.server.log_level, role, color=use_color(settings))
    for line in settings.notes:
        logger.info("%s", line)
    for line in settings.warnings:
        logger.warning("%s", line)
    return logger
