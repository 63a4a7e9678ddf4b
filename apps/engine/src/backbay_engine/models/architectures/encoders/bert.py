"""BERT and its relatives, for vectors of texts, not normalized, and for scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, final

import numpy as np

from backbay import Backend, Context, Tensor
from backbay.gguf import text

from ....cache.uncached_attention import Reach
from ... import keys, nn
from ...bases import Encoder
from ...batch import Batch

PATTERN = 3  # of three blocks of ModernBERT in a row, the first sees the whole text
ACTIVATION = text("hidden_activation")


@final
class PostNormBlock:
    """A norm after the attention and one after the feed-forward; some files have a second one after the attention."""

    def __init__(
        self, weights: nn.Weights, width: int, attention: nn.Attention, feed_forward: nn.Module
    ) -> None:
        self.attention, self.feed_forward = attention, feed_forward
        self.attention_norm = nn.LayerNorm(weights, "attn_output_norm", width)
        self.second_norm = None
        if "attn_norm_2.weight" in weights:
            self.second_norm = nn.LayerNorm(weights, "attn_norm_2", width)
        self.feed_forward_norm = nn.LayerNorm(weights, "layer_output_norm", width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch) -> Tensor:
        y = self.attention_norm(ctx, x.add(ctx, self.attention(ctx, layer, x, batch)))
        if self.second_norm is not None:
            y = self.second_norm(ctx, y.add(ctx, x))
        return self.feed_forward_norm(ctx, y.add(ctx, self.feed_forward(ctx, y)))


class Bert(Encoder):
    """Learned positions; a feed-forward without a gate."""

    learns_positions: ClassVar[bool] = True
    pooling: ClassVar[nn.Pooling] = nn.Pooling.NONE
    head_activation: ClassVar[nn.ActivationName] = "tanh"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.config, weights = backend.config, nn.Weights(backend)
        self.shape = nn.Shape.of(self.config)
        width = self.shape.width
        self._vocabulary = weights.extent("token_embd.weight", 1)
        self.embedding = nn.Embedding(weights, "token_embd", width)
        self.positions = nn.Positions(weights, width) if self.learns_positions else None
        self.types = nn.Embedding(weights, "token_types", width) if "token_types.weight" in weights else None
        self.norm = nn.LayerNorm(weights, "token_embd_norm", width)
        self.blocks = [self.block(weights.at(f"blk.{n}."), n) for n in range(nn.block_count(self.config))]
        self.declare(weights)
        self.head = nn.TextHead(weights, width, self.pooling, self.head_activation)
        weights.check()
        if self.positions is not None:
            self.positions.check()

    def block(self, weights: nn.Weights, layer: int) -> Callable[[Context, int, Tensor, Batch], Tensor]:
        attention = nn.Attention(weights, self.shape, None)
        return PostNormBlock(weights, self.shape.width, attention, nn.FeedForward(weights, self.shape))

    def declare(self, weights: nn.Weights) -> None:
        """Declare further tensors."""

    @property
    def vocabulary_size(self) -> int:
        return self._vocabulary or 0

    @property
    def row_widths(self) -> tuple[int, ...]:
        return (self.shape.width,)

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def fit(self, context: int) -> None:
        if self.positions is not None:
            self.positions.fit(context)

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = batch.tap("embedding", self.embed(ctx.input(), batch))
        for layer, block in enumerate(self.blocks):
            x = batch.tap(f"blk.{layer}", block(ctx.layer(layer), layer, x, batch))
        return x

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        """The sum of the embeddings of token, position and type; the type is always the first."""
        x = batch.mix(ctx, self.embedding(ctx, batch.tokens))
        if self.positions is not None:
            x = x.add(ctx, self.positions(ctx, batch.positions))
        if self.types is not None:
            first = batch.input("type", lambda _: np.zeros(1, np.int32))
            x = x.add(ctx, self.types(ctx, first))
        return self.norm(ctx, x)


@final
class NomicBert(Bert):
    """Rotary positions; gated feed-forwards, or plain ones and experts in the architecture nomic-bert-moe."""

    learns_positions = False

    def block(self, weights: nn.Weights, layer: int) -> PostNormBlock:
        attention = nn.Attention(weights, self.shape, nn.Rope(self.config, self.shape, "neox"))
        return PostNormBlock(weights, self.shape.width, attention, self.feed_forward(weights))

    def feed_forward(self, weights: nn.Weights) -> nn.Module:
        shape = self.shape
        if "ffn_gate_inp.weight" in weights:
            routing = nn.Routing(shape.experts, shape.used_experts, normalized=False)
            return nn.Experts(weights, shape, nn.ACTIVATIONS["gelu_erf"], routing=routing, gated=False)
        if self.config.architecture == "nomic-bert":
            return nn.GatedFeedForward(weights, shape)
        return nn.FeedForward(weights, shape)


@final
class JinaBert(Bert):
    """Scores shrink with the distance, for each head by another slope."""

    learns_positions = False

    def block(self, weights: nn.Weights, layer: int) -> PostNormBlock:
        shape = self.shape
        normed = "attn_q_norm.weight" in weights
        attention = nn.Attention(weights, shape, None, norms="joint" if normed else False, norm=nn.LayerNorm)
        return PostNormBlock(weights, shape.width, attention, nn.GatedFeedForward(weights, shape, "gelu_erf"))

    def reach(self, layer: int) -> Reach:
        return Reach(slopes=alibi_slopes(self.shape.heads))


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """ALiBi's slopes: 2^-8/n, 2^-16/n ... for n heads, a power of two; further heads get those between."""
    whole = 1 << (heads.bit_length() - 1)
    main = [2 ** (-8 * (n + 1) / whole) for n in range(whole)]
    between = [2 ** (-4 * (2 * n + 1) / whole) for n in range(heads - whole)]
    return tuple(main + between)


@final
class ModernBert(Bert):
    """Norms before each branch; most blocks have a window, and a rotary base of their own."""

    learns_positions = False
    pooling = nn.Pooling.MEAN
    head_activation = "gelu_erf"

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        config, shape = self.config, nn.Shape.of(self.config, layer)
        base = keys.WINDOW_BASE.of(config, None) if self.window(layer) else None
        silu = ACTIVATION.of(config, "gelu") == "silu"
        return nn.Block(
            nn.LayerNorm(weights, "attn_norm", shape.width) if "attn_norm.weight" in weights else None,
            nn.Attention(weights, shape, nn.Rope(config, shape, "neox", base=base)),
            nn.LayerNorm(weights, "ffn_norm", shape.width),
            nn.GatedFeedForward(weights, shape, "silu" if silu else "gelu_erf"),
        )

    def declare(self, weights: nn.Weights) -> None:
        self.last_norm = nn.LayerNorm(weights, "output_norm", self.shape.width)

    def window(self, layer: int) -> int | None:
        """The width of a block's window; None if it sees the whole text."""
        pattern = keys.WINDOW_PATTERN.of(self.config, PATTERN)
        return keys.WINDOW.of(self.config, 0) or None if pattern and layer % pattern else None

    def reach(self, layer: int) -> Reach:
        return Reach(window=self.window(layer))

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.last_norm(ctx.layer(self.layers), super().hidden(ctx, batch))
