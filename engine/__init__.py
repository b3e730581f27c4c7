if __name__ != "hookserve.engine":
    raise ImportError("import hookserve.engine instead of engine: the folder is installed under that name")
