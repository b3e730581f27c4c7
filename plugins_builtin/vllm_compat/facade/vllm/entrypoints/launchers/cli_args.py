"""The flags of a server."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "FrontendArgs": "refused: the server's settings are hookserve.server.settings; an endpoint "
    "plugin is given them as args of init_state",
    "make_arg_parser": "refused: `server run` has the flags; a platform adds its own in "
    "pre_register_and_update, and the hook cli_options in a native plugin",
    "validate_parsed_serve_args": "refused: `server run` checks its flags; `--dry-run` checks them "
    "and starts nothing",
}
