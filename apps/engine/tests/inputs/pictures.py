"""Pictures for tests, computed from their size and a number: the same on every machine."""

from __future__ import annotations

import numpy as np

from backbay_engine.images.preparations.preparation import Preparation
from backbay_engine.images.preparations.slices import MiniCPMV46Preparation, MiniCPMVPreparation
from backbay_engine.images.preparations.stretched import (
    CentreCropPreparation,
    Gemma3Preparation,
    PixtralPreparation,
    QwenPreparation,
)
from backbay_engine.images.preparations.tiles import (
    AnyresPreparation,
    Idefics3Preparation,
    Llama4Preparation,
    MllamaPreparation,
)

CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def drawn(height: int, width: int, number: int = 0) -> np.ndarray:
    """A picture (height, width, 3) of slopes, edges and fine patterns."""
    y, x, c = np.ogrid[:height, :width, :3]
    values = (y * (3 + number % 5) + x * (2 + c) + c * 61 + number * 17) % 256
    edges = ((x * 7 // (width + 6) + y * 5 // (height + 4)) % 2) * 255
    fine = (x * y * (number + 1) + c * 85) % 256
    part = (y * 3 // height + x * 2 // width + number) % 3
    return np.where(part == 0, values, np.where(part == 1, edges, fine)).astype(np.uint8)


def preparations(size: int, patch: int) -> dict[str, Preparation]:
    """A preparation of each family, for tiles of this size and patches of this size."""
    grids = [(1, 2), (2, 1), (2, 2), (3, 1), (1, 3)]
    return {
        "gemma3": Gemma3Preparation(size=size, tokens=16, **HALF),
        "llava": CentreCropPreparation(size=size, tokens=(size // patch) ** 2, **CLIP),
        "llava-next": AnyresPreparation(
            size=size, patch=patch, pinpoints=tuple((size * h, size * w) for h, w in grids), **CLIP
        ),
        "mllama": MllamaPreparation(size=size, patch=patch, **CLIP),
        "qwen2.5-vl": QwenPreparation(patch=patch, min_pixels=16 * patch**2, max_pixels=4 * size**2, **CLIP),
        "llama4": Llama4Preparation(size=size, patch=patch, **HALF),
        "idefics3": Idefics3Preparation(
            size=size, tokens=(size // patch) ** 2 // 4, edge=3 * size - 5, **HALF
        ),
        "minicpm-v-4.6": MiniCPMV46Preparation(size=size, patch=patch, **HALF),
        "minicpm-v": MiniCPMVPreparation(size=size, patch=patch, tokens=3, **HALF),
        "pixtral": PixtralPreparation(unit=2 * patch, edge=4 * size, **CLIP),
    }
