"""Attention over latent vectors: keys and values of all heads are products of one short vector for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from backbay import Context, Tensor

from ...cache.contract import BoundCache
from ..batch import Batch
from ..keys import LATENT, OWN_KEY_LENGTH, OWN_VALUE_LENGTH, QUERY_LATENT, ROTATED
from .attention import attend
from .linear import Linear
from .norm import RMSNorm
from .rope import Rope
from .shape import Shape
from .weights import Weights


@final
@dataclass(frozen=True)
class LatentOperands:
    """What the forms of latent attention share: a key begins with its rotated part, which all heads share."""

    fixed: Tensor  # (fixed, heads, tokens), the part of the queries that is not rotated
    turned: Tensor  # (rotated, heads, tokens)
    latent: Tensor  # (latent, tokens)
    key: Tensor  # (rotated, 1, tokens)


@final
class LatentAttention:
    """Multi-head latent attention, in the form that the file's tensors allow.

    absorbed  attn_k_b and attn_v_b: queries are multiplied instead of keys, and results instead of values, so that
              the cache holds one latent vector for each token
    plain     attn_kv_b, in older files: the cache holds keys and values of all heads

    A moving cache rotates the begin of a key again.
    """

    def __init__(self, weights: Weights, shape: Shape, rope: Rope | None, *, scale: float) -> None:
        config, width = weights.config, shape.width
        self.rope, self.scale, self.heads = rope, scale, shape.heads
        self.latent, self.rotated = LATENT.of(config), ROTATED.of(config)
        self.head, self.value_head = head_lengths(weights, shape)
        self.fixed = self.head - self.rotated
        if self.fixed < 1:
            raise ROTATED.refuse(config, f"less than {self.head}, the length of a head,")
        self.compress, self.query_norm = None, None
        rows, inputs, name = self.heads * self.head, width, "attn_q"
        if "attn_q.weight" not in weights:
            inputs, name = QUERY_LATENT.of(config), "attn_q_b"
            self.compress = Linear(weights, "attn_q_a", width, inputs)
            self.query_norm = RMSNorm(weights, "attn_q_a_norm", inputs)
        self.query = Linear(weights, name, inputs, rows)
        self.key_value = Linear(weights, "attn_kv_a_mqa", width, self.latent + self.rotated)
        self.norm = RMSNorm(weights, "attn_kv_a_norm", self.latent)
        self.both = self.keys = self.values = None
        if "attn_kv_b.weight" in weights and "attn_k_b.weight" not in weights:
            outputs = self.heads * (self.fixed + self.value_head)
            self.both = Linear(weights, "attn_kv_b", self.latent, outputs)
        else:
            self.keys = weights.need("attn_k_b.weight", self.fixed, self.latent, self.heads)
            self.values = weights.need("attn_v_b.weight", self.latent, self.value_head, self.heads)
        self.output = Linear(weights, "attn_output", self.heads * self.value_head, width)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        """(width, tokens); with `last`, only the outputs, (width, outputs)."""
        tokens = x.dim(1)
        q = x
        if self.compress is not None and self.query_norm is not None:
            q = self.query_norm(ctx, self.compress(ctx, x))
        q = self.query(ctx, q).reshape(ctx, self.head, self.heads, tokens)
        fixed, turned = (part.contiguous(ctx) for part in q.chunk_sections(ctx, 0, self.fixed, self.rotated))
        halves = self.key_value(ctx, x).chunk_sections(ctx, 0, self.latent, self.rotated)
        latent, key = (part.contiguous(ctx) for part in halves)
        latent, key = self.norm(ctx, latent), key.reshape(ctx, self.rotated, 1, tokens)
        if self.rope is not None:
            turned, key = (self.rope(ctx, part, batch.positions) for part in (turned, key))
        parts = LatentOperands(fixed, turned, latent, key)
        if self.keys is not None and self.values is not None:
            a = attend_absorbed(ctx, layer, parts, self.keys, self.values, batch.cache, self.scale)
        else:
            assert self.both is not None
            both = self.both(ctx, latent).reshape(ctx, -1, self.heads, tokens)
            a = attend_plain(ctx, layer, parts, both, batch.cache, self.scale)
        a = a.reshape(ctx, -1, tokens)
        return self.output(ctx, batch.select(ctx, a) if last else a)


def attend_absorbed(
    ctx: Context,
    layer: int,
    parts: LatentOperands,
    keys: Tensor,
    values: Tensor,
    cache: BoundCache | None,
    scale: float,
) -> Tensor:
    """The heads attend to the latent vectors, whose end of each key is its value too.

    keys is (fixed, latent, heads), values (latent, value_head, heads).
    """
    by_head = parts.fixed.permute(ctx, 0, 2, 1).contiguous(ctx)  # (fixed, tokens, heads)
    absorbed = keys.mulmat(ctx, by_head).permute(ctx, 0, 2, 1).contiguous(ctx)  # (latent, heads, tokens)
    latent, rotated = parts.latent.dim(0), parts.key.dim(0)
    vectors = parts.latent.reshape(ctx, latent, 1, parts.latent.dim(1))
    q, k = parts.turned.concat(ctx, absorbed, 0), parts.key.concat(ctx, vectors, 0)
    value = k.slice(ctx, 0, rotated, rotated + latent)
    return attend(ctx, layer, q, k, value, cache, scale, vmla=values)


def attend_plain(
    ctx: Context, layer: int, parts: LatentOperands, both: Tensor, cache: BoundCache | None, scale: float
) -> Tensor:
    """The heads attend to keys and values of their own; both is (fixed + value_head, heads, tokens)."""
    fixed = parts.fixed.dim(0)
    own, value = (part.contiguous(ctx) for part in both.chunk_sections(ctx, 0, fixed, both.dim(0) - fixed))
    k = parts.key.repeat(ctx, 1, both.dim(1)).concat(ctx, own, 0)
    return attend(ctx, layer, parts.turned.concat(ctx, parts.fixed, 0), k, value, cache, scale)


def head_lengths(weights: Weights, shape: Shape) -> tuple[int, int]:
    """The lengths of a head's key and value; files with attn_k_b have other numbers under the usual keys."""
    config = weights.config
    return OWN_KEY_LENGTH.of(config, shape.head), OWN_VALUE_LENGTH.of(config, shape.value_head)
