"""ModernBERT."""

from __future__ import annotations

from typing import Final, final

from backbay import Backend, Context, Tensor
from backbay.gguf import text

from ....cache.step_only import Reach
from ... import keys
from ...batch import Batch
from ...encoder import Encoder
from ...nn import (
    ActivationName,
    Attention,
    Block,
    Embedding,
    GatedFeedForward,
    LayerNorm,
    Pooling,
    Rope,
    Shape,
    TextHead,
    Weights,
    block_count,
)

PATTERN = 3  # of three blocks in a row, the first sees the whole text
ACTIVATION = text("hidden_activation")


@final
class ModernBert(Encoder):
    """Norms before each branch; most blocks have a window, and a rotary base of their own."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.config, weights = backend.config, Weights(backend)
        width = Shape.of(self.config).width
        self.window = keys.WINDOW.of(self.config, 0)
        self.pattern = keys.WINDOW_PATTERN.of(self.config, PATTERN)
        self.gate: Final[ActivationName] = (
            "silu" if ACTIVATION.of(self.config, "gelu") == "silu" else "gelu_erf"
        )
        self._vocabulary = weights.extent("token_embd.weight", 1)
        self.embedding = Embedding(weights, "token_embd", width)
        self.embedding_norm = LayerNorm(weights, "token_embd_norm", width)
        self.blocks = [self.block(weights.at(f"blk.{n}."), n) for n in range(block_count(self.config))]
        self.norm = LayerNorm(weights, "output_norm", width)
        self.head = TextHead(weights, width, Pooling.MEAN, "gelu_erf")
        weights.check()

    def block(self, weights: Weights, layer: int) -> Block:
        config, shape = self.config, Shape.of(self.config, layer)
        base = keys.WINDOW_BASE.of(config, None) if self.slides(layer) else None
        return Block(
            LayerNorm(weights, "attn_norm", shape.width) if "attn_norm.weight" in weights else None,
            Attention(weights, shape, Rope(config, shape, "neox", base=base)),
            LayerNorm(weights, "ffn_norm", shape.width),
            GatedFeedForward(weights, shape, self.gate),
        )

    def slides(self, layer: int) -> bool:
        """Whether a block has a window."""
        return bool(self.window and self.pattern and layer % self.pattern)

    @property
    def vocabulary_size(self) -> int:
        return self._vocabulary or 0

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def reach(self, layer: int) -> Reach:
        return Reach(window=self.window if self.slides(layer) else None)

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        host = ctx.input()
        x = self.embedding_norm(host, self.embedding(host, batch.tokens))
        x = batch.tap("embedding", x)
        for layer, block in enumerate(self.blocks):
            x = batch.tap(f"blk.{layer}", block(ctx.layer(layer), layer, x, batch, last=False))
        return self.norm(ctx.layer(len(self.blocks)), x)
