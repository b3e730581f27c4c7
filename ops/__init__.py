"""Tensor functions and layers, and the context that layers read.

Knows no requests and no schedulers.
"""

if __name__ != "hookserve.ops":
    raise ImportError("import hookserve.ops: the folder ops is installed under that name")
