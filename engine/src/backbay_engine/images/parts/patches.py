"""Patches: squares of pixels, each a vector."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, Tensor

from ...models.nn import Weights
from ..inputs import Pictures, stacked
from .shape import present

Pixels = NDArray[np.float32]


def cut(pixels: Pixels, patch: int) -> Pixels:
    """The patches of pictures, row by row: (n, 3, height, width) to (n, patches, 3 * patch * patch), channels slowest."""
    n, channels, height, width = pixels.shape
    squares = pixels.reshape(n, channels, height // patch, patch, width // patch, patch)
    return squares.transpose(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * patch * patch)


def patches_of(pictures: Pictures, patch: int) -> Pixels:
    """(squares, patches, features) of pictures that are one square, or several."""
    pixels = stacked(pictures)
    return cut(pixels.reshape(-1, *pixels.shape[-3:]), patch)


@final
class PatchEmbedding:
    """A convolution whose stride is the size of its kernel: a product with each patch."""

    def __init__(self, weights: Weights, names: tuple[str, ...], patch: int, width: int) -> None:
        name = present(weights, *names)
        self.weight = weights.need(f"{name}.weight", patch, patch, 3, width)
        self.bias = weights.maybe(f"{name}.bias", width)
        self.inputs, self.width = 3 * patch * patch, width

    def __call__(self, ctx: Context, patches: Tensor) -> Tensor:
        """(3 * patch * patch, n) to (width, n)"""
        x = self.weight.reshape(ctx, self.inputs, self.width).mulmat(ctx, patches)
        return x if self.bias is None else x.add(ctx, self.bias)
