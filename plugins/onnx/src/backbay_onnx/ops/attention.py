"""Attention: ONNX Runtime's tiled one where it applies, else two products.

The products copy no keys and values: query heads that share a key head are rows of one product.
"""

from __future__ import annotations

from backbay import Node, ops
from backbay.plugin import Size

from ..lowering.kernel_view import Lowering
from ..lowering.model_builder import CONTRIB
from ..lowering.operand import Operand
from .kernel_table import kernel

MANY = 64  # queries from which the tiled attention is faster, though it copies keys and values


def _scores(node: Node) -> int:
    """Scores before and after a step; queries and results in another order. Tiled attention takes less."""
    query, key = node.operands[:2]
    return 2 * 4 * query.dim(1) * query.dim(2) * key.dim(2) + 4 * (query.size + node.size)


@kernel(ops.scaled_dot_product_attention, working_memory=_scores)
def scaled_dot_product_attention(
    b: Lowering,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None = None,
    *,
    scale: float,
    sinks: Operand | None = None,
    vmla: Operand | None = None,
    softcap: float = 0.0,
    cache_config_applied: bool = False,
) -> str:
    """For one batch entry and no empty operand; `supports` leaves other calls to the composite."""
    d, heads, tokens, _ = query.dims(4)
    dv, kv_heads, history = value.dims(3)
    plain = mask is None and sinks is None and vmla is None and not softcap
    if plain and not b.settings.resident and heads.same(kv_heads) and d.same(dv) and not tokens.at_most(MANY):
        return _tiled(b, query, key, value, scale)
    group = heads // kv_heads
    q = b.transposed(b.shaped(query.floats, [d, group, kv_heads, tokens]), 1, 2, 0, 3)
    q = b.shaped(q, [d, group * tokens, kv_heads])
    # keys and values stay (history, kv_heads, d): transBatchB reads them by head
    scores = b.add("FusedMatMul", q, key.of_rank(3), domain=CONTRIB, transB=1, transBatchB=1, alpha=scale)
    scores = b.shaped(scores, [history, tokens, heads])
    if softcap:
        scores = b.add("Tanh", b.add("Mul", scores, b.number(1 / softcap)))
        scores = b.add("Mul", scores, b.number(softcap))
    if mask is not None:
        scores = b.add("Add", scores, _mask(b, mask, tokens))
    weights = (
        b.add("Softmax", scores, axis=-1)
        if sinks is None
        else _with_sinks(b, scores, sinks, [history, tokens, heads])
    )
    weights = b.shaped(weights, [history, group * tokens, kv_heads])
    y = b.add("FusedMatMul", weights, value.of_rank(3), domain=CONTRIB, transBatchB=1)
    y = b.shaped(y, [dv, tokens, heads])
    if vmla is not None:
        y, dv = b.add("FusedMatMul", y, vmla.of_rank(3), domain=CONTRIB, transB=1), vmla.dim(1)
    return b.shaped(b.transposed(y, 1, 0, 2), [dv, *query.dims()[1:]])


def _tiled(b: Lowering, query: Operand, key: Operand, value: Operand, scale: float) -> str:
    """ONNX Runtime's attention over all heads of each position, which holds the scores of one tile at a time."""
    d, heads, _, _ = query.dims(4)
    rows = [b.shaped(each.floats, [d * heads, each.dim(2), 1]) for each in (query, key, value)]
    y = b.add("MultiHeadAttention", *rows, domain=CONTRIB, num_heads=heads.pin(), scale=scale)
    return b.shaped(y, query.dims())


def _mask(b: Lowering, mask: Operand, tokens: Size) -> str:
    """(heads or 1, tokens, history), without the rows that are padding."""
    value = mask.of_rank(3)
    return value if mask.dim(1).same(tokens) else b.sliced(value, 1, 0, tokens)


def _with_sinks(b: Lowering, scores: str, sinks: Operand, sizes: list[Size]) -> str:
    """The softmax with the sinks as one more column, which is then dropped."""
    history, tokens, heads = sizes
    column = b.shaped(sinks.floats, [1, 1, heads])
    column = b.expanded(column, [1, tokens, heads])
    weights = b.add("Softmax", b.add("Concat", scores, column, axis=-1), axis=-1)
    return b.sliced(weights, 2, 0, history)
