if __name__ != "hookserve.hookspecs":
    raise ImportError("import hookserve.hookspecs instead of hookspecs: the folder is installed under that name")
