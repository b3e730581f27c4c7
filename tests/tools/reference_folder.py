"""Write the folder that transformers makes of a GGUF file: dequantised weights and tokenizer.

``reference_folder.py GGUF DTYPE OUT``: everything in OUT is transformers' work, so that a test
that compares with it compares with somebody else's reading of the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def main(gguf: Path, dtype_name: str, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    dtype = getattr(torch, dtype_name)
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = dtype
    # A fresh model takes the weights: the one that was read remembers that it came quantised.
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    with tempfile.TemporaryDirectory(dir=out.parent) as building:
        folder = Path(building) / out.name
        model.to(dtype).save_pretrained(folder)
        AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
        if not out.exists():
            os.rename(folder, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
