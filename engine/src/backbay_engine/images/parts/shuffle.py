"""Pixel shuffle: squares of features become the channels of one."""

from __future__ import annotations

from backbay import Context, Tensor


def shuffled(ctx: Context, x: Tensor, side: int, factor: int) -> Tensor:
    """(width, side * side * squares) to (width * factor * factor, rows): the features of a square row by row."""
    width, few = x.dim(0), side // factor
    x = x.reshape(
        ctx, width * factor, few, factor, -1
    )  # (features of a line, columns, lines, rows of all squares)
    return x.permute(ctx, 0, 2, 1, 3).contiguous(ctx).reshape(ctx, width * factor**2, -1)
