"""The parts that recurrent blocks share: their states in the cache, and convolutions over the last tokens."""

from __future__ import annotations

from typing import final

from backbay import BackbayError, Context, Tensor

from ....cache import BoundLayeredCache, BoundRecurrentCache
from ...batch import Batch
from ..weights import FLOATS, Weights


def states_of(batch: Batch, layer: int) -> BoundRecurrentCache:
    """The states of the step's sequences in a layer."""
    cache = batch.cache
    held = cache.of(layer) if isinstance(cache, BoundLayeredCache) else cache
    if not isinstance(held, BoundRecurrentCache):
        raise BackbayError(
            "this model keeps a state of earlier tokens: its steps need the cache of new_cache()"
        )
    return held


def heads_of(ctx: Context, x: Tensor, first: int, size: int, heads: int) -> Tensor:
    """A view of some channels of (channels, tokens, sequences), from the first on: (size, heads, tokens, sequences)."""
    unit = x.stride(0)
    shape = (size, heads, x.dim(1), x.dim(2))
    return x.view(ctx, first * unit, shape, (size * unit, x.stride(1), x.stride(2)))


@final
class CausalConvolution:
    """A convolution of each channel over a token and the `taps` - 1 tokens before it, plus a bias if the file has one."""

    def __init__(self, weights: Weights, name: str, taps: int, channels: int) -> None:
        self.taps = taps
        self.weight = weights.need(f"{name}.weight", taps, channels, dtypes=FLOATS)
        self.bias = weights.maybe(f"{name}.bias", channels)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch) -> Tensor:
        """(channels, tokens) to (channels, tokens of each sequence, sequences)"""
        window = states_of(batch, layer).convolved(ctx, layer, x, self.taps)
        y = window.ssm_conv(ctx, self.weight)
        return y if self.bias is None else y.add(ctx, self.bias)
