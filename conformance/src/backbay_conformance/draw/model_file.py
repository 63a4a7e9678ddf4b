"""Model files of a few weights, for scenarios and machines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from backbay import DType

from ..numbers.encoding import Array

DEFAULT_ALIGNMENT = 32
"""What a file has that says nothing."""


def write_model(
    path: Path,
    blocks: int,
    weights: Iterable[tuple[str, DType, Array]],
    width: int = 0,
    alignment: int = DEFAULT_ALIGNMENT,
) -> Path:
    """Write a file of `blocks` layers, with weights by name as stored elements; `width` is the embeddings' width.

    Each weight begins at a multiple of `alignment`.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, "small")
    writer.add_block_count(blocks)
    if alignment != DEFAULT_ALIGNMENT:
        writer.add_custom_alignment(alignment)
    if width:
        writer.add_embedding_length(width)
    for name, dtype, stored in weights:
        raw = np.ascontiguousarray(stored).view(np.uint8)
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType(dtype.value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
