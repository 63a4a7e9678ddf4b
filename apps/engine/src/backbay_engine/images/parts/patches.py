"""Patches: squares of pixels, each a vector, and squares of patches, whose features become those of one."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, Tensor

from ...encoders.shape import first_present
from ...models.nn import Weights
from ..contract import Pictures

Pixels = NDArray[np.float32]


def stack_pixels(pictures: Pictures) -> NDArray[np.float32]:
    """The pixels of all pictures, one after the other in the first dimension."""
    return np.concatenate([picture.pixels for picture in pictures])


def repeat_places(places: NDArray[np.int64], count: int, step: int) -> NDArray[np.int32]:
    """The places of several pictures, those of each by `step` behind those of the one before."""
    return (places + step * np.arange(count)[:, None]).ravel().astype(np.int32)


def cut_patches(pixels: Pixels, patch: int) -> Pixels:
    """The patches of pictures, row by row: (n, 3, height, width) to (n, patches, 3 * patch * patch), channels slowest."""
    n, channels, height, width = pixels.shape
    squares = pixels.reshape(n, channels, height // patch, patch, width // patch, patch)
    return squares.transpose(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * patch * patch)


def padded_patches(pictures: Pictures, patch: int, before: int = 0, after: int = 0) -> Pixels:
    """(squares, patches, features) of pictures that are one square, or several; with zeros around those of each square."""
    pixels = stack_pixels(pictures)
    return np.pad(
        cut_patches(pixels.reshape(-1, *pixels.shape[-3:]), patch), ((0, 0), (before, after), (0, 0))
    )


@final
class PatchEmbedding:
    """A convolution whose stride is the size of its kernel: a product with each patch."""

    def __init__(self, weights: Weights, names: tuple[str, ...], patch: int, width: int) -> None:
        name = first_present(weights, *names)
        self.weight = weights.need(f"{name}.weight", patch, patch, 3, width)
        self.bias = weights.maybe(f"{name}.bias", width)
        self.inputs, self.width = 3 * patch * patch, width

    def __call__(self, ctx: Context, patches: Tensor) -> Tensor:
        """(3 * patch * patch, n) to (width, n)"""
        x = self.weight.reshape(ctx, self.inputs, self.width).mulmat(ctx, patches)
        return x if self.bias is None else x.add(ctx, self.bias)


def pixel_shuffle(ctx: Context, x: Tensor, side: int, factor: int) -> Tensor:
    """(width, side * side * squares) to (width * factor * factor, rows): the features of a square row by row."""
    width, few = x.dim(0), side // factor
    x = x.reshape(
        ctx, width * factor, few, factor, -1
    )  # (features of a line, columns, lines, rows of all squares)
    return x.permute(ctx, 0, 2, 1, 3).contiguous(ctx).reshape(ctx, width * factor**2, -1)


def pool_squares(ctx: Context, x: Tensor) -> Tensor:
    """The means of squares of two by two features; (width, columns, rows, pictures)."""
    planes = x.permute(ctx, 2, 0, 1, 3).contiguous(ctx)
    return planes.avg_pool2d(ctx, 2, 2).permute(ctx, 1, 2, 0, 3).contiguous(ctx)
