"""Plugin packages that were written for vLLM, run unmodified and without vLLM.

``adapter`` is what the host knows; ``groups`` makes plugins of entry points, ``selection`` reads
``VLLM_PLUGINS``, ``finder`` serves the modules under ``facade/`` as ``vllm``.
"""
