"""Small GGUF files for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

Named = tuple[str, np.ndarray, GGMLQuantizationType]


def write_gguf(path: Path, layers: int, tensors: Iterable[Named], **numbers: int) -> Path:
    """A model file with tensors in their stored form, and further metadata such as `llama.embedding_length`."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    for key, number in numbers.items():
        writer.add_uint32(f"llama.{key}", number)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
