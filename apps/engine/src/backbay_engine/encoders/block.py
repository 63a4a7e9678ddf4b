"""The block of encoders, its norms and its feed-forward, and attention among the positions of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from backbay import Context, Tensor

from ..models.nn import Activation, GatedFeedForward, Linear, Module, Projection, Weights
from ..models.nn.feed_forward import gelu_erf
from .shape import EncoderShape, first_present

Attend: TypeAlias = Callable[[Context, Tensor, Tensor, Tensor], Tensor]
"""Attention of queries over keys and values, (head, heads, positions) of each."""

Triple: TypeAlias = tuple[Tensor, Tensor, Tensor]

SCORES = 128 << 20  # bytes of scores at a time; more queries are taken one tile after the other
LEAST = 64  # queries of a tile
TOGETHER = 512  # positions; groups up to this size are attended together

FIRST_NORM = ("ln1", "layer_norm1", "attn_norm", "norm1")
SECOND_NORM = ("ln2", "layer_norm2", "ffn_norm", "norm2", "attn_post_norm")


@final
class Norm:
    """A layer norm, or, with `root`, x / sqrt(mean(x^2)); times a weight, and plus a bias if the file has one.

    names   the name that the file has is taken
    """

    def __init__(
        self, weights: Weights, names: tuple[str, ...], width: int, eps: float, *, root: bool = False
    ) -> None:
        name = first_present(weights, *names)
        self.weight = weights.need(f"{name}.weight", width)
        self.bias = None if root else weights.maybe(f"{name}.bias", width)
        self.eps, self.root = eps, root

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        if self.root:
            return x.rms_norm(ctx, self.weight, eps=self.eps)
        return x.layer_norm(ctx, self.weight, self.bias, eps=self.eps)


@final
class TwoLayerPerceptron:
    """second(activation(first(x)))

    names    of both matrices
    widths   of what goes in, of what is between, which None leaves to the file, and of what comes out
    """

    def __init__(
        self,
        weights: Weights,
        names: tuple[str, str],
        widths: tuple[int, int | None, int],
        activation: Activation = gelu_erf,
    ) -> None:
        width, between, out = widths
        between = between or weights.extent(f"{names[0]}.weight", 1)
        self.first = Linear(weights, names[0], width, between)
        self.second = Linear(weights, names[1], between or 1, out)
        self.activation = activation

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return self.second(ctx, self.activation(ctx, self.first(ctx, x)))


def _feed_forward(weights: Weights, shape: EncoderShape, activation: Activation) -> TwoLayerPerceptron:
    """The feed-forward of a block. Old files call the first matrix ffn_down; their shapes tell."""
    first = first_present(weights, "ffn_up", "mlp.fc1", "mlp.linear_fc1")
    second = first_present(weights, "ffn_down", "mlp.fc2", "mlp.linear_fc2")
    if shape.width != shape.hidden and weights.extent("ffn_down.weight", 0) == shape.width:
        first, second = second, first
    return TwoLayerPerceptron(weights, (first, second), (shape.width, shape.hidden, shape.width), activation)


@final
class TowerBlock:
    """x + attention(norm(x)), then y + feed_forward(norm(y)); gates multiply what is added, if the block has them.

    activation  of the feed-forward; None: it has a gate, and the norms take no mean away, as in Llama
    """

    def __init__(
        self, weights: Weights, shape: EncoderShape, activation: Activation | None, *, gated: bool = False
    ) -> None:
        width, root = shape.width, activation is None
        self.first_norm = Norm(weights, FIRST_NORM, width, shape.eps, root=root)
        self.second_norm = Norm(weights, SECOND_NORM, width, shape.eps, root=root)
        self.project = Projection(weights, shape.attention)
        self.output = Linear(weights, first_present(weights, "attn_out", "attn_output"), width, width)
        self.feed_forward: Module = (
            GatedFeedForward(weights, shape.attention)
            if activation is None
            else _feed_forward(weights, shape, activation)
        )
        self.attention_gate = weights.need("attn_gate", 1) if gated else None
        self.feed_forward_gate = weights.need("ffn_gate", 1) if gated else None

    def __call__(self, ctx: Context, x: Tensor, attend: Attend) -> Tensor:
        """(width, positions)"""
        q, k, v = self.project(ctx, self.first_norm(ctx, x))
        a = self.output(ctx, attend(ctx, q, k, v).reshape(ctx, *x.shape))
        x = x.add(ctx, a if self.attention_gate is None else a.mul(ctx, self.attention_gate))
        h = self.feed_forward(ctx, self.second_norm(ctx, x))
        return x.add(ctx, h if self.feed_forward_gate is None else h.mul(ctx, self.feed_forward_gate))


@dataclass(frozen=True)
class AttentionGroups:
    """Consecutive groups of positions, all of one size; a position sees its group alone."""

    size: int
    count: int


def attend(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, groups: Sequence[AttentionGroups], scale: float
) -> Tensor:
    """Attention within groups, which cover all positions in their order; (head, heads, positions) of each."""
    found, start = [], 0
    for each in groups:
        end = start + each.size * each.count
        part = slice_positions(ctx, (q, k, v), 2, start, end) if end - start < q.dim(2) else (q, k, v)
        found.append(_within(ctx, *part, each, scale))
        start = end
    return concatenate_pairwise(ctx, found, 2)


def _within(ctx: Context, q: Tensor, k: Tensor, v: Tensor, groups: AttentionGroups, scale: float) -> Tensor:
    if groups.count == 1:
        return attend_in_tiles(ctx, q, k, v, scale)
    if groups.size > TOGETHER:
        return attend(ctx, q, k, v, [AttentionGroups(groups.size, 1)] * groups.count, scale)
    head, heads, positions = q.shape
    q, k, v = (t.contiguous(ctx).reshape(ctx, head, heads, groups.size, groups.count) for t in (q, k, v))
    each = 4 * heads * groups.size**2
    found = []
    for low, high in _ranges(groups.count, max(1, SCORES // each)):
        part = (q, k, v) if high - low == groups.count else slice_positions(ctx, (q, k, v), 3, low, high)
        found.append(part[0].scaled_dot_product_attention(ctx, part[1], part[2], scale=scale))
    return concatenate_pairwise(ctx, found, 3).reshape(ctx, head, heads, positions)


def slice_positions(ctx: Context, parts: Triple, dim: int, low: int, high: int) -> Triple:
    """The same range of queries, keys and values."""
    q, k, v = (each.slice(ctx, dim, low, high, 1) for each in parts)
    return q, k, v


def attend_in_tiles(ctx: Context, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """All queries see all keys; tiles of queries, so that no backend holds all scores of thousands of positions."""
    each = 4 * q.dim(1) * k.dim(2)
    found = []
    for low, high in _ranges(q.dim(2), max(LEAST, SCORES // each)):
        part = q if high - low == q.dim(2) else q.slice(ctx, 2, low, high, 1)
        found.append(part.scaled_dot_product_attention(ctx, k, v, scale=scale))
    return concatenate_pairwise(ctx, found, 2)


def concatenate_pairwise(ctx: Context, parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenated in pairs, so that no part is copied more often than the logarithm of their number."""
    while len(parts) > 1:
        pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
        parts = [pair[0] if len(pair) == 1 else pair[0].concat(ctx, pair[1], dim) for pair in pairs]
    return parts[0]


def _ranges(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of nearly equal length, of at most `most`, that cover `count`."""
    pieces = -(-count // most)
    for n in range(pieces):
        yield count * n // pieces, count * (n + 1) // pieces
