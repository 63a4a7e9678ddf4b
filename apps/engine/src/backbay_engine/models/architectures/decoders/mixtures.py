"""Mixtures of experts by design: the DeepSeek models, GLM 4.5, gpt-oss and Llama 4."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import flag, number, whole

from ....cache.attention.causal import CausalCache
from ....cache.contract import Cache
from ....cache.layered import LayeredCache
from ....steps.step import Step
from ... import keys, nn
from ...bases import Decoder
from ...batch import Batch

ALPHA, LIMIT = 1.702, 7.0  # of gpt-oss' activation
CHUNK = whole("attention.chunk_size", 1)
FLOOR = number("attention.floor_scale", most=1e9, above=0)
NORMED = flag("use_qk_norm")
DEFAULT_CHUNK = DEFAULT_FLOOR = 8192
GROWTH = 0.1  # of queries' temperature
EVERY = 4  # of so many blocks of Llama 4, the last knows no positions
UNNORMED = 128  # experts of the model that does not norm queries and keys, in files that do not say


@final
class DeepSeek2(Decoder):
    """DeepSeek V2, V3 and R1, Kimi K2, and other models with latent attention and experts.

    The first blocks have no experts. Yarn sharpens the scores, and magnifies neither queries nor keys.
    """

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        config, shape = self.config, nn.Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        sharpness = keys.YARN_SHARPNESS.of(config, 0.0)
        rope = nn.Rope(config, shape, "normal", plain=sharpness > 0)
        head, _ = nn.head_lengths(weights, shape)
        scale = (1 + sharpness * log(1 / rope.scale)) ** 2 * head**-0.5
        gating = nn.Gating.SIGMOID if "exp_probs_b.bias" in here else nn.Gating.SOFTMAX
        experts = nn.feed_forward_of(here, layer, gating=gating, normalized=False)
        return nn.build_block(here, nn.LatentAttention(here, shape, rope, scale=scale), experts)


@final
class GptOss(Decoder):
    """Experts with biases; each head has an attention sink."""

    window_pattern = 2

    def __init__(self, backend: Backend) -> None:
        self.constants = backend.new_context()
        super().__init__(backend)

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        config, shape = self.config, nn.Shape.of(self.config, layer)
        base = keys.WINDOW_BASE.of(config, None) if self.slides[layer] else None
        rope = nn.Rope(config, shape, "neox", base=base, exact=self.constants.layer(layer))
        here = weights.at(f"blk.{layer}.")
        attention = nn.Attention(here, shape, rope, sinks=True, biased=True)
        experts = nn.Experts(here, shape, gpt_oss_activation, biased=True)
        second = "post_attention_norm" if "post_attention_norm.weight" in here else "ffn_norm"
        return nn.build_block(here, attention, experts, second=second)


def gpt_oss_activation(ctx: Context, gate: Tensor, up: Tensor) -> Tensor:
    return gate.swiglu(ctx, up, ALPHA, LIMIT)


@final
class Llama4(Decoder):
    """Blocks that attend within chunks, between blocks that know no positions and see everything.

    A window of 0 means that all blocks know positions, and see everything.
    """

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer, feeds=False)
        rope = None
        if self.chunked(layer) or not self.mixed:
            rope = nn.Rope(self.config, shape, "normal", factors=nn.Factors.of(weights, shape))
        return nn.build_block(here, Llama4Attention(here, shape, rope), self._feed_forward(here, shape))

    @property
    def mixed(self) -> bool:
        return keys.WINDOW.of(self.config, DEFAULT_CHUNK) > 0

    def chunked(self, layer: int) -> bool:
        return self.mixed and (layer + 1) % EVERY != 0

    def _feed_forward(self, weights: nn.Weights, shape: nn.Shape) -> nn.Experts | nn.GatedFeedForward:
        """Keys of the hidden widths mean others in Ollama's files: the tensors tell."""
        if "ffn_up.weight" in weights:
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
        normed = NORMED.of(config, keys.EXPERTS.of(config, 0) != UNNORMED)
        self.eps = keys.RMS_EPSILON.of(config) if normed else None
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


@final
class Glm4Moe(Decoder):
    """GLM 4.5 and 4.6: experts, routed by sigmoids; the larger models have norms of queries and keys."""

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        rope, norms = nn.Rope(self.config, shape, "neox"), "attn_q_norm.weight" in here
        experts = nn.feed_forward_of(here, layer, gating=nn.Gating.SIGMOID)
        return nn.build_block(
            here, nn.Attention(here, shape, rope, norms=norms), experts, second="post_attention_norm"
        )
