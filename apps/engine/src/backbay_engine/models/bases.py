"""The frames of models: decoders, which predict the next token, and models of whole texts."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import ClassVar, Protocol, final

from backbay import Backend, Context, Tensor

from ..cache.attention.causal import CausalCache
from ..cache.contract import Cache
from ..cache.layered import LayeredCache
from ..cache.recurrent import RecurrentCache
from ..cache.uncached_attention import Reach, UncachedAttention
from .batch import Batch
from .contract import Model
from .keys import POOLING, WIDTH
from .nn import Embedding, Linear, Pooling, RMSNorm, Rope, TextHead, Weights, block_count, sliding_layers
from .nn.block import Module


class DecoderBlock(Protocol):
    """A block of a decoder."""

    @property
    def rope(self) -> Rope | None:
        """The rotary embedding of the keys in the cache; None: the keys know no positions."""
        ...

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        """(width, tokens) to (width, tokens); the last block gives only the outputs, (width, outputs)."""
        ...


class Decoder(Model):
    """An embedding, blocks with causal attention, a norm and a head; the head may share the embedding's weight."""

    window_pattern: ClassVar[int | None] = None
    """N: of N blocks in a row, all but the last see only a window, unless metadata say otherwise; None: no windows."""

    causal: ClassVar[bool] = True
    """False: tokens see later ones too, so that only whole texts can be served."""

    norm_name: ClassVar[str] = "output_norm"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        weights = Weights(backend)
        self.config = backend.config
        self.window, self.slides = sliding_layers(self.config, self.window_pattern)
        self.width = WIDTH.of(self.config)
        self._embedded = weights.extent("token_embd.weight", 1)
        self._vocabulary = self.predicted(weights)
        self.embedding = Embedding(weights, "token_embd", self.width)
        self.blocks = [self.block(weights, layer) for layer in range(block_count(self.config))]
        self.norm = self.final_norm(weights)
        self.head = Linear(weights, "output", self.width, self._vocabulary, or_else=("token_embd",))
        self.declare(weights)
        pools = not self.causal or POOLING.of(self.config, Pooling.NONE) != Pooling.NONE
        self.text_head = TextHead(weights, self.width, Pooling.MEAN) if pools else None
        weights.check()

    @abstractmethod
    def block(self, weights: Weights, layer: int) -> DecoderBlock:
        """Declare the tensors of a block."""

    def declare(self, weights: Weights) -> None:
        """Declare tensors beside those of the embedding, the blocks, the norm and the head."""

    def final_norm(self, weights: Weights) -> Module:
        """Declare the norm before the head."""
        return RMSNorm(weights, self.norm_name, self.width)

    def predicted(self, weights: Weights) -> int | None:
        """The number of token ids that have a logit: all that have an embedding."""
        return weights.extent("token_embd.weight", 1)

    @property
    def embedded(self) -> int:
        return self._embedded or 0

    @property
    def vocabulary_size(self) -> int:
        return self._vocabulary or 0

    @property
    def row_widths(self) -> tuple[int, ...]:
        return (self.width,)

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        x, last = self.features(ctx, batch, every=self.keeps_rows), ctx.layer(len(self.blocks))
        return batch.tap("logits", self.score(last, batch.select(last, x) if self.keeps_rows else x))

    def features(self, ctx: Context, batch: Batch, *, every: bool = False) -> Tensor:
        """The vectors before the head, (width, outputs); with `every`, those of all tokens."""
        host = ctx.input()
        x = self.begin(host, batch.tap("embedding", batch.mix(host, self.embed(host, batch))), batch)
        count = len(self.blocks)
        for layer, block in enumerate(self.blocks):
            x = block(ctx.layer(layer), layer, x, batch, last=layer == count - 1 and not every)
            batch.tap(f"blk.{layer}", x)
        x = self.end(ctx.layer(count), x, batch, every=every)
        return batch.tap("output_norm", self.norm(ctx.layer(count), x))

    def begin(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        """What the first block gets, of the embeddings; by default these."""
        return x

    def end(self, ctx: Context, x: Tensor, batch: Batch, *, every: bool) -> Tensor:
        """What the last norm gets, (width, outputs) or with `every` (width, tokens), of the last block's result."""
        return x

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        """The embeddings of the tokens, (width, tokens)."""
        return self.embedding(ctx, batch.tokens)

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        """The logits of (width, outputs)."""
        return self.head(ctx, x)

    def fit(self, context: int) -> None:
        for block in self.blocks:
            if block.rope is not None:
                block.rope.fit(context)

    def shift(self, ctx: Context, layer: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys to other positions; the cache calls it to move them."""
        rope = self.blocks[layer].rope
        return keys if rope is None else rope.shift(ctx, keys, offsets)

    def new_cache(self) -> Cache:
        """One cache for all blocks; with windows, a second one for the blocks that have them."""
        if not any(self.slides):
            return CausalCache(self.shift)
        caches = [CausalCache(self.shift), CausalCache(self.shift, window=self.window)]
        return LayeredCache(caches, kind=lambda layer: int(self.slides[layer]))


class HybridDecoder(Decoder):
    """A decoder whose blocks say whether they keep states, in `recurs`; the others keep keys and values."""

    def __init__(self, backend: Backend) -> None:
        if POOLING.of(backend.config, Pooling.NONE) != Pooling.NONE:
            raise POOLING.refuse(backend.config, "none (0): a recurrent model gives no vectors of texts")
        super().__init__(backend)

    def recurs(self, layer: int) -> bool:
        """Whether a block keeps states; by default all do."""
        return True

    def new_cache(self) -> Cache:
        recurrent = [self.recurs(layer) for layer in range(len(self.blocks))]
        if all(recurrent):
            return RecurrentCache()
        return LayeredCache([CausalCache(self.shift), RecurrentCache()], lambda layer: int(recurrent[layer]))


class Encoder(Model):
    """Attention within each text of the step; `reach` says how far, `hidden` gives the vectors of all tokens."""

    head: TextHead

    @abstractmethod
    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        """(width, tokens)"""

    @property
    @abstractmethod
    def layers(self) -> int:
        """The number of blocks."""

    def reach(self, layer: int) -> Reach:
        """The tokens that a token sees in a block; by default those of its text."""
        return Reach()

    @property
    def ranks(self) -> bool:
        return self.head.ranks

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        config = self.backend.cache_config()

        def mask(layer: int) -> Tensor:
            reach = self.reach(layer)
            name = "mask" if reach == self.reach(0) else f"mask {reach.window}"
            fill = partial(reach.mask, padding=config.mask_batch_padding)
            return batch.input(name, fill, config.mask_dtype)

        batch.cache = UncachedAttention(config, mask)
        x = self.hidden(ctx, batch)
        return batch.tap("pooled", self.head(ctx.layer(self.layers), x, batch))


@final
class EmbeddingDecoder(Encoder):
    """A decoder whose file asks for vectors or scores of texts instead of next tokens."""

    def __init__(self, decoder: Decoder, head: TextHead) -> None:
        super().__init__(decoder.backend)
        self.decoder, self.head = decoder, head

    @property
    def vocabulary_size(self) -> int:
        return self.decoder.vocabulary_size

    @property
    def row_widths(self) -> tuple[int, ...]:
        return self.decoder.row_widths

    @property
    def layers(self) -> int:
        return len(self.decoder.blocks)

    def fit(self, context: int) -> None:
        self.decoder.fit(context)

    def reach(self, layer: int) -> Reach:
        decoder = self.decoder
        return Reach(decoder.causal, decoder.window if decoder.slides[layer] else None)

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.decoder.features(ctx, batch, every=True)
