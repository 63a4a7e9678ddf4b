"""Attention: ONNX Runtime's tiled one where it applies, else native code, else two products.

The products copy no keys and values: query heads that share a key head are rows of one product.
"""

from __future__ import annotations

from collections.abc import Collection

from backbay import DType, Node, ops
from backbay.internals import Size
from backbay_native import ATTENTION

from ..lowering.kernel_view import Lowering, Operand
from ..lowering.model_builder import CONTRIB
from ..session.native import DOMAIN
from .kernel_table import kernel
from .matrix import fused_product

MANY = 64  # queries from which the tiled attention is faster, though it copies keys and values
MOST_FEATURES = 1024  # of a head, in native code
LANES, SIXTEEN, MOST_TOGETHER = (
    128,
    16,
    8,
)  # of tiles of queries, as in native code; so are the next two lines
SPLITS, HEADER = 16, 4  # of tables of cells
UNITS, PART, MOST_PARTS = 128, 256, 32  # of divided histories
FLOATS = (DType.F32, DType.F16, DType.BF16)  # keys and values that native code reads


def _scores(node: Node) -> int:
    """Scores before and after a step; queries and results in another order. Tiled attention takes less."""
    query, key = node.operands[:2]
    return 2 * 4 * query.dim(1) * query.dim(2) * key.dim(2) + 4 * (query.size + node.size)


def native_code_serves(node: Node) -> bool:
    """Whether native code serves a node, so that keys and values are read as they are stored."""
    if node.op is not ops.scaled_dot_product_attention:
        return False
    query, key, value, mask, _, sinks, vmla, softcap, _ = node.args
    plain = mask is None and sinks is None and not softcap and query.dim(2) > MANY
    is_tiled = plain and (query.dim(0), query.dim(1)) == (value.dim(0), key.dim(1))
    return vmla is None and not is_tiled and max(query.dim(0), value.dim(0)) <= MOST_FEATURES


def native_attention_memory(node: Node) -> int:
    """Of native code: the table of the cells that queries see, and the sums of the parts of the history."""
    query, key, value = node.operands[:3]
    if not native_code_serves(node):
        return _scores(node)
    heads, tokens, history = query.dim(1), query.dim(2), key.dim(2)
    together = min(heads // key.dim(1), MOST_TOGETHER)
    tiles = -(-tokens // max(SIXTEEN, LANES // together // SIXTEEN * SIXTEEN))
    parts = min(-(-UNITS // (tiles * key.dim(1))), -(-history // PART), MOST_PARTS)
    table = (node.args[3] is not None) * (HEADER + history) * min(tokens, tiles + SPLITS)
    return 4 * (table + (parts > 1) * parts * (value.dim(0) + 2) * heads * tokens)


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
    elsewhere = b.resident or b.settings.standard
    if plain and not elsewhere and heads.same(kv_heads) and d.same(dv) and not tokens.at_most(MANY):
        return _tiled(b, query, key, value, scale)
    if b.native.has(ATTENTION) and vmla is None and d.max(dv).at_most(MOST_FEATURES):
        return _native(b, query, key, value, mask, sinks, scale, softcap)
    group = heads // kv_heads
    q = b.transposed(b.shaped(query.floats, [d, group, kv_heads, tokens]), 1, 2, 0, 3)
    q = b.shaped(q, [d, group * tokens, kv_heads])
    # keys and values stay (history, kv_heads, d): the product reads them by head
    scores = fused_product(b, q, key.of_rank(3), 3, batch=True, alpha=scale)
    scores = b.shaped(scores, [history, tokens, heads])
    if softcap:
        scores = b.add("Tanh", b.add("Mul", scores, b.number(1 / softcap)))
        scores = b.add("Mul", scores, b.number(softcap))
    if mask is not None:
        scores = b.add("Add", scores, _mask(b, mask, mask.of_rank(3), tokens))
    weights = (
        b.add("Softmax", scores, axis=-1)
        if sinks is None
        else _with_sinks(b, scores, sinks, [history, tokens, heads])
    )
    weights = b.shaped(weights, [history, group * tokens, kv_heads])
    if _is_part(value.node, key.node):
        y = fused_product(b, weights, key.of_rank(3), 3, transpose=False, batch=True)
        low, high = (b.symbols.size(value.node, name) for name in ("low", "high"))
        assert isinstance(low, Size)
        assert isinstance(high, Size)
        y = b.sliced(y, 2, low, high)
    else:
        y = fused_product(b, weights, value.of_rank(3), 3, transpose=False, batch=True)
    y = b.shaped(y, [dv, tokens, heads])
    if vmla is not None:
        y, dv = fused_product(b, y, vmla.of_rank(3), 3), vmla.dim(1)
    return b.shaped(b.transposed(y, 1, 0, 2), [dv, *query.dims()[1:]])


def _native(
    b: Lowering,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None,
    sinks: Operand | None,
    scale: float,
    softcap: float,
) -> str:
    """By code of ours, which reads keys and values once for all heads that share them, as they are stored, in any shape."""
    heads, shared = query.dim(1).pin(), key.dim(1).pin()
    column = "" if sinks is None else sinks.of_rank(1)
    hidden, table = "", ""
    if mask is not None:
        hidden = _mask(b, mask, _stored(b, mask, FLOATS[:2]), query.dim(2))
        table = b.add("Cells", hidden, domain=DOMAIN, group=heads // shared)
    rows = [_stored(b, each, FLOATS) for each in (key, value)]
    given = [*(b.before_shaping(each) for each in (query.of_rank(3), *rows)), column, hidden, table]
    y = b.add(
        "Attention", *given, domain=DOMAIN, scale=scale, softcap=softcap, heads=heads, shared=shared,
        width=query.dim(0).pin(), value_width=value.dim(0).pin(),
    )  # fmt: skip
    return b.shaped(y, [value.dim(0), *query.dims()[1:]])


def _stored(b: Lowering, operand: Operand, dtypes: Collection[DType]) -> str:
    """The value with three axes: in its own dtype if it is one of these, else as float32."""
    value = operand.stored if operand.dtype in dtypes else operand.floats
    return b.ranked(value, operand.rank, 3)


def _is_part(value: Node, key: Node) -> bool:
    """Whether values are some features of the keys: then a few columns more cost less than a copy of the values."""
    return value.op is ops.slice and value.args[0] is key and value.args[1] == 0 and value.args[4] == 1


def _tiled(b: Lowering, query: Operand, key: Operand, value: Operand, scale: float) -> str:
    """ONNX Runtime's attention over all heads of each position, which holds the scores of one tile at a time."""
    d, heads, _, _ = query.dims(4)
    rows = [b.shaped(each.floats, [d * heads, each.dim(2), 1]) for each in (query, key, value)]
    y = b.add("MultiHeadAttention", *rows, domain=CONTRIB, num_heads=heads.pin(), scale=scale)
    return b.shaped(y, query.dims())


def _mask(b: Lowering, mask: Operand, value: str, tokens: Size) -> str:
    """(heads or 1, tokens, history), without the rows that are padding; `value` is that of the mask."""
    return value if mask.dim(1).same(tokens) else b.sliced(value, 1, 0, tokens)


def _with_sinks(b: Lowering, scores: str, sinks: Operand, sizes: list[Size]) -> str:
    """The softmax with the sinks as one more column, which is then dropped."""
    history, tokens, heads = sizes
    column = b.shaped(sinks.floats, [1, 1, heads])
    column = b.expanded(column, [1, tokens, heads])
    weights = b.add("Softmax", b.add("Concat", scores, column, axis=-1), axis=-1)
    return b.sliced(weights, 2, 0, history)
