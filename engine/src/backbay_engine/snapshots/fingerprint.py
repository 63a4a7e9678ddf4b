"""The fingerprint of a model: what tells its weights from those of others."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from backbay.gguf import ModelFile

SAMPLE: Final = 4096  # bytes of a tensor


def fingerprint(model: ModelFile) -> str:
    """A digest of the architecture's metadata, and of the names, dtypes, shapes and first bytes of all tensors.

    Models that were trained on from another may have nearly all of their tensors in common. No path is in it.
    """
    metadata = model.metadata
    digest = hashlib.sha256(repr(metadata.architecture).encode())
    for key in sorted(metadata):
        if key.startswith(f"{metadata.architecture}."):
            digest.update(repr((key, np.asarray(metadata[key]).tolist())).encode())
    for name in sorted(model.tensors):
        info = model.tensors[name]
        digest.update(repr((name, info.dtype.name, info.shape)).encode())
        first = next(iter(model.chunks(name)), None)
        digest.update(b"" if first is None else first[:SAMPLE].tobytes())
    return digest.hexdigest()[:32]
