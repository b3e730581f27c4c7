"""The worker's arrays: what is said where there is no memory for them."""

from __future__ import annotations

import pytest

from hookserve.engine.errors import ConfigError
from hookserve.engine.input_batch import InputBatch


@pytest.mark.parametrize("length", [2**40, 2**60])
def test_rows_beyond_all_memory_are_refused_by_the_settings_that_ask_for_them(length: int) -> None:
    with pytest.raises(ConfigError, match=f"--max-num-seqs 4096 and --max-model-len {length}"):
        InputBatch(4096, length, block_size=16)
