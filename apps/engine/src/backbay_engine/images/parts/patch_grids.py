"""Patches of pictures of any size, encoded in squares; each square becomes one row."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, Tensor
from backbay.gguf import Key, whole

from ...encoders.block import Norm, TwoLayerPerceptron
from ...encoders.contract import EncoderInputs, MediaPlace, placeholder_id, rows_in_runs
from ...encoders.shape import first_present
from ...models.nn import Weights
from ...text.tokenizers import Tokenizer
from ..contract import Pictures, VisionFamily
from ..prepared_picture import Prepared
from .patches import Pixels, stack_pixels

FRAMES = 2  # a picture stands still in both slices of time
MERGE = whole("vision.spatial_merge_size", 1, 64)
PAD = "<|image_pad|>"
EVERY = slice(None)
Order: TypeAlias = "slice | NDArray[np.int64]"
"""The numbers of the squares in the encoder's order; those of a picture go row by row."""


class QwenFamily(VisionFamily):
    """A family of Qwen: a picture is a grid of patches, and so are the positions of its rows in the text."""

    placeholder = PAD
    marker = f"<|vision_start|>{PAD}<|vision_end|>"
    patch: int
    merge: int

    def limits(self, pixels: tuple[Key[int], Key[int]], rows: tuple[int, int]) -> tuple[int, int]:
        """The fewest and the most pixels of a picture, by the file's keys or else of so many rows."""
        unit = (self.patch * self.merge) ** 2
        fewest, highest = (
            key.of(self.config, 0) or count * unit for key, count in zip(pixels, rows, strict=True)
        )
        if highest < max(fewest, unit):
            raise pixels[1].refuse(
                self.config, f"at least {max(fewest, unit)}, the fewest pixels of a picture,"
            )
        return fewest, highest

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        """Rows of pads; the text goes on after the longer side of their grid."""
        _, rows, columns = (side // self.merge for side in picture.grid)
        grid = np.indices((1, rows, columns)).reshape(3, -1).T
        placed = rows_in_runs(placeholder_id(tokenizer, PAD), picture.tokens, [[], []])
        return replace(placed, positions=grid.astype(np.int32), advance=max(rows, columns))

    def cost(self, picture: Prepared) -> int:
        return len(picture.pixels)

    def key(self, picture: Prepared) -> Hashable:
        return picture.grid


@final
class TimeSlicedEmbedding:
    """An embedding of patches by a matrix for each slice of time, or by one for all."""

    def __init__(self, weights: Weights, patch: int, width: int) -> None:
        self.features, self.width = 3 * patch * patch, width
        if "patch_embed.weight" in weights:
            self.matrices = [weights.need("patch_embed.weight", patch, patch, FRAMES, 3 * width)]
        else:
            names = (
                ("patch_embd.weight", "patch_embd_0.weight"),
                ("patch_embd.weight.1", "patch_embd_1.weight"),
            )
            self.matrices = [
                weights.need(name, patch, patch, 3, width, or_else=[other]) for name, other in names
            ]
        self.bias = weights.maybe("patch_embd.bias", width, or_else=["patch_embed.bias"])

    def __call__(self, ctx: Context, inputs: EncoderInputs, merge: int, order: Order = EVERY) -> Tensor:
        """(width, patches) in the encoder's order."""
        parts = []
        for n, matrix in enumerate(self.matrices):
            frame = None if len(self.matrices) == 1 else n
            leaf = inputs.leaf(f"patches.{n}", partial(_patches, merge=merge, order=order, frame=frame))
            parts.append(matrix.reshape(ctx, leaf.dim(0), self.width).mulmat(ctx, leaf))
        x = parts[0] if len(parts) == 1 else parts[0].add(ctx, parts[1])
        return x if self.bias is None else x.add(ctx, self.bias)


def _patches(pictures: Pictures, merge: int, order: Order, frame: int | None) -> Pixels:
    """(patches, features) of one slice of time or of all, in the encoder's order."""
    pixels = stack_pixels(pictures)
    apart = pixels.reshape(len(pictures), -1, merge**2, 3, FRAMES, pixels.shape[1] // 3 // FRAMES)
    chosen = apart if frame is None else apart[..., frame, :]
    return chosen[:, order].reshape(len(pixels), -1)


def patch_coordinates(picture: Prepared, merge: int, order: Order = EVERY) -> NDArray[np.int64]:
    """(2, patches): the row and the column of each patch, in the encoder's order."""
    _, rows, columns = picture.grid
    return square_coordinates(rows, columns, merge)[:, order].reshape(2, -1)


def square_coordinates(rows: int, columns: int, merge: int) -> NDArray[np.int64]:
    """(2, squares, patches of a square): the row and the column of each patch of a grid."""
    grid = np.indices((rows, columns)).reshape(2, rows // merge, merge, columns // merge, merge)
    return grid.transpose(0, 1, 3, 2, 4).reshape(2, -1, merge**2)


def rotary_positions(pictures: Pictures, merge: int, order: Order = EVERY) -> NDArray[np.int32]:
    return rope_axes(np.tile(patch_coordinates(pictures[0], merge, order), len(pictures)))


def rope_axes(coordinates: NDArray[np.int64]) -> NDArray[np.int32]:
    """The row of each patch, then its column, then nothing for the two components that the op ignores."""
    return np.concatenate([coordinates, np.zeros_like(coordinates)]).ravel().astype(np.int32)


def rotate(ctx: Context, x: Tensor, positions: Tensor, base: float, factors: Tensor | None = None) -> Tensor:
    """(head, heads, patches), the first half of the pairs by the patch's row, the others by its column."""
    half = x.dim(0) // 2
    sections = (half // 2, half // 2, 0, 0)
    return x.rope(ctx, positions, half, base, 1.0, "vision", factors=factors, sections=sections)


@final
class PatchMerger:
    """Squares of patches to rows, by two products; the norm is that of a patch or, with `whole`, of a square."""

    def __init__(
        self,
        weights: Weights,
        names: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
        widths: tuple[int, int, int],
        eps: float,
        *,
        root: bool = False,
        whole: bool = False,
    ) -> None:
        """names    of the norm and both matrices
        widths   of a patch, of a square, and of a row
        """
        norm, into, out = names
        patch, square, row = widths
        self.square, self.whole = square, whole
        self.norm = Norm(weights, norm, square if whole else patch, eps, root=root)
        self.product = TwoLayerPerceptron(
            weights, (first_present(weights, *into), first_present(weights, *out)), (square, square, row)
        )

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        """(patch, patches) to (row, squares)"""
        if self.whole:
            x = self.norm(ctx, x.reshape(ctx, self.square, -1))
        else:
            x = self.norm(ctx, x).reshape(ctx, self.square, -1)
        return self.product(ctx, x)
