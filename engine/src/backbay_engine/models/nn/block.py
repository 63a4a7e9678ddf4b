"""The block of most decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from backbay import Context, Tensor

from ..batch import Batch
from .attention import Attention
from .rope import Rope

Module: TypeAlias = Callable[[Context, Tensor], Tensor]


@final
@dataclass(frozen=True)
class Block:
    """y = x + attention(norm(x)); the result is y + feed_forward(norm(y))."""

    attention_norm: Module
    attention: Attention
    feed_forward_norm: Module
    feed_forward: Module

    @property
    def rope(self) -> Rope:
        return self.attention.rope

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        a = self.attention(ctx, layer, self.attention_norm(ctx, x), batch, last=last)
        x = batch.select(ctx, x) if last else x
        x = batch.tap(f"blk.{layer}.attention", x.add(ctx, a))
        return x.add(ctx, self.feed_forward(ctx, self.feed_forward_norm(ctx, x)))
