"""LFM 2, and LFM 2 with experts: short convolutions between blocks with attention."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor
from backbay.gguf import whole

from ... import nn
from ...batch import Batch
from ...frames import HybridDecoder

TAPS = whole("shortconv.l_cache", 1, 1 << 10)


@final
class ShortConvolution:
    """A convolution over the last few tokens, with a gate before it and one after it."""

    rope = None

    def __init__(self, weights: nn.Weights, width: int, taps: int) -> None:
        self.width = width
        self.enter = nn.Linear(weights, "shortconv.in_proj", width, 3 * width)
        self.convolution = nn.CausalConvolution(weights, "shortconv.conv", taps, width)
        self.leave = nn.Linear(weights, "shortconv.out_proj", width, width)

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
        return not nn.attends(self.config, layer)

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here = weights.at(f"blk.{layer}.")
        mixer: nn.Attention | ShortConvolution
        if self.recurs(layer):
            mixer = ShortConvolution(here, self.width, TAPS.of(self.config))
        else:
            shape = nn.Shape.of(self.config, layer)
            mixer = nn.Attention(here, shape, nn.Rope(self.config, shape, "neox"), norms=True)
        return nn.build_block(here, mixer, nn.feed_forward_of(here, layer))
