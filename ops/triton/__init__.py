"""Triton kernels, each beside a torch twin in ``hookserve.ops``, and the provider made of them.

Nothing here is imported before a kernel is chosen, and what imports Triton itself says so by an
absolute import: inside this package too ``triton`` is the compiler.
"""

if __name__ != "hookserve.ops.triton":
    raise ImportError("import hookserve.ops.triton: as `triton` the compiler is meant")
