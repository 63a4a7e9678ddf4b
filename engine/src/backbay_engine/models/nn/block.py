"""The block of most decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

from backbay import Context, Tensor

from ..batch import Batch
from .rope import Rope

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
    """y = x + attention(norm(x)); the result is y + feed_forward(norm(y))."""

    attention_norm: Module
    attention: Mixer
    feed_forward_norm: Module
    feed_forward: Module

    @property
    def rope(self) -> Rope | None:
        return self.attention.rope

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        a = self.attention(ctx, layer, self.attention_norm(ctx, x), batch, last=last)
        x = batch.select(ctx, x) if last else x
        x = batch.tap(f"blk.{layer}.attention", x.add(ctx, a))
        return x.add(ctx, self.feed_forward(ctx, self.feed_forward_norm(ctx, x)))
