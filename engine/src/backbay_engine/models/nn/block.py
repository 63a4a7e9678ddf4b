"""The block of most decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

from backbay import Context, Tensor

from ..batch import Batch
from .norm import RMSNorm
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

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        h = x if self.attention_norm is None else self.attention_norm(ctx, x)
        a = self.attention(ctx, layer, h, batch, last=last)
        x = batch.select(ctx, x) if last else x
        x = batch.tap(f"blk.{layer}.attention", self._joined(ctx, x, a, self.after_attention))
        h = x if self.feed_forward_norm is None else self.feed_forward_norm(ctx, x)
        return self._joined(ctx, x, self.feed_forward(ctx, h), self.after_feed_forward)

    def _joined(self, ctx: Context, x: Tensor, branch: Tensor, norm: Module | None) -> Tensor:
        branch = branch if norm is None else norm(ctx, branch)
        return x.add(ctx, branch if self.residual_scale == 1 else branch.scale(ctx, self.residual_scale))


def sandwich(weights: Weights, width: int, attention: Mixer, feed_forward: Module) -> Block:
    """The block with norms before and after each branch."""
    return Block(
        RMSNorm(weights, "attn_norm", width),
        attention,
        RMSNorm(weights, "ffn_norm", width),
        feed_forward,
        RMSNorm(weights, "post_attention_norm", width),
        RMSNorm(weights, "post_ffw_norm", width),
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
