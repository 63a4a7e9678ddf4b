"""The results of transformers: pixels, features and logits of pictures and prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from kinds import ID, Kind
from numpy.typing import NDArray
from PIL import Image

SIZES = {
    "square": (56, 56),
    "wide": (60, 150),
    "tall": (140, 61),
    "tiny": (9, 13),
    "large": (200, 230),
    "thin": (2, 390),
}
LETTERS = [ID[letter] for letter in "What is this?" if letter != " "]
UNUSED = ("aspect_ratios", "num_tiles", "num_crops", "grids", "num_patches_per_image")


@dataclass(frozen=True, eq=False)
class Truth:
    """One picture: its pixels before and after preparation, its rows, and what else the processor says."""

    rgb: NDArray[np.uint8]
    pixels: NDArray[np.float32]
    rows: NDArray[np.float32]
    facts: dict[str, NDArray[Any]]


def picture(size: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """A picture of this height and width: a smooth one with some noise."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize(size[::-1], Image.Resampling.BICUBIC), np.int16)
    return np.clip(smooth + rng.integers(-20, 21, (*size, 3)), 0, 255).astype(np.uint8)


def processed(kind: Kind, rgb: NDArray[np.uint8]) -> dict[str, Any]:
    """What the reference's processor makes of one picture."""
    image = Image.fromarray(rgb)
    nested = type(kind.images).__name__.startswith("Mllama")
    given = kind.images(images=[[image]] if nested else [image], return_tensors="pt")
    return {
        name: value.float() if name == "pixel_values" else value
        for name, value in given.items()
        if name not in UNUSED
    }


@torch.no_grad()
def truth(kind: Kind, rgb: NDArray[np.uint8]) -> Truth:
    """The reference's results for one picture."""
    given = processed(kind, rgb)
    facts = {name: np.asarray(value) for name, value in given.items() if name != "pixel_values"}
    return Truth(rgb, given["pixel_values"].numpy(), kind.features(kind.model, given).numpy(), facts)


def nmse(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    if found.shape != wanted.shape:
        raise ValueError(f"expected the shape {wanted.shape}, found {found.shape}")
    difference = found.astype(np.float64) - wanted
    return float((difference**2).sum() / (wanted.astype(np.float64) ** 2).sum())
