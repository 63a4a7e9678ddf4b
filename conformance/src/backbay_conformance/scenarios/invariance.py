"""The promises that a row of a result depends on no other row, and on no number of threads, proven bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from backbay import Backend, Context, DeclaredUnsupportedError, DType, Op, Spec, Tensor, ops

from ..draw.draw import Draw
from ..draw.operand import Operand
from ..fault import Fault
from ..numbers.encoding import Array
from ..suite.lab import Lab, scenario
from .weights.drawn_weights import STORED, drawn_weight, open_weights

WIDTH, HEADS, HEAD, PAST = 256, 4, 64, 70
MOST = 64  # rows
NAME = "blk.0.ffn_down.weight"
AnyOp = Op[Any, Any]
Made = tuple[AnyOp, list[Tensor], Tensor]
"""An op, its operands, and its result."""
Trace = Callable[[Backend, Context, Array], Made]
"""Traces an op on rows of f32 numbers, each of WIDTH."""
Promise = Callable[[AnyOp, Sequence[Spec | None]], bool]


def product(backend: Backend, ctx: Context, rows: Array) -> Made:
    weight, x = backend.get(NAME), ctx.from_floats(rows)
    assert weight is not None
    return ops.mulmat, [weight, x], weight.mulmat(ctx, x)


def experts(backend: Backend, ctx: Context, rows: Array) -> Made:
    """Each row with two of four experts; which ones, its own numbers say."""
    weight = ctx.from_floats(np.cos(np.arange(4.0 * 8 * WIDTH)).reshape(4, 8, WIDTH))
    first = (np.abs(rows[:, :1]) * 100).astype(np.int32) % 4
    x, ids = ctx.from_floats(rows[:, None]), ctx.from_ints(np.concatenate([first, (first + 1) % 4], 1))
    return ops.mulmat_id, [weight, x, ids], weight.mulmat_id(ctx, x, ids)


def attention(backend: Backend, ctx: Context, rows: Array) -> Made:
    query = ctx.from_floats(rows.reshape(-1, HEADS, HEAD))
    past = np.cos(np.arange(2.0 * PAST * 2 * HEAD)).reshape(2, PAST, 2, HEAD)
    key, value = (ctx.from_floats(part) for part in past)
    result = query.scaled_dot_product_attention(ctx, key, value, scale=HEAD**-0.5)
    return ops.scaled_dot_product_attention, [query, key, value], result


def norm(op: AnyOp, backend: Backend, ctx: Context, rows: Array) -> Made:
    x = ctx.from_floats(rows)
    return op, [x], getattr(x, op.name)(ctx)


NORMS = ops.rms_norm, ops.layer_norm, ops.l2_norm, ops.softmax
OTHERS: tuple[Trace, ...] = (attention, experts, *(partial(norm, op) for op in NORMS))


@scenario("core", smoke=2, default=26, nightly=260)
def a_row_depends_on_no_other(lab: Lab, draw: Draw) -> None:
    """Where the backend promises it, a row has the same bits alone, among others, in another place, with other neighbours."""
    trace, weight, rows = _drawn(draw)
    chosen = [draw.below(len(rows)) for _ in range(1 + draw.below(len(rows)))]
    with open_weights(lab, {NAME: weight}, 1) as backend:
        backend.load()
        whole = _computed(backend, trace, rows, backend.batch_invariant)
        for places in (chosen, chosen[:1]):
            found = _computed(backend, trace, rows[places], backend.batch_invariant)
            _compare(whole[places], found, f"{len(rows)} rows, and rows {places} of them")


@scenario("core", smoke=2, default=13, nightly=130)
def a_row_depends_on_no_thread(lab: Lab, draw: Draw) -> None:
    """Where the backend promises it, results have the same bits with any number of threads."""
    (trace, weight, rows), counts = _drawn(draw), draw.pick((1, 2), (2, 3), (1, 4))

    def computed(num_threads: int) -> Array:
        with open_weights(lab, {NAME: weight}, 1, num_threads=num_threads) as backend:
            backend.load()
            return _computed(backend, trace, rows, backend.thread_invariant)

    _compare(computed(counts[0]), computed(counts[1]), f"{counts[0]} and {counts[1]} threads")


def _drawn(draw: Draw) -> tuple[Trace, Operand, Array]:
    """What is traced, a weight, and rows: a product with a weight of each stored dtype, or another op."""
    products: list[tuple[DType, Trace]] = [(dtype, product) for dtype in STORED]
    dtype, trace = draw.by_turn(*products, *[(DType.F32, trace) for trace in OTHERS])
    weight = drawn_weight(draw, dtype, (WIDTH, draw.pick(33, 1, 64)))
    rng = np.random.default_rng(weight.seed)
    return trace, weight, rng.standard_normal((2 + draw.below(MOST - 1), WIDTH), np.float32)


def _computed(backend: Backend, trace: Trace, rows: Array, promised: Promise) -> Array:
    """The result for each row; DeclaredUnsupportedError where nothing is promised, or the op does not run."""
    with backend.new_context() as ctx:
        op, operands, result = trace(backend, ctx, rows)
        specs = [*operands, *[None] * (len(op.operands) - len(operands))]
        support = backend.supports(op, specs)
        if not support:
            raise DeclaredUnsupportedError(support.reason)
        if not promised(op, specs):
            raise DeclaredUnsupportedError(
                f"{op.name} of {operands[0].dtype}: the backend does not promise it"
            )
        ctx.compute(result)
        return result.numpy().reshape(len(rows), -1)


def _compare(first: Array, second: Array, told: str) -> None:
    other = first.view(np.uint32) != second.view(np.uint32)
    if other.any():
        row, at = np.argwhere(other)[0]
        numbers = f"{first[row, at]!r} and {second[row, at]!r}"
        raise Fault(
            "bits", f"{told}: element {at} of row {row} is {numbers}, but the backend promises equal bits"
        )
