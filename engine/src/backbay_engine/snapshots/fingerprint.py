"""The fingerprint of a model: what tells its weights from those of others."""

from __future__ import annotations

import hashlib
from typing import Final

from backbay.plugin import ModelFile

SAMPLES: Final = 16  # tensors, of which the first bytes count
SAMPLE: Final = 4096


def fingerprint(model: ModelFile) -> str:
    """A digest of all names, dtypes and shapes of the tensors, and of samples of their bytes; no path is in it."""
    digest = hashlib.sha256(repr(model.metadata.architecture).encode())
    names = sorted(model.tensors)
    for name in names:
        info = model.tensors[name]
        digest.update(repr((name, info.dtype.name, info.shape)).encode())
    for name in names[:: max(1, len(names) // SAMPLES)]:
        first = next(iter(model.chunks(name)), None)
        digest.update(b"" if first is None else first[:SAMPLE].tobytes())
    return digest.hexdigest()[:32]
