"""Encoders of the stored small models that see, made by `lab/engine/compare_vision --store`."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np

from backbay import BackendParams
from backbay_engine.media.encoder import MediaEncoder
from backbay_engine.media.encoder_file import encoder_family, encoder_files

VISION = Path(__file__).parents[1] / "data" / "vision"
ENCODERS = sorted(path.name.removesuffix(".gguf.xz") for path in VISION.glob("*.gguf.xz"))


def unpacked(name: str, folder: Path) -> Path:
    """The model file of an encoder."""
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((VISION / f"{name}.gguf.xz").read_bytes()))
    return path


def opened(
    path: Path, backend: str = "cpu_ref", params: BackendParams | None = None, image_tokens: int = 256
) -> MediaEncoder:
    """The encoder of a file, loaded if it holds memory."""
    file = next(encoder_files(path, path))
    encoder = MediaEncoder(encoder_family(file, image_tokens), backend, params)
    if params is None or params.alloc_memory:
        encoder.load()
    return encoder


def pictures(name: str, store: Path = VISION) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pictures and the reference's rows of each."""
    with np.load(store / f"{name.partition('-')[0]}.npz") as stored:
        sizes = [key.removesuffix(".rgb") for key in stored if key.endswith(".rgb")]
        return {size: (stored[f"{size}.rgb"], stored[f"{size}.rows"]) for size in sizes}
