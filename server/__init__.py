if __name__ != "hookserve.server":
    raise ImportError("import hookserve.server instead of server: the folder is installed under that name")
