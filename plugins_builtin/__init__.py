"""The defaults, each a plugin small enough to copy.

Loaded by name; nothing imports them.
"""

if __name__ != "hookserve.plugins_builtin":
    raise ImportError(
        "import hookserve.plugins_builtin: the folder plugins_builtin is installed under that name"
    )
