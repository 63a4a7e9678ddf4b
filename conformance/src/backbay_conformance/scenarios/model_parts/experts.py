"""Ids that a graph finds itself with top_k or argsort, as every mixture of experts does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backbay import Context, DType, Op, Tensor, ops

from ...cases.matrix import by_expert, product
from ...cases.norm import softmax_formula
from ...cases.write import placed
from ...checks.call_check import try_call
from ...draw.data import Bits, DistinctIds, Numbers
from ...draw.draw import Draw
from ...draw.layout import Layout, found
from ...draw.operand import Operand
from ...machines.fusible_chains import rounded
from ...numbers.encoding import Array, decode, encode
from ...numbers.number import Number
from ...suite.case import Call
from ...suite.lab import Lab, scenario
from .blocks import judge_block, normal


def found_ids(draw: Draw, count: int, *shape: int) -> Operand:
    """Ids below `count`, by top_k or argsort of a leaf of keys."""
    layout = Layout((found(shape, count, largest=not draw.flag()),))
    return Operand(DType.I32, shape, DistinctIds(count), layout, draw.below(1 << 16))


def extents(draw: Draw) -> tuple[int, int, int]:
    """The number of experts, the experts that a token uses, and the tokens."""
    count = draw.pick(8, 3, 16, 33, 64, 128)
    used = draw.pick(2, 1, 3, 4, 8, count)
    return count, min(used, count), draw.pick(3, 1, 2, 17, 33, 70)


def chosen_rows(draw: Draw) -> Call:
    count, used, tokens = extents(draw)
    dtype = draw.pick(draw.float_dtype(), DType.Q8_0, DType.I32)
    shared, n = draw.flag(), 32 if dtype is DType.Q8_0 else draw.pick(1, 5, 33)
    table = draw.operand(dtype, (n, count, 1 if shared else tokens), Bits())
    ids = found_ids(draw, count, used, tokens)

    def formula(raw: Array, ids: Array) -> Array:
        rows = np.broadcast_to(raw, (tokens, *raw.shape[1:]))[np.arange(tokens)[:, None], ids]
        return rows if dtype is DType.I32 else encode(decode(rows, dtype), DType.F32)

    return Call((table, ids), formula, raw=True)


def chosen_experts(draw: Draw) -> Call:
    count, used, tokens = extents(draw)
    dtype = draw.pick(draw.float_dtype(), draw.float_dtype(), DType.Q8_0, DType.Q4_0)
    k, n = 32 if dtype.is_quantized else draw.pick(8, 1, 33), draw.pick(5, 1, 16)
    w = draw.operand(dtype, (k, n, count), Numbers(terms=k, most=63))
    fill = Numbers(terms=k, partner=w)
    x = draw.floats((k, draw.pick(1, used), tokens), fill, dtype=DType.F32, activated=True)
    return Call((w, x, found_ids(draw, count, used, tokens)), by_expert)


def chosen_biases(draw: Draw) -> Call:
    count, used, tokens = extents(draw)
    n = draw.pick(5, 1, 33)
    x, t2 = draw.floats((n, used, tokens)), draw.floats((n, count), dtype=draw.other_float())
    ids = found_ids(draw, count, used, tokens)
    return Call((x, t2, ids), lambda x, t2, ids: x + t2[ids].reshape(*x.shape))


def chosen_places(draw: Draw) -> Call:
    count, used, tokens = extents(draw)
    n, dtype = draw.pick(5, 1, 33), draw.float_dtype()
    outer = draw.pick((), (min(tokens, 3),))
    x = draw.operand(dtype, (n, count, *outer), Bits(), stays=True)
    src = draw.operand(dtype, (n, used, *outer), Bits())

    def formula(x: Array, src: Array, ids: Array) -> Any:
        index = (*np.indices(ids.shape, sparse=True)[:-1], ids)
        return placed(x, index, src, dtype)

    return Call((x, src, found_ids(draw, count, used, *outer)), formula, raw=True)


CHOSEN: tuple[tuple[Op[..., Any], Callable[[Draw], Call]], ...] = (
    (ops.mulmat_id, chosen_experts),
    (ops.rows, chosen_rows),
    (ops.add_id, chosen_biases),
    (ops.set_rows, chosen_places),
)
"""Ops with ids, and their calls with ids that the graph finds."""


@scenario("graph", smoke=4, default=64, nightly=600)
def ids_that_the_graph_finds(lab: Lab, draw: Draw) -> None:
    """Ops with ids from top_k or argsort give the result of the same ids in a leaf; other keys give other ids."""
    op, drawn = draw.by_turn(*CHOSEN)
    draw.turn //= len(CHOSEN)
    call = drawn(draw)
    call.op = op
    draw.note(str(call))
    ids = next(part for part in call.operands() if part.source.dtype is not part.dtype)
    with lab.backend.new_context() as ctx:  # if it cannot find ids, the scenario is unsupported
        ctx.forward(ids.layout.trace(ctx, ids.leaf(ctx))).reserve()
    try_call(lab, call, draw.mode)


GAP = 0.05  # the least distance of the scores of two experts: then rounding does not change a token's choice


def clear_scores(draw: Draw, experts: int, tokens: int) -> tuple[Array, Array]:
    """Two sets of scores whose order no rounding changes."""
    rng = np.random.default_rng(draw.below(1 << 16))
    drawn = [[rng.permutation(experts) for _ in range(tokens)] for _ in range(2)]
    first, second = (np.asarray(part) * GAP - experts * GAP / 2 for part in drawn)
    return first.astype(np.float32), second.astype(np.float32)


@scenario("graph", smoke=1, default=18, nightly=240)
def mixture_of_experts(lab: Lab, draw: Draw) -> None:
    """A whole mixture: scores, the best experts, their shares, gate and up, biases, down, and the weighted sum."""
    experts, used = draw.by_turn((8, 2), (128, 8), (4, 1), (32, 4), (16, 16))
    n, inner, tokens = draw.pick(16, 8, 33), draw.pick(8, 17), draw.pick(3, 1, 9, 40) if experts < 128 else 17
    normalized, biased = not draw.flag(), draw.flag()
    pairs = {"x": normal(draw, n, tokens), "scores": clear_scores(draw, experts, tokens)}
    router = np.eye(experts, dtype=np.float32)
    pairs["router"] = (router, router)
    for name, shape in {"gate": (n, inner), "up": (n, inner), "down": (inner, n)}.items():
        pairs[name] = normal(draw, *shape, experts, scale=0.2)
    pairs["bias"] = normal(draw, inner, experts)

    def trace(ctx: Context, t: dict[str, Tensor]) -> Tensor:
        scores = t["router"].mulmat(ctx, t["scores"])
        scores = scores if normalized else scores.softmax(ctx)
        ids = scores.top_k(ctx, used)
        share = scores.reshape(ctx, 1, experts, tokens).rows(ctx, ids)
        if normalized:
            share = share.reshape(ctx, used, tokens).softmax(ctx).reshape(ctx, 1, used, tokens)
        x = t["x"].reshape(ctx, n, 1, tokens)
        gate, up = t["gate"].mulmat_id(ctx, x, ids), t["up"].mulmat_id(ctx, x, ids)
        gate = gate.add_id(ctx, t["bias"], ids) if biased else gate
        y = t["down"].mulmat_id(ctx, gate.silu(ctx, up), ids).mul(ctx, share)
        parts = [y.view(ctx, u * y.stride(1), (n, tokens), (y.stride(2),)) for u in range(used)]
        total = parts[0] if used > 1 else parts[0].contiguous(ctx)
        for part in parts[1:]:
            total = total.add(ctx, part)
        return total

    def formula(v: dict[str, Number]) -> Number:
        scores = rounded(product(v["router"], v["scores"]))
        scores = scores if normalized else rounded(softmax_formula(scores))
        ids = np.argsort(-v["scores"].value, -1)[:, :used]  # (tokens, used)
        share = scores.moved(lambda a: np.take_along_axis(a, ids, -1))
        share = rounded(softmax_formula(share)) if normalized else share
        gate, up = (rounded(by_expert(v[name], v["x"].reshape(tokens, 1, n), ids)) for name in ("gate", "up"))
        gate = rounded(gate + v["bias"][ids]) if biased else gate
        y = rounded(by_expert(v["down"], rounded(rounded(gate * gate.sigmoid()) * up), ids))
        y = rounded(y * share.reshape(tokens, used, 1))
        total = y[:, 0]
        for u in range(1, used):
            total = rounded(total + y[:, u])
        return total

    judge_block(lab, draw, pairs, trace, formula)
