"""The block of most decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

from backbay import Context, Tensor

from ..batch import Batch
from ..keys import WIDTH
from .norm import LayerNorm, RMSNorm
from .rope import Rope
from .weights import Weights

Module: TypeAlias = Callable[[Context, Tensor], Tensor]


class Mixer(Protocol):
    """Attention, or another part that gives a token what it needs of earlier ones."""

    @property
    def rope(self) -> Rope | None:
        """The rotary embedding of the keys in the cache; None if there is none."""
        ...

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        """(width, tokens); with `last`, only the outputs, (width, outputs)."""
        ...


@final
@dataclass(frozen=True)
class Block:
    """y = x + attention(norm(x)); the result is y + feed_forward(norm(y)).

    Some models norm the results of attention and feed-forward, instead or too, and some scale these results.
    """

    attention_norm: Module | None
    attention: Mixer
    feed_forward_norm: Module | None
    feed_forward: Module
    after_attention: Module | None = None
    after_feed_forward: Module | None = None
    residual_scale: float = 1.0

    @property
    def rope(self) -> Rope | None:
        return self.attention.rope

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        h = x if self.attention_norm is None else self.attention_norm(ctx, x)
        a = self.attention(ctx, layer, h, batch, last=last)
        x = batch.select(ctx, x) if last else x
        x = batch.tap(f"blk.{layer}.attention", self._joined(ctx, x, a, self.after_attention))
        h = x if self.feed_forward_norm is None else self.feed_forward_norm(ctx, x)
        return self._joined(ctx, x, self.feed_forward(ctx, h), self.after_feed_forward)

    def _joined(self, ctx: Context, x: Tensor, branch: Tensor, norm: Module | None) -> Tensor:
        branch = branch if norm is None else norm(ctx, branch)
        return x.add(ctx, branch if self.residual_scale == 1 else branch.scale(ctx, self.residual_scale))


def build_block(
    weights: Weights,
    attention: Mixer,
    feed_forward: Module,
    *,
    norm: type[RMSNorm | LayerNorm] = RMSNorm,
    second: str = "ffn_norm",
    after: bool = False,
    residual_scale: float = 1.0,
) -> Block:
    """A block with a norm before each branch, and with `after` also behind each.

    second  the name of the norm before the feed-forward
    """
    width = WIDTH.of(weights.config)
    return Block(
        norm(weights, "attn_norm", width),
        attention,
        norm(weights, second, width),
        feed_forward,
        norm(weights, "post_attention_norm", width) if after else None,
        norm(weights, "post_ffw_norm", width) if after else None,
        residual_scale,
    )


@final
@dataclass(frozen=True)
class ParallelBlock:
    """x + attention(norm(x)) + feed_forward(norm(x))"""

    norm: Module
    attention: Mixer
    feed_forward: Module

    @property
    def rope(self) -> Rope | None:
        return self.attention.rope

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        h = self.norm(ctx, x)
        a = self.attention(ctx, layer, h, batch, last=last)
        x, h = (batch.select(ctx, each) if last else each for each in (x, h))
        return x.add(ctx, a).add(ctx, self.feed_forward(ctx, h))
