"""Llama 4, with experts: blocks that attend within chunks, between blocks that know no positions and see everything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, Tensor
from backbay.gguf import flag, number, whole

from ....cache.attention.causal import CausalCache
from ....cache.contract import Cache
from ....cache.layered import LayeredCache
from ....steps.step import Step
from ... import nn
from ...batch import Batch
from ...decoder import Decoder
from ...keys import EXPERTS, RMS_EPSILON, WINDOW

CHUNK = whole("attention.chunk_size", 1)
FLOOR = number("attention.floor_scale", most=1e9, above=0)
NORMED = flag("use_qk_norm")
DEFAULT_CHUNK = DEFAULT_FLOOR = 8192
GROWTH = 0.1  # of queries' temperature
EVERY = 4  # of so many blocks, the last knows no positions
UNNORMED = 128  # experts of the model that does not norm queries and keys, in files that do not say


@final
class Llama4(Decoder):
    """A window of 0 means that all blocks know positions, and see everything."""

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer, feeds=False)
        rope = None
        if self.chunked(layer) or not self.mixed:
            rope = nn.Rope(self.config, shape, "normal", factors=nn.Factors.of(weights, shape))
        return nn.build_block(here, Llama4Attention(here, shape, rope), self._feed_forward(here, shape))

    @property
    def mixed(self) -> bool:
        """Whether blocks differ."""
        return WINDOW.of(self.config, DEFAULT_CHUNK) > 0

    def chunked(self, layer: int) -> bool:
        """Whether a block attends within chunks."""
        return self.mixed and (layer + 1) % EVERY != 0

    def _feed_forward(self, weights: nn.Weights, shape: nn.Shape) -> nn.Experts | nn.GatedFeedForward:
        """Keys of the hidden widths mean others in Ollama's files: the tensors tell."""
        if "ffn_up.weight" in weights and "ffn_gate_inp.weight" not in weights:
            return nn.GatedFeedForward(
                weights, replace(shape, hidden=weights.extent("ffn_up.weight", 1) or 1)
            )
        own = replace(shape, hidden=weights.extent("ffn_up_exps.weight", 1) or 1)
        routing = nn.Routing.of(self.config, own, gating=nn.Gating.SIGMOID, normalized=False)
        return nn.Experts(weights, own, routing=routing, weighs_inputs=True)

    def new_cache(self) -> Cache:
        if not self.mixed:
            return CausalCache(self.shift)
        chunk = CHUNK.of(self.config, DEFAULT_CHUNK)
        caches = [CausalCache(self.shift), CausalCache(self.shift, chunk=chunk)]
        return LayeredCache(caches, kind=lambda layer: int(self.chunked(layer)))


@final
class Llama4Attention:
    """Queries and keys are normed after their rotation; without positions, queries grow with theirs."""

    def __init__(self, weights: nn.Weights, shape: nn.Shape, rope: nn.Rope | None) -> None:
        config = weights.config
        self.rope, self.scale = rope, shape.head**-0.5
        normed = NORMED.of(config, EXPERTS.of(config, 0) != UNNORMED)
        self.eps = RMS_EPSILON.of(config) if normed else None
        self.floor = FLOOR.of(config, DEFAULT_FLOOR)
        self.project = nn.Projection(weights, shape)
        self.output = nn.Linear(weights, "attn_output", shape.heads * shape.value_head, shape.width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        q, k, v = self.project(ctx, x)
        if self.rope is not None:
            q, k = (self._turned(ctx, t, batch) for t in (q, k))
        else:
            q = q.mul(ctx, batch.input("temperature", partial(_temperature, floor=self.floor)))
        a = nn.attend(ctx, layer, q, k, v, batch.cache, self.scale).reshape(ctx, -1, batch.size)
        return self.output(ctx, batch.select(ctx, a) if last else a)

    def _turned(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        assert self.rope is not None
        x = self.rope(ctx, x, batch.positions)
        return x if self.eps is None else x.rms_norm(ctx, eps=self.eps)


def _temperature(step: Step, floor: float) -> NDArray[np.float32]:
    """The growth of each token's query, (tokens, 1, 1): a logarithm of its position, in steps."""
    steps = np.floor((step.positions + np.float32(1)) / np.float32(floor))
    growth: NDArray[np.float32] = np.log1p(steps) * np.float32(GROWTH) + np.float32(1)
    return growth.reshape(-1, 1, 1)
