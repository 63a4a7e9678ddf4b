"""Nodes of graphs as ops of the contract, as ONNX and PyTorch share them. Axes count from the outermost dimension."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

from backbay import DType, Op, Tensor, ops
from backbay.internals import same_shape

from .graph_tracer import GraphTracer, GraphValue, Lowering, require


def unary(op: Op[Any, Any]) -> Lowering:
    return lambda g, x: g.op(op, x)


def binary(op: Op[Any, Any]) -> Lowering:
    def lower(g: GraphTracer, a: GraphValue, b: GraphValue | float, *, alpha: float = 1) -> Tensor:
        require(alpha == 1, "alpha")
        other = b if isinstance(b, GraphValue) else GraphValue(a.dtype, (), True, [b])
        if op is ops.mul and len(a.numbers or ()) == 1:
            a, other = other, a
        if op in (ops.mul, ops.div) and len(other.numbers or ()) == 1 and any(other.numbers or ()):
            factor = float(numbers(other)[0])
            return g.op(ops.scale, a, factor if op is ops.mul else 1 / factor)
        x, y = g.tensor(a), g.tensor(other)
        shape = np.broadcast_shapes(a.extents, other.extents)
        if op in (ops.add, ops.mul) and not same_shape(x.shape, shape[::-1]):
            x, y = y, x
        for part, gate in ((x, y), (y, x)):
            if op is ops.mul and gate.op is ops.sigmoid and gate.args[0] is part:
                return g.op(ops.silu, part)
        return g.op(op, repeated(g, x, shape), y)

    return lower


def repeated(g: GraphTracer, x: Tensor, shape: Sequence[int]) -> Tensor:
    return x if same_shape(x.shape, shape[::-1]) else g.op(ops.repeat_4d, x, *shape[::-1])


def numbers(value: GraphValue | float | Sequence[float]) -> list[Any]:
    """The numbers of an argument that is no data."""
    if isinstance(value, GraphValue):
        require(value.numbers is not None, "computed numbers")
        return value.numbers or []
    return list(value) if isinstance(value, Sequence) else [value]


def power(g: GraphTracer, x: GraphValue, exponent: GraphValue | float) -> Tensor:
    wanted = numbers(exponent)
    require(wanted in ([0.5], [2], [3]), "exponent")
    root = g.op(ops.sqrt if wanted == [0.5] else ops.sqr, x)
    return g.op(ops.mul, root, x) if wanted == [3] else root


def reciprocal(g: GraphTracer, x: GraphValue | Tensor) -> Tensor:
    return g.op(ops.div, g.op(ops.fill, x, 1.0), x)


def clamp(
    g: GraphTracer,
    x: GraphValue,
    min: GraphValue | float | None = None,
    max: GraphValue | float | None = None,
) -> Tensor:
    low, high = (end if one is None else float(numbers(one)[0]) for one, end in ((min, -inf), (max, inf)))
    return g.op(ops.clamp, x, low, high)


def gelu(g: GraphTracer, x: GraphValue, *, approximate: str = "none") -> Tensor:
    return g.op(ops.gelu if approximate == "tanh" else ops.gelu_erf, x)


# -- products --------------------------------------------------------------------------------------------


def turned(g: GraphTracer, x: GraphValue) -> Tensor:
    """x with its two innermost dimensions exchanged: a view; a constant lies so before the first call."""
    *outer, rows, columns = (1, *x.extents)[-max(2, len(x.extents)) :]
    if x.constant:
        return g.leaf(x.dtype, (*outer, columns, rows))
    return g.op(ops.permute, x, 1, 0, 2, 3)


def product(g: GraphTracer, w: Tensor, x: Tensor) -> Tensor:
    """mulmat, with x repeated where w has more matrices."""
    batch = [max(w.dim(n), x.dim(n)) for n in (3, 2)]
    return g.op(ops.mulmat, w, repeated(g, x, (*batch, x.dim(1), x.dim(0))))


def matmul(g: GraphTracer, a: GraphValue, b: GraphValue) -> Tensor:
    if len(b.extents) > 1:
        return product(g, turned(g, b), g.tensor(a))
    return g.reshaped(product(g, g.tensor(b), g.tensor(a)), a.extents[:-1])


def linear(g: GraphTracer, x: GraphValue, weight: GraphValue, bias: GraphValue | None = None) -> Tensor:
    y = product(g, g.tensor(weight), g.tensor(x))
    return y if bias is None else g.op(ops.add, y, bias)


def attention(
    g: GraphTracer,
    query: GraphValue,
    key: GraphValue,
    value: GraphValue,
    mask: GraphValue | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention over (batch, heads, tokens, head_dim). For a mask of truth values stand the numbers that it adds."""
    require(dropout == 0, "dropout")
    require(len(query.extents) == 4, "dimensions")
    q, k, v = (g.op(ops.permute, one, 0, 2, 1, 3) for one in (query, key, value))
    if is_causal:
        mask = GraphValue(DType.F32, (q.dim(2), k.dim(2)))
    elif mask is not None and mask.dtype == "bool":
        mask = GraphValue(DType.F32, mask.extents)
    y = g.op(ops.scaled_dot_product_attention, q, k, v, mask, scale=scale or q.dim(0) ** -0.5)
    return g.op(ops.permute, y, 0, 2, 1, 3)


def convolution(
    g: GraphTracer,
    x: GraphValue,
    weight: GraphValue,
    bias: GraphValue | None,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> Tensor:
    """A convolution over one or two axes, with as much padding before each axis as behind it."""
    axes = len(x.extents) - 2
    require(axes in (1, 2), f"{axes} axes")
    windows = [*strides, *pads, *dilations][::-1]  # reversed, for dimensions
    data, kernel = g.tensor(x), g.tensor(weight)
    if axes == 1:  # of height 1
        data, kernel = (g.reshaped(one, (*one.shape[:0:-1], 1, one.dim(0))) for one in (data, kernel))
        windows = [part for n, one in enumerate(windows) for part in (one, int(n != 1))]
    gaps, before, steps = windows[:2], windows[2:4], windows[4:]
    y = g.op(ops.conv2d, kernel, data, *steps, *before, *gaps)
    if axes == 1:
        y = g.reshaped(y, (*y.shape[:1:-1], y.dim(0)))
    return y if bias is None else g.op(ops.add, y, _per_channel(g, bias, axes))


def _per_channel(g: GraphTracer, x: GraphValue, axes: int) -> Tensor:
    return g.reshaped(g.tensor(x), (*x.extents, *[1] * axes))


def batch_norm(g: GraphTracer, x: GraphValue, weight: GraphValue) -> Tensor:
    """The norm of inference: a factor and a summand for each channel, both known before the first call."""
    channel = _per_channel(g, weight, len(x.extents) - 2)
    return g.op(ops.add, g.op(ops.mul, x, channel), channel)


# -- rows ------------------------------------------------------------------------------------------------


def innermost(x: GraphValue, axis: int) -> GraphValue:
    """The value itself; UnmappedNodeError unless the axis is its innermost one."""
    require(x.dim(axis) == 0, "axis")
    return x


def softmax(g: GraphTracer, x: GraphValue, axis: int = -1, _: object = None) -> Tensor:
    return g.op(ops.softmax, innermost(x, axis))


def reduced(op: Op[Any, Any]) -> Lowering:
    def lower(
        g: GraphTracer,
        x: GraphValue,
        axes: GraphValue | Sequence[int] | None = None,
        keepdims: bool = False,
        *,
        dtype: object = None,
    ) -> Tensor:
        rank, rows = len(x.extents), g.tensor(x)
        inner = sorted({x.dim(axis) for axis in (numbers(axes) if axes else range(rank))})
        order = inner + [n for n in range(rank) if n not in inner]
        if order != list(range(rank)):
            rows = g.op(ops.permute, rows, *[order.index(n) for n in range(rank)])
        outer = rows.shape[: len(inner) - 1 : -1] if len(inner) < rank else ()
        y = g.op(op, g.reshaped(rows, (*outer, prod(rows.shape[: len(inner)]))))
        kept = [1 if rank - 1 - axis in inner else extent for axis, extent in enumerate(x.extents)]
        return g.reshaped(y, kept if keepdims else outer)

    return lower


# -- places ----------------------------------------------------------------------------------------------


def same(g: GraphTracer, x: GraphValue, *_: Any, **__: Any) -> Tensor:
    """x itself; the tracer casts it, if the result has another dtype."""
    return g.tensor(x)


def reshape(g: GraphTracer, x: GraphValue, *_: Any, results: Sequence[GraphValue], **__: Any) -> Tensor:
    return g.reshaped(g.tensor(x), results[0].extents)


def expand(g: GraphTracer, x: GraphValue, *_: Any, results: Sequence[GraphValue], **__: Any) -> Tensor:
    return repeated(g, g.tensor(x), results[0].extents)


def split(
    g: GraphTracer,
    x: GraphValue,
    _: object = None,
    axis: int = 0,
    *,
    num_outputs: int = 0,
    results: Sequence[GraphValue],
) -> list[Tensor]:
    return g.tensor(x).chunk_sections(g.ctx, x.dim(axis), *[one.extents[axis] for one in results])


def transposed(g: GraphTracer, x: GraphValue, perm: Sequence[int] | None = None) -> Tensor:
    """Axis i of the result is axis perm[i] of x; without perm, the axes are reversed."""
    rank = len(x.extents)
    order = {x.dim(axis): rank - 1 - i for i, axis in enumerate(range(rank)[::-1] if perm is None else perm)}
    return g.op(ops.permute, x, *[order[n] for n in range(rank)])


def sliced(
    g: GraphTracer, x: GraphValue | Tensor, dim: int, low: int | None, high: int | None, step: int = 1
) -> Tensor:
    require(step > 0, "step")
    whole = g.tensor(x) if isinstance(x, GraphValue) else x
    low, high, step = slice(low, high, step).indices(whole.dim(dim))
    return g.op(ops.slice, whole, dim, low, max(low, high), step)


def selected(g: GraphTracer, x: GraphValue, axis: int, index: int) -> Tensor:
    """One index of an axis, which is dropped."""
    dropped = x.dim(axis)
    place = index % max(1, x.extents[axis])
    one = sliced(g, x, dropped, place, place + 1)
    return g.reshaped(one, [n for i, n in enumerate(x.extents) if x.dim(i) != dropped])


def concat(g: GraphTracer, parts: Sequence[GraphValue], axis: int = 0) -> Tensor:
    y = g.tensor(parts[0])
    for part in parts[1:]:
        y = g.op(ops.concat, y, part, parts[0].dim(axis))
    return y


def rows(g: GraphTracer, x: GraphValue, ids: GraphValue, axis: int = 0) -> Tensor:
    """Rows by ids; a single index that is known is a view."""
    if not ids.extents and ids.numbers:
        return selected(g, x, axis, int(ids.numbers[0]))
    require(x.dim(axis) == len(x.extents) - 1, "axis")
    table = g.reshaped(g.tensor(x), (x.extents[0], prod(x.extents[1:])))
    y = g.op(ops.rows, table, g.leaf(DType.I32, (prod(ids.extents),)))
    return g.reshaped(y, (*ids.extents, *x.extents[1:]))


ALIKE = ops.neg, ops.sqrt, ops.exp, ops.sin, ops.cos, ops.tanh, ops.sigmoid, ops.relu, ops.softplus, ops.silu
SHARED: dict[str, Lowering] = {
    **{op.name: unary(op) for op in ALIKE},
    **{op.name: binary(op) for op in (ops.add, ops.sub, ops.mul, ops.div)},
    **dict.fromkeys(("reshape", "flatten", "squeeze", "unsqueeze"), reshape),
    **dict.fromkeys(("expand", "tile"), expand),
    **dict.fromkeys(("identity", "dropout", "cast"), same),
    "pow": power,
    "reciprocal": reciprocal,
    "gelu": gelu,
    "matmul": matmul,
    "softmax": softmax,
    "split": split,
}
"""By the name in lower case, which ONNX and PyTorch give alike."""
