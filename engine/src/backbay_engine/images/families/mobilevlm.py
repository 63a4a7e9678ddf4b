"""MobileVLM 1 and 2: CLIP over one square, and a projector of convolutions that makes a row of four patches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import final

import numpy as np

from backbay import Backend, Context, Tensor

from ...models.nn import Linear, Weights
from ...text.tokenizers import Tokenizer
from ..contract import Network, Placed, VisionFamily, in_place, stand_in
from ..inputs import Inputs
from ..parts import Clip, Norm
from ..parts.block import gelu_erf
from ..parts.depthwise import Depthwise
from ..parts.shape import CLIP, colours, grid_of
from ..preparations import CentreCrop
from ..prepared import Prepared

FIRST, SECOND = ("mm.model.mlp.1", "mm.model.mlp.3"), ("mm.model.mlp.0", "mm.model.mlp.2")  # of both versions
BLOCKS = ("mm.model.mb_block.1.block.", "mm.model.mb_block.2.block.")


@final
class MobileVLM(VisionFamily):
    """A projector file."""

    placeholder = marker = "<image>"

    def prepares(self) -> CentreCrop:
        self.side, self.patch = grid_of(self.config)
        self.grid = self.side // self.patch
        self.names = SECOND if "mm.model.peg.0.weight" in self.file.tensors else FIRST
        mean, deviation = colours(self.config, CLIP)
        few = self.grid // 2 if self.names is SECOND else -(-self.grid // 2)
        return CentreCrop(size=self.side, tokens=few**2, mean=mean, std=deviation)

    @property
    def width(self) -> int:
        return self.extent(1, f"{self.names[1]}.weight")

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> Placed:
        return in_place(stand_in(tokenizer, "<image>"), picture.tokens)

    def patches(self, picture: Prepared) -> int:
        return self.grid**2 + 1

    def key(self, picture: Prepared) -> Hashable:
        return ()

    def network(self, backend: Backend) -> Network:
        return _Network(self, backend)


@final
class _Network(Clip):
    def __init__(self, family: MobileVLM, backend: Backend) -> None:
        weights = Weights(backend)
        super().__init__(weights, backend, family.patch, family.grid**2)
        self.family = family
        into, out = family.names
        self.into = Linear(weights, into, self.width, family.width)
        self.out = Linear(weights, out, family.width, family.width)
        eps = self.shape.eps
        self.convolutions = (
            [_Squeezing(weights.at(name), family.width, eps, stride) for stride, name in enumerate(BLOCKS, 1)]
            if family.names is FIRST
            else []
        )
        self.encoding = None if self.convolutions else Depthwise(weights, "mm.model.peg.0", family.width)
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
        x = self.out(ctx, gelu_erf(ctx, self.into(ctx, self.features(ctx, x))))
        side, width = self.family.grid, self.family.width
        x = x.reshape(ctx, width, side, side, inputs.count)
        if self.encoding is not None:
            x = _pooled(ctx, x)
            x = x.add(ctx, self.encoding(ctx, x))
        for convolution in self.convolutions:
            x = convolution(ctx, x, inputs)
        return x.reshape(ctx, width, -1)


@final
class _Squeezing:
    """A convolution of each channel, a gate of each channel by its mean, and a product; the first adds its input."""

    def __init__(self, weights: Weights, width: int, eps: float, stride: int) -> None:
        self.stride = stride
        self.convolution = Depthwise(weights, "0.0", width, stride)
        self.first_norm, self.last_norm = (Norm(weights, (name,), width, eps) for name in ("0.1", "2.1"))
        few = weights.extent("1.fc1.weight", 1)
        self.into, self.out = Linear(weights, "1.fc1", width, few), Linear(weights, "1.fc2", few or 1, width)
        self.product = Linear(weights, "2.0", width, width)

    def __call__(self, ctx: Context, x: Tensor, inputs: Inputs) -> Tensor:
        """(width, columns, rows, pictures)"""
        three = inputs.leaf("three", lambda _: np.full(1, 3, np.float32))
        y = self.first_norm(ctx, self.convolution(ctx, x))
        y = y.mul(ctx, _hard_sigmoid(ctx, y, three))
        width, columns, rows, count = y.shape
        means = y.reshape(ctx, width, columns * rows, count).permute(ctx, 1, 0, 2).contiguous(ctx).mean(ctx)
        gate = self.out(ctx, self.into(ctx, means.reshape(ctx, width, count)).relu(ctx))
        y = y.mul(ctx, _hard_sigmoid(ctx, gate, three).reshape(ctx, width, 1, 1, count))
        y = self.product(ctx, y.reshape(ctx, width, -1)).reshape(ctx, width, columns, rows, count)
        y = self.last_norm(ctx, y)
        return y if self.stride > 1 else x.add(ctx, y)


def _hard_sigmoid(ctx: Context, x: Tensor, three: Tensor) -> Tensor:
    return x.add(ctx, three).clamp(ctx, 0.0, 6.0).scale(ctx, 1 / 6)


def _pooled(ctx: Context, x: Tensor) -> Tensor:
    """The means of squares of two by two features; (width, columns, rows, pictures)."""
    planes = x.permute(ctx, 2, 0, 1, 3).contiguous(ctx)
    return planes.avg_pool2d(ctx, 2, 2).permute(ctx, 1, 2, 0, 3).contiguous(ctx)
