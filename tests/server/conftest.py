"""Fixtures of the server's tests: the application over an engine that answers from a script."""

from __future__ import annotations

from served_script import byte_tokenizer as byte_tokenizer
from served_script import make_engine_config as make_engine_config
from served_script import serve_script as serve_script
