"""Writes small GGUF files with weights of every type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from backbay import DType

SCALES = {
    DType.Q2_K: (80, 82),
    DType.Q3_K: (108,),
    DType.Q4_K: (0, 2),
    DType.Q5_K: (0, 2),
    DType.Q6_K: (208,),
    DType.IQ4_NL: (0,),
}


def quantized(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray[Any, Any]:
    """Random blocks of a type, as bytes of the reversed shape; types without an encoder get random codes and scales."""
    numbers = rng.standard_normal(shape[::-1]).astype(np.float32)
    kind = gguf.GGMLQuantizationType(dtype.value)
    try:
        return np.asarray(gguf.quants.quantize(numbers, kind))
    except NotImplementedError:
        raw = rng.integers(0, 256, (numbers.size // dtype.block_size, dtype.type_size), np.uint8)
        for at in SCALES[dtype]:
            halves = (rng.uniform(0.5, 1.5, (len(raw), 1)) * 0.02).astype(np.float16)
            raw[:, at : at + 2] = halves.view(np.uint8)
        return raw.reshape(*shape[:0:-1], -1)


def write_model(path: Path, weights: dict[str, tuple[DType, np.ndarray[Any, Any]]], **config: int) -> Path:
    writer = gguf.GGUFWriter(path, "test")
    for key, value in config.items():
        writer.add_uint32(f"test.{key}", value)
    for name, (dtype, data) in weights.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType(dtype.value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
