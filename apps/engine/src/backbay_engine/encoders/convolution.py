"""Convolutions of encoders over planes whose channels lie innermost."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor

from ..models.nn import Weights
from .shape import as_f32

SIDE = 3  # of a kernel


@final
class DepthwiseConvolution:
    """Kernels of three by three over a border of zeros; a sum of nine products, so that channels stay innermost."""

    def __init__(self, weights: Weights, name: str, width: int, stride: int = 1) -> None:
        full = weights.extent(f"{name}.weight", 3) == width  # llama.cpp's scripts drop dimensions of 1
        self.weight = weights.need(f"{name}.weight", SIDE, SIDE, *([1] if full else []), width)
        self.bias = weights.maybe(f"{name}.bias", width)
        self.width, self.stride = width, stride

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        """(width, columns, rows, pictures)"""
        kernels = (
            as_f32(ctx, self.weight).reshape(ctx, SIDE**2, self.width).permute(ctx, 1, 0).contiguous(ctx)
        )
        columns, rows = x.dim(1), x.dim(2)
        x = x.pad_ext(ctx, 0, 0, 1, 1, 1, 1)
        found = None
        for n in range(SIDE**2):
            row, column = divmod(n, SIDE)
            part = x.slice(ctx, 1, column, column + columns, self.stride)
            part = part.slice(ctx, 2, row, row + rows, self.stride)
            product = part.mul(ctx, kernels.slice(ctx, 1, n, n + 1, 1).reshape(ctx, self.width))
            found = product if found is None else found.add(ctx, product)
        assert found is not None
        return found if self.bias is None else found.add(ctx, self.bias)
