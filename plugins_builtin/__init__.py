if __name__ != "hookserve.plugins_builtin":
    raise ImportError("import hookserve.plugins_builtin instead of plugins_builtin: the folder is installed under that name")
