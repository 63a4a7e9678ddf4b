"""Rotary embeddings, state-space models and the delta rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import prod, sqrt
from typing import Literal

from backbay import DType, Node, ops
from backbay.internals import contiguous_strides
from backbay.ops import Yarn
from backbay_native import CONVOLUTION, MOST_KEYS, MOST_TAPS, RECURRENCE

from ..library.abi import NULL, Ptr
from ..library.avoidance import FACTORS_OUTSIDE, PARTIAL_BLOCKS_OF_HEADS, SLOW_CONVOLUTION
from ..lowering.builder import GgmlBuilder, kernel

MODES = {"normal": 0, "neox": 2, "multi-section": 8, "vision": 24}
VECTORS = 8
"""Tokens from which on ssm_conv multiplies vectors of channels: ggml's own kernel multiplies element by element."""
DELTA_HEAD = 64
"""Elements of a head: ggml's delta rules read whole blocks of so many, with the longest vectors of a CPU."""


@kernel(ops.rope)
def rope(
    g: GgmlBuilder,
    x: Node,
    positions: Node,
    dim: int,
    base: float,
    scale: float = 1.0,
    mode: Literal["normal", "neox", "multi-section", "vision"] = "normal",
    factors: Node | None = None,
    sections: Sequence[int] = (0, 0, 0, 0),
    yarn: Yarn | None = None,
) -> Ptr:
    yarn = yarn or Yarn(0, 0.0, 1.0, 32.0, 1.0)
    tail = (int(yarn.n_ctx_orig) & 0x7FFFFFFF, base, scale, *yarn[1:])
    operands = (g.rows(x, DType.F32), g.dense(positions), _factors(g, x, factors), dim)
    if mode in ("multi-section", "vision"):
        return g.call("rope_multi", *operands, list(sections), MODES[mode], *tail)
    return g.call("rope_ext", *operands, MODES[mode], *tail)


def _factors(g: GgmlBuilder, x: Node, factors: Node | None) -> Ptr:
    """A factor for each pair of the head: ggml also reads factors of pairs that it does not rotate."""
    if factors is None:
        return NULL
    missing = x.dim(0) // 2 - factors.dim(0) if g.avoids(FACTORS_OUTSIDE) else 0
    return g.padded(g.floats(factors), missing)


@kernel(ops.ssm_conv)
def ssm_conv(g: GgmlBuilder, x: Node, weight: Node) -> Ptr:
    window, (taps, channels) = g.raw(x), map(weight.dim, range(2))
    tokens = x.dim(0) - taps + 1
    channels_adjoin = x.dtype is DType.F32 and window.nb[1] == DType.F32.type_size
    if g.on_cpu and channels_adjoin and taps <= MOST_TAPS and g.library.native.has(CONVOLUTION):
        return g.custom("convolution", (channels, tokens, x.dim(2), 1), [window, g.floats(weight)])
    if tokens < VECTORS or not channels_adjoin or not g.on_cpu or not g.avoids(SLOW_CONVOLUTION):
        return g.call("ssm_conv", g.floats(x), g.floats(weight))
    rows, kernels = g.permute(window, 1, 0, 2, 3), g.transposed(g.floats(weight))
    seen, steps = (x.dim(1), tokens, x.dim(2), 1), tuple(rows.nb)
    parts = (
        g.call(
            "mul",
            g.view(rows, DType.F32, seen, steps, rows.view_offs + i * steps[1]),
            g.view(kernels, DType.F32, (x.dim(1), 1, 1, 1), tuple(kernels.nb), i * kernels.nb[1]),
        )
        for i in range(weight.dim(0))
    )
    return reduce(partial(g.call, "add"), parts)


@kernel(ops.ssm_scan)
def ssm_scan(g: GgmlBuilder, s: Node, x: Node, dt: Node, A: Node, B: Node, C: Node, ids: Node) -> Ptr:
    if x.dim(2) == 0:
        states = g.reshape(g.floats(s), s.dim(0) * s.dim(1) * s.dim(2), s.dim(3))
        picked = g.call("get_rows", states, g.dense(ids))
        return g.reshape(picked, states.ne[0] * ids.dim(0))
    if g.on_cpu and s.dim(0) <= MOST_KEYS and g.library.native.has(RECURRENCE):
        given = [*(g.floats(each) for each in (s, x, dt, A, B, C)), g.dense(ids)]
        count = x.size + s.dim(0) * s.dim(1) * s.dim(2) * ids.dim(0)
        return g.custom("selective_scan", (count, 1, 1, 1), given)
    operands = g.floats(s), _heads(g, x), g.floats(dt), g.floats(A), _heads(g, B), _heads(g, C), g.dense(ids)
    return g.call("ssm_scan", *operands, 1)


def _heads(g: GgmlBuilder, x: Node) -> Ptr:
    """A node's tensor as f32, in which the heads of each token adjoin; the tokens need not."""
    tensor = g.rows(x, DType.F32)
    return tensor if tensor.nb[1] == tensor.nb[0] * tensor.ne[0] else g.contiguous(tensor)


@kernel(ops.delta_rule)
def delta_rule(
    g: GgmlBuilder, s: Node, q: Node, k: Node, v: Node, decay: Node, share: Node, removed: Node | None = None
) -> Ptr:
    """By native code, else by RWKV's kernel, which serves both forms, and is ggml's fastest on the CPU."""
    if v.dim(2) == 0:
        return g.reshape(g.floats(s), s.size)
    if g.on_cpu and s.dim(0) <= MOST_KEYS and g.library.native.has(RECURRENCE):
        given = [g.floats(each) for each in (s, q, k, v, decay, share, removed) if each is not None]
        return g.custom("delta_rule", (v.size + s.size, 1, 1, 1), given)
    size = max(s.dim(0), v.dim(0))
    if g.avoids(PARTIAL_BLOCKS_OF_HEADS):
        size = -(-size // DELTA_HEAD) * DELTA_HEAD  # heads are padded with zeros
    query, key, value = (g.padded(g.floats(x), size - x.dim(0)) for x in (q, k, v))
    gate, rate = g.floats(decay), g.floats(share)
    state = g.padded(g.floats(s), size - s.dim(0), size - s.dim(1))
    if removed is None and not g.on_cpu:
        made = _gated(g, query, key, value, gate, rate, state)
    else:
        factor, rate = _for_each(g, g.call("exp", gate), size), _for_each(g, rate, size)
        if removed is None:
            read, value = g.call("mul", key, factor), g.call("mul", value, rate)
            written = g.call("neg", g.call("mul", key, rate))
        else:
            written = g.padded(g.floats(removed), size - removed.dim(0))
            read = g.call("neg", written)
            written = g.call("mul", written, rate)
        rows = (size, v.dim(1), v.dim(2) * v.dim(3))
        vectors = (g.reshape(x, *rows) for x in (query, factor, key, value, read, written))
        made = g.call("rwkv_wkv7", *vectors, g.reshape(state, size * size * v.dim(1), v.dim(3)))
    return _narrow(g, made, s, v, size)


def _gated(g: GgmlBuilder, q: Ptr, k: Ptr, v: Ptr, gate: Ptr, rate: Ptr, state: Ptr) -> Ptr:
    """By the gated rule, which more devices have for more sizes of heads; it scales its result."""
    gate = gate if gate.ne[0] == 1 else g.padded(gate, q.ne[0] - gate.ne[0])
    return g.call("gated_delta_net", g.call("scale", q, sqrt(q.ne[0])), k, v, gate, rate, state, 1)


def _for_each(g: GgmlBuilder, x: Ptr, size: int) -> Ptr:
    """Numbers for each element of a head. ggml multiplies by them faster than by one number for all."""
    return g.padded(x, size - x.ne[0]) if x.ne[0] > 1 else g.call("repeat_4d", x, size, *tuple(x.ne)[1:])


def _narrow(g: GgmlBuilder, made: Ptr, s: Node, v: Node, size: int) -> Ptr:
    """The result of padded heads without the padding, as one dimension."""
    (key, value, heads), (tokens, sequences) = map(s.dim, range(3)), map(v.dim, (2, 3))
    if key == value == size:
        return g.reshape(made, v.size + s.size)
    outputs = (size, heads, tokens, sequences)
    y = g.view(made, DType.F32, (value, *outputs[1:]), contiguous_strides(DType.F32, outputs), 0)
    steps = contiguous_strides(DType.F32, (size, size, heads, sequences))
    state = g.view(made, DType.F32, (key, value, heads, sequences), steps, 4 * prod(outputs))
    y, state = (g.reshape(g.call("cont", x), prod(x.ne)) for x in (y, state))
    return g.call("concat", y, state, 0)
