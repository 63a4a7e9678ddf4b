"""Gemma 3n: several streams of vectors, of which each block computes one and predicts the others."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, Tensor
from backbay.gguf import Key, whole

from ... import keys, nn
from ...batch import Batch
from .gemma import Gemma
from .gemma4 import BlockEmbeddingGate, BlockEmbeddings, Gemma4Attention, key_value_source

STREAMS = whole("altup.num_inputs", 2, 64)
ACTIVE = whole("altup.active_idx")


def _cuts(value: object) -> NDArray[Any] | None:
    return value if isinstance(value, np.ndarray) and value.dtype.kind == "f" else None


def _first_wrong(cuts: NDArray[Any]) -> int | None:
    wrong = np.flatnonzero(np.isnan(cuts) | (cuts > MOST))
    return int(wrong[0]) if len(wrong) else None


MOST = 100.0
SPARSITY = Key(
    "activation_sparsity_scale",
    "deviations above the mean for each block, or -infinity for none",
    _cuts,
    _first_wrong,
)


@final
class AltUp:
    """Alternating updates: the state (width, streams, tokens), of which one stream is active."""

    def __init__(self, weights: nn.Weights, width: int, count: int, active: int) -> None:
        self.count, self.active, self.width = count, active, width
        self.norm = nn.RMSNorm(weights, "altup_router_norm", width)
        self.router = nn.Linear(weights, "altup_router", width, count)
        self.predicting = nn.Linear(weights, "altup_predict_coef", count, count * count)
        self.correcting = nn.Linear(weights, "altup_correct_coef", count, count)

    def mixture(self, ctx: Context, x: Tensor) -> Tensor:
        return self.router(ctx, self.norm(ctx, x).scale(ctx, 1 / self.width)).tanh(ctx)

    def predict(self, ctx: Context, state: Tensor) -> Tensor:
        """Each stream, plus a mix of all streams."""
        mixture = self.mixture(ctx, nth_stream(ctx, state, self.active))
        mixed = self.predicting(ctx, mixture).reshape(ctx, self.count, self.count, state.dim(2))
        across = state.permute(ctx, 1, 0, 2).contiguous(ctx)  # (streams, width, tokens)
        return across.mulmat(ctx, mixed).add(ctx, state)

    def correct(self, ctx: Context, predicted: Tensor, computed: Tensor) -> Tensor:
        """Every predicted stream, moved by the error of the active one."""
        shares = self.correcting(ctx, self.mixture(ctx, computed)).reshape(ctx, 1, self.count, -1)
        error = computed.sub(ctx, nth_stream(ctx, predicted, self.active))
        errors = error.reshape(ctx, self.width, 1, -1).repeat(ctx, 1, self.count)
        return predicted.add(ctx, errors).add(ctx, errors.mul(ctx, shares))


@final
class Gemma3nBlock:
    """Attention beside a product of low rank, and a feed-forward whose gate may be sparse."""

    def __init__(
        self,
        weights: nn.Weights,
        shape: nn.Shape,
        attention: Gemma4Attention,
        streams: AltUp,
        layer_width: int,
        sparsity: float,
    ) -> None:
        width = shape.width
        self.attention, self.rope, self.streams, self.sparsity = attention, attention.rope, streams, sparsity
        self.attention_norm = nn.RMSNorm(weights, "attn_norm", width)
        self.after_attention = nn.RMSNorm(weights, "post_attention_norm", width)
        rank = weights.extent("laurel_l.weight", 1) or 1
        self.narrow = nn.Linear(weights, "laurel_l", width, rank)
        self.widen = nn.Linear(weights, "laurel_r", rank, width)
        self.after_widen = nn.RMSNorm(weights, "laurel_post_norm", width)
        self.feed_forward_norm = nn.RMSNorm(weights, "ffn_norm", width)
        self.gate = nn.Linear(weights, "ffn_gate", width, shape.hidden)
        self.up = nn.Linear(weights, "ffn_up", width, shape.hidden)
        self.down = nn.Linear(weights, "ffn_down", shape.hidden, width)
        self.after_feed_forward = nn.RMSNorm(weights, "post_ffw_norm", width)
        self.correct_scale = weights.need("altup_correct_scale.weight", width)
        self.own = BlockEmbeddingGate(weights, width, layer_width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        predicted = self.streams.predict(ctx, x)
        active = nth_stream(ctx, predicted, self.streams.active)
        computed = self.compute(ctx, active, batch)
        x = self.streams.correct(ctx, predicted, computed)
        chosen = nth_stream(ctx, x, self.streams.active).mul(ctx, self.correct_scale)
        own = self.own(ctx, layer, chosen, batch).reshape(ctx, -1, 1, batch.size)
        first, *others = x.chunk_sections(ctx, 1, 1, self.streams.count - 1)
        return first.contiguous(ctx).concat(ctx, others[0].contiguous(ctx).add(ctx, own), 1)

    def compute(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        """The active stream after attention and feed-forward, (width, tokens)."""
        h = self.attention_norm(ctx, x)
        beside = self.after_widen(ctx, self.widen(ctx, self.narrow(ctx, h))).add(ctx, h)
        a = x.add(ctx, self.after_attention(ctx, self.attention(ctx, h, batch)))
        x = a.add(ctx, beside).scale(ctx, 0.5**0.5)
        h = self.feed_forward_norm(ctx, x)
        gate = self.gate(ctx, h)
        if self.sparsity > 0:
            cut = gate.mean(ctx).add(ctx, gate.stddev(ctx).scale(ctx, self.sparsity))
            gate = gate.sub(ctx, cut).relu(ctx)
        return x.add(ctx, self.after_feed_forward(ctx, self.down(ctx, gate.gelu(ctx, self.up(ctx, h)))))


@final
class Gemma3n(Gemma):
    """The first stream is the embedding; matrices make the others of it, and one vector of all in the end."""

    window_pattern = 5

    def block(self, weights: nn.Weights, layer: int) -> Gemma3nBlock:
        config, shape = self.config, nn.Shape.of(self.config, layer)
        rope = self.local_rope(shape) if self.slides[layer] else nn.Rope(config, shape, "neox")
        here = weights.at(f"blk.{layer}.")
        self.count, self.active = STREAMS.of(config), ACTIVE.of(config, 0)
        if self.active >= self.count:
            raise ACTIVE.refuse(config, f"less than the {self.count} streams")
        scales = SPARSITY.of(config, None)
        if scales is not None and len(scales) != nn.block_count(config):
            raise SPARSITY.refuse(config, f"a number for each of the {nn.block_count(config)} blocks")
        source, owns = key_value_source(config, self.slides, layer)
        return Gemma3nBlock(
            here,
            shape,
            Gemma4Attention(here, shape, rope, source, owns=owns),
            AltUp(here, shape.width, self.count, self.active),
            keys.LAYER_WIDTH.of(config),
            0.0 if scales is None else float(scales[layer]),
        )

    def declare(self, weights: nn.Weights) -> None:
        own, square = keys.LAYER_WIDTH.of(self.config), (self.width, self.width, self.count - 1)
        self.layers = BlockEmbeddings(weights, self.width, own, len(self.blocks))
        self.spreading = weights.need("altup_proj.weight", *square)
        self.merging = weights.need("altup_unembd_proj.weight", *square)

    def begin(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        """(width, tokens) to the streams, (width, streams, tokens)."""
        self.layers(ctx, x, batch)
        state = x.reshape(ctx, self.width, 1, batch.size)
        for n in range(self.count - 1):
            made = match_magnitude(ctx, self.spreading.slice(ctx, 2, n, n + 1).mulmat(ctx, x), x)
            state = state.concat(ctx, made.reshape(ctx, self.width, 1, batch.size), 1)
        return state

    def end(self, ctx: Context, x: Tensor, batch: Batch, *, every: bool) -> Tensor:
        """The mean of the streams, brought to the size of the active one."""
        active, total = nth_stream(ctx, x, self.active), nth_stream(ctx, x, 0)
        for n in range(self.count - 1):
            made = self.merging.slice(ctx, 2, n, n + 1).mulmat(ctx, nth_stream(ctx, x, n + 1))
            total = total.add(ctx, match_magnitude(ctx, made, active))
        total = total.scale(ctx, 1 / self.count)
        return total if every else batch.select(ctx, total)


def nth_stream(ctx: Context, state: Tensor, n: int) -> Tensor:
    """(width, tokens) of (width, streams, tokens)"""
    return state.slice(ctx, 1, n, n + 1).contiguous(ctx).reshape(ctx, state.dim(0), state.dim(2))


def match_magnitude(ctx: Context, x: Tensor, model: Tensor) -> Tensor:
    """x, brought to the root mean square of the other vectors."""
    wanted, found = (each.sqr(ctx).mean(ctx).sqrt(ctx) for each in (model, x))
    return x.mul(ctx, wanted.div(ctx, found))
