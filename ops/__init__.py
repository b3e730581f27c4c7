if __name__ != "hookserve.ops":
    raise ImportError(
        "import hookserve.ops instead of ops: the folder is installed under that name"
    )
