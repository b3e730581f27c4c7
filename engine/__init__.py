"""Requests to tokens and text: configuration, scheduler, KV cache, workers, loaders.

Knows no HTTP.
"""

if __name__ != "hookserve.engine":
    raise ImportError("import hookserve.engine: the folder engine is installed under that name")
