"""The case of the delta rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import DType, ops

from ..draw.data import Numbers
from ..draw.delta_rule_data import FILLS
from ..draw.draw import Draw
from ..numbers.encoding import Array
from ..numbers.number import Number, concatenate
from ..suite.case import Call, case
from .spatial import rank

SIZES = (
    # key, value, heads, tokens, sequences
    (64, 64, 4, 3, 1),
    (128, 128, 2, 5, 2),
    (128, 64, 2, 1, 1),
    (64, 128, 1, 20, 1),
    (100, 33, 2, 18, 1),
    (192, 16, 1, 2, 1),
    (8, 4, 2, 0, 2),
    (64, 64, 2, 130, 2),
    (8, 4, 2, 3, 0),
    (8, 4, 0, 3, 1),
    (8, 0, 2, 3, 1),
    (0, 4, 2, 3, 1),
    (16, 16, 70, 2, 1),
    (4, 4, 1, 520, 1),
    (4, 4, 1, 2, 70),
)
"""Heads of models, long prompts, and rules without tokens, sequences or elements.

A default run takes the second, fifth, eighth ... of them with a wide range of numbers: exact data have decays of 0, and
hide what is wrong with the decay of a later part.
"""


@case(ops.delta_rule)
def delta_rule(draw: Draw) -> Call:
    key, value, heads = draw.pick(4, 1, 8, 16), draw.pick(4, 1, 3, 16), draw.pick(1, 2, 3)
    tokens, sequences = draw.pick(1, 2, 0, 5, 16, 17, 33, 40), draw.pick(1, 2, 3)
    size = draw.listed(*SIZES) or (key, value, heads, tokens, sequences)
    key, value, heads, tokens, sequences = size
    removes, of_all, of_channel = draw.by_turn(False, True), 1, key
    decay = draw.by_turn(of_all, of_channel, each=2)
    share = draw.pick(of_all, of_channel) if removes else of_all
    each, near = (heads, tokens, sequences), Numbers("0", low=-8, high=8, most=3)
    s = draw.floats((key, value, heads, sequences), near)
    q = draw.floats((key, *each), near, dtype=DType.F32)
    k = draw.floats((key, *each), FILLS["k"], dtype=draw.other_float())
    v = draw.floats((value, *each), near, dtype=DType.F32)
    rest = [
        draw.floats((extent, *each), FILLS[name], dtype=DType.F32)
        for name, extent in (("decay", decay), ("share", share), ("removed", key))
    ]
    args = (s, q, k, v, *rest[:2], rest[2] if removes else None)
    call = Call(args, rule_formula, exact=False)  # exp(0) need not be 1 to the last bit
    if draw.mode == "special" and 0 not in v.shape:
        v.fill = Numbers("ni", low=-8, high=8, few=True)
        call.free, call.instead = broken_heads, None
    return call


def rule_formula(
    s: Number, q: Number, k: Number, v: Number, decay: Number, share: Number, removed: Number | None
) -> Number:
    s, q, k, v, e, share = (rank(x, 4) for x in (s, q, k, v, decay.exp(), share))
    removed = None if removed is None else rank(removed, 4)
    sequences, tokens, heads, value = v.shape
    key = s.shape[-1]
    read = k * e if removed is None else removed
    state, outputs = s, []
    for t in range(tokens):
        known = state.activation().einsum("nhvk,nhk->nhv", read[:, t].activation(), key)
        if removed is None:
            shared = share[:, t]
            terms = outer(v[:, t] * shared, k[:, t]), outer(known * shared, -k[:, t])
        else:
            terms = outer(v[:, t], k[:, t]), outer(known, -(removed[:, t] * share[:, t]))
        kept = state * e[:, t].reshape(sequences, heads, 1, e.shape[-1])
        state = concatenate([x.reshape(1, *x.shape) for x in (kept, *terms)], 0).sum(0)[0]
        outputs.append(state.activation().einsum("nhvk,nhk->nhv", q[:, t].activation(), key))
    y = [concatenate([o.reshape(sequences, 1, heads, value) for o in outputs], 1)] if tokens else []
    return concatenate([part.reshape(-1) for part in (*y, state)], 0)


def outer(rows: Number, columns: Number) -> Number:
    """(.., rows) and (.., columns) to (.., rows, columns)"""
    rows, columns = rows.activation(), columns.activation()  # a composite takes products
    return rows.reshape(*rows.shape, 1) * columns.reshape(*columns.shape[:-1], 1, columns.shape[-1])


def broken_heads(s: Array, q: Array, k: Array, v: Array, *rest: Any) -> Array:
    """Marks the results of the heads that an operand breaks, in its sequence."""
    of_tokens = [x for x in (q, k, v, *rest) if x is not None]  # (sequences, tokens, heads, ..) each
    whole = [np.isfinite(s).all((2, 3)), *(np.isfinite(x).all((1, 3)) for x in of_tokens)]
    broken = ~np.logical_and.reduce(whole)  # (sequences, heads)
    y = np.broadcast_to(broken[:, None, :, None], v.shape)
    state = np.broadcast_to(broken[:, :, None, None], s.shape)
    return np.concatenate([y.ravel(), state.ravel()])
