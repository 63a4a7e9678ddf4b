"""The layout of an operand in memory: a leaf with other elements around it, and the views that lead to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from backbay import Backend, Context, DType, Level, Op, Spec, Tensor, ops

from ..numbers.encoding import Array, decode, opposite, stored_shape, stored_slice

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LayoutStep:
    """From a tensor of shape `source` to one of `shape`: `trace` on tensors, and its inverse `embed` on arrays."""

    name: str
    source: Shape
    shape: Shape
    embed: Callable[[Array], Array]
    trace: Callable[[Context, Tensor], Tensor]
    code: str  # source text of `trace`, after the dot
    merge_shared: Callable[[Array], Array] = lambda raw: raw  # makes elements that share memory equal
    made_of: DType | None = None  # the source's type, if it is another
    needs: Op[Any, Any] | None = None  # the op that makes the data, which a backend may lack
    makes: bool = False  # another op makes the data
    optional: Op[Any, Any] | None = None  # the op without which the backend leaves the step out

    def is_traced(self, backend: Backend, source: Spec) -> bool:
        return self.optional is None or runs(backend, self.optional, source)


@dataclass(frozen=True)
class Layout:
    """The steps from a leaf to an operand, the leaf's own first."""

    steps: tuple[LayoutStep, ...] = ()

    def embed(self, raw: Array) -> Array:
        """The leaf's elements, from the operand's."""
        for step in reversed(self.steps):
            raw = step.embed(raw)
        return np.ascontiguousarray(raw)

    def merge_shared(self, raw: Array) -> Array:
        """The operand's elements, made equal where they share memory."""
        return self.steps[-1].merge_shared(raw) if self.steps else raw

    def trace(self, ctx: Context, leaf: Tensor) -> Tensor:
        for step in self.steps:
            if step.is_traced(ctx.backend, leaf):
                leaf = step.trace(ctx, leaf)
        return leaf

    def code(self, backend: Backend, dtype: DType) -> str:
        """The source text of `trace` for a leaf of a dtype, after the leaf."""
        traced = (step for step in self.steps if step.is_traced(backend, Spec(dtype, step.source)))
        return "".join(f".{step.code}" for step in traced)

    def __str__(self) -> str:
        return " > ".join(step.name for step in self.steps) or "contiguous"


def runs(backend: Backend, op: Op[Any, Any], *operands: Spec) -> bool:
    """Whether the backend runs an auxiliary op, which lays out operands or reads results."""
    return backend.supports(op, operands).level is not Level.NONE


def junk(dtype: DType, raw: Array, shape: Shape) -> Array:
    """Stored elements that no kernel may read: NaN, and integers out of range."""
    full = np.empty(shape, raw.dtype)
    full.view(np.uint8)[...] = 0x7F if dtype.is_integer else 0xFF
    return full


def permuted(dtype: DType, shape: Shape, axes: Shape) -> LayoutStep:
    """Dimension i of the source becomes dimension axes[i]."""
    rank = len(shape)
    source = tuple(shape[axis] for axis in axes)
    order = [0] * rank
    for i, axis in enumerate(axes):
        order[rank - 1 - i] = rank - 1 - axis
    return LayoutStep(
        f"permute{axes}",
        source,
        shape,
        lambda raw: raw.transpose(order),
        lambda ctx, x: x.permute(ctx, *axes),
        f"permute(ctx, {', '.join(map(str, axes))})",
    )


def gaps(dtype: DType, shape: Shape, before: Shape, behind: Shape) -> LayoutStep:
    """A view into a contiguous tensor that is larger in every dimension."""
    source = tuple(n + a + b for n, a, b in zip(shape, before, behind, strict=True))
    inside = tuple(stored_slice(dtype, n, a, a + shape[n]) for n, a in reversed(list(enumerate(before))))

    def embed(raw: Array) -> Array:
        whole = junk(dtype, raw, stored_shape(dtype, source))
        whole[inside] = raw
        return whole

    spec = Spec(dtype, source)
    steps = [spec.stride(n) for n in range(len(shape))]
    counts = (before[0] // dtype.block_size, *before[1:])
    offset = 0 if 0 in shape else sum(count * step for count, step in zip(counts, steps, strict=True))
    return LayoutStep(
        f"view{before}{behind}",
        source,
        shape,
        embed,
        lambda ctx, x: x.view(ctx, offset, shape, steps[1:]),
        f"view(ctx, {offset}, {shape}, {tuple(steps[1:])})",
    )


def sliced(dtype: DType, shape: Shape, dim: int, low: int, step: int) -> LayoutStep:
    """Every step-th element of a dimension, from `low` on."""
    high = low + shape[dim] * step
    source = tuple(high if n == dim else extent for n, extent in enumerate(shape))
    axis = len(shape) - 1 - dim
    inside = stored_slice(dtype, dim, low, high, step)

    def embed(raw: Array) -> Array:
        whole = junk(dtype, raw, stored_shape(dtype, source))
        whole[(slice(None),) * axis + (inside,)] = raw
        return whole

    return LayoutStep(
        f"slice({dim},{low},{high},{step})",
        source,
        shape,
        embed,
        lambda ctx, x: x.slice(ctx, dim, low, high, step),
        f"slice(ctx, {dim}, {low}, {high}, {step})",
    )


def duplicated(dtype: DType, shape: Shape) -> LayoutStep:
    """A computed tensor instead of a leaf, if the backend can copy."""

    def trace(ctx: Context, x: Tensor) -> Tensor:
        return x.duplicate(ctx)

    code = "duplicate(ctx)"
    return LayoutStep(
        "duplicate", shape, shape, lambda raw: raw, trace, code, makes=True, optional=ops.contiguous
    )


def negated(dtype: DType, shape: Shape) -> LayoutStep:
    """The negative of a leaf."""

    def embed(raw: Array) -> Array:
        return opposite(raw, dtype)

    def trace(ctx: Context, x: Tensor) -> Tensor:
        return x.neg(ctx)

    return LayoutStep("neg", shape, shape, embed, trace, "neg(ctx)", needs=ops.neg, makes=True)


def widened(dtype: DType, shape: Shape) -> LayoutStep:
    """A cast of a leaf of f32."""

    def embed(raw: Array) -> Array:
        return decode(raw, dtype).astype(np.float32)

    def trace(ctx: Context, x: Tensor) -> Tensor:
        return x.cast(ctx, dtype)

    return LayoutStep(
        "cast",
        shape,
        shape,
        embed,
        trace,
        f"cast(ctx, {dtype!r})",
        made_of=DType.F32,
        needs=ops.cast,
        makes=True,
    )


def zeros_around(dtype: DType, shape: Shape, before: Shape, behind: Shape) -> LayoutStep:
    """A leaf with zeros around it."""
    source = tuple(n - a - b for n, a, b in zip(shape, before, behind, strict=True))
    inside = tuple(slice(a, a + n) for n, a in zip(reversed(source), reversed(before), strict=True))
    amounts = [amount for pair in zip(before, behind, strict=True) for amount in pair]

    def merge_shared(raw: Array) -> Array:
        whole = np.zeros_like(raw)
        whole[inside] = raw[inside]
        return whole

    return LayoutStep(
        f"pad{before}{behind}",
        source,
        shape,
        lambda raw: raw[inside],
        lambda ctx, x: x.pad_ext(ctx, *amounts),
        f"pad_ext(ctx, {', '.join(map(str, amounts))})",
        merge_shared,
        needs=ops.pad_ext,
        makes=True,
    )


def repeated(dtype: DType, shape: Shape, dim: int) -> LayoutStep:
    """A view with stride 0 in one dimension, not the first: all its elements are copies of the first."""
    source = tuple(1 if n == dim else extent for n, extent in enumerate(shape))
    spec, axis = Spec(dtype, source), len(shape) - 1 - dim
    steps = tuple(0 if n == dim else spec.stride(n) for n in range(1, len(shape)))
    return LayoutStep(
        f"repeat({dim})",
        source,
        shape,
        lambda raw: np.take(raw, [0], axis),
        lambda ctx, x: x.view(ctx, 0, shape, steps),
        f"view(ctx, 0, {shape}, {steps})",
        lambda raw: np.ascontiguousarray(np.broadcast_to(np.take(raw, [0], axis), raw.shape)),
    )


def found(shape: Shape, count: int, *, largest: bool) -> LayoutStep:
    """Ids below `count` that the graph finds itself: the places of the largest or smallest keys of each row.

    The ids differ along dimension 0. Those of argsort are a view with gaps if there are fewer ids than keys.
    """
    used, source = shape[0], (count, *shape[1:])

    def embed(raw: Array) -> Array:
        ranks = np.full(source[::-1], used, np.float32)
        np.put_along_axis(ranks, raw.astype(np.int64), np.arange(used, dtype=np.float32), -1)
        ranks += np.where(ranks == used, np.arange(count, dtype=np.float32), 0)
        return -ranks if largest else ranks

    def trace(ctx: Context, x: Tensor) -> Tensor:
        return x.top_k(ctx, used) if largest else x.argsort(ctx).slice(ctx, 0, 0, used)

    code = f"top_k(ctx, {used})" if largest else f"argsort(ctx).slice(ctx, 0, 0, {used})"
    name = "top_k" if largest else "argsort"
    return LayoutStep(name, source, shape, embed, trace, code, made_of=DType.F32)
