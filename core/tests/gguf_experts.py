"""Old model files that hold the matrix of each expert by itself, for several tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType

Q8_0 = GGMLQuantizationType.Q8_0
RANDOM = np.random.default_rng(0)
MATRICES = RANDOM.standard_normal((3, 4, 32), np.float32)
NAME = "blk.0.ffn_gate_exps.weight"


def save(path: Path, tensors: Mapping[str, np.ndarray], *, per_part: int = 0) -> Path:
    """In Q8_0 what is a byte array."""
    writer = GGUFWriter(path, "llama", split_max_tensors=per_part)
    writer.add_block_count(1)
    for name, data in tensors.items():
        writer.add_tensor(name, data, raw_dtype=Q8_0 if data.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def single(count: int = 3) -> dict[str, np.ndarray]:
    return {f"blk.0.ffn_gate.{n}.weight": MATRICES[n] for n in reversed(range(count))}
