"""LFM 2, and LFM 2 with experts: short convolutions between blocks with attention."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor
from backbay.gguf import whole

from ...batch import Batch
from ...hybrid import HybridDecoder
from ...nn import (
    Attention,
    Block,
    CausalConvolution,
    Linear,
    Rope,
    Shape,
    Weights,
    attends,
    build_block,
    feed_forward_of,
)

TAPS = whole("shortconv.l_cache", 1, 1 << 10)


@final
class ShortConvolution:
    """A convolution over the last few tokens, with a gate before it and one after it."""

    rope = None

    def __init__(self, weights: Weights, width: int, taps: int) -> None:
        self.width = width
        self.enter = Linear(weights, "shortconv.in_proj", width, 3 * width)
        self.convolution = CausalConvolution(weights, "shortconv.conv", taps, width)
        self.leave = Linear(weights, "shortconv.out_proj", width, width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        before, after, x = self.enter(ctx, x).chunk(ctx, 0, self.width)
        y = self.convolution(ctx, layer, before.mul(ctx, x), batch).reshape(ctx, self.width, -1)
        y = after.mul(ctx, y)
        return self.leave(ctx, batch.select(ctx, y) if last else y)


@final
class Lfm2(HybridDecoder):
    """Each head's query and key has a norm."""

    norm_name = "token_embd_norm"

    def recurs(self, layer: int) -> bool:
        return not attends(self.config, layer)

    def block(self, weights: Weights, layer: int) -> Block:
        here = weights.at(f"blk.{layer}.")
        mixer: Attention | ShortConvolution
        if self.recurs(layer):
            mixer = ShortConvolution(here, self.width, TAPS.of(self.config))
        else:
            shape = Shape.of(self.config, layer)
            mixer = Attention(here, shape, Rope(self.config, shape, "neox"), norms=True)
        return build_block(here, mixer, feed_forward_of(here, layer))
