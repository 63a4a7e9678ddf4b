"""Rotary embeddings, state-space models and the delta rule."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from backbay import Node, ops
from backbay.internals import Size
from backbay.ops import Yarn
from backbay_native import MOST_KEYS, RECURRENCE

from ..lowering.emitter import AnySize
from ..lowering.kernel_view import Lowering, Operand
from ..lowering.model_builder import CONTRIB
from ..session.native import DOMAIN
from .elementwise import softplus_of
from .kernel_table import kernel


def _angles(node: Node) -> int:
    """Angles of 64 bits."""
    dim: int = node.args[2]
    return 24 * node.operands[1].size * dim


@kernel(ops.rope, working_memory=_angles)
def rope(
    b: Lowering,
    x: Operand,
    positions: Operand,
    dim: int,
    base: float,
    scale: float,
    mode: str,
    factors: Operand | None,
    sections: Sequence[int],
    yarn: Yarn | None,
) -> str:
    """Each token becomes a batch entry and each head a sequence of one, so that no head count is an attribute."""
    if x.is_empty():  # WebGPU refuses it
        return x.floats
    place, power = _places(b, positions, dim, mode, sections)
    rates, factor = _rates(power, dim, base, scale, yarn)
    cos, sin = _turns(b, place, rates, factors, factor)
    head, heads, tokens, batch = x.dims(4)
    if not batch.same(1):
        pairs: list[AnySize] = [len(rates), 1, tokens]
        times: list[AnySize] = [1, 1, batch]
        cos, sin = b.tiled(cos, pairs, times), b.tiled(sin, pairs, times)
    value = b.shaped(x.floats, [head, 1, heads, tokens * batch])
    turning = 2 * dim if mode == "vision" else dim
    if b.settings.plain:
        turned = _turned(
            b,
            value,
            [head, b.symbols.constant(1), heads, tokens * batch],
            cos,
            sin,
            turning,
            mode == "normal",
        )
    else:
        turned = b.add(
            "RotaryEmbedding",
            value,
            cos,
            sin,
            interleaved=int(mode == "normal"),
            rotary_embedding_dim=turning,
        )
    return b.shaped(turned, x.dims())


def _turned(
    b: Lowering, value: str, sizes: list[Size], cos: str, sin: str, turning: int, interleaved: bool
) -> str:
    """The rotary embedding of a value of four sizes, of whose first dimension `turning` elements turn in pairs."""
    half, (head, *others) = turning // 2, sizes
    cos, sin = (b.add("Unsqueeze", angles, b.ints(1)) for angles in (cos, sin))
    part = b.sliced(value, 3, 0, turning)
    if interleaved:
        pairs = b.shaped(part, [2, half, *others[1:]])
        first, second = (b.shaped(b.sliced(pairs, 3, n, n + 1), [half, *others]) for n in (0, 1))
    else:
        first, second = b.sliced(part, 3, 0, half), b.sliced(part, 3, half, turning)
    both = [
        b.add("Sub", b.add("Mul", first, cos), b.add("Mul", second, sin)),
        b.add("Add", b.add("Mul", second, cos), b.add("Mul", first, sin)),
    ]
    if interleaved:
        joined = b.add("Concat", *[b.add("Unsqueeze", each, b.ints(-1)) for each in both], axis=-1)
        both = [b.shaped(joined, [turning, *others])]
    if not head.same(turning):
        both.append(b.sliced(value, 3, turning, head))
    return b.add("Concat", *both, axis=-1)


def _turns(
    b: Lowering, place: str, rates: NDArray[np.float64], factors: Operand | None, factor: float
) -> tuple[str, str]:
    """Cosine and sine of each token and pair, (tokens, 1, pairs), times a factor.

    Angles are kept in float64 until they are small, but for plain nodes.
    """
    kind = helper.tensor_dtype_to_np_dtype(_exact(b))
    angle = b.add("Mul", place, b.constant(rates.astype(kind)))  # (tokens, pairs)
    if factors is not None:
        wanted = b.sliced(factors.of_rank(1), 0, 0, len(rates))
        angle = b.add("Div", angle, b.cast_to(wanted, _exact(b)))
    circle = b.constant(np.array(2 * pi, kind))
    # Round, not Floor: an angle just below 0 stays small, and float32 holds it well.
    angle = b.add("Sub", angle, b.add("Mul", b.add("Round", b.add("Div", angle, circle)), circle))
    angle = b.add("Unsqueeze", b.cast_to(angle, TensorProto.FLOAT), b.ints(1))
    cos, sin = b.add("Cos", angle), b.add("Sin", angle)
    if factor != 1:
        cos, sin = b.add("Mul", cos, b.number(factor)), b.add("Mul", sin, b.number(factor))
    return cos, sin


def _exact(b: Lowering) -> int:
    return TensorProto.FLOAT if b.settings.plain else TensorProto.DOUBLE


def _places(
    b: Lowering, positions: Operand, dim: int, mode: str, sections: Sequence[int]
) -> tuple[str, NDArray[Any]]:
    """The position of each pair of each token, (tokens, pairs) or (tokens, 1), and its power of the base."""
    exact = b.cast_to(positions.stored, _exact(b))
    if mode in ("normal", "neox"):
        return b.shaped(exact, [1, positions.dim(0)]), np.arange(dim // 2)
    components = b.transposed(b.shaped(exact, [positions.dim(0) // 4, 4]), 1, 0)  # (tokens, 4)
    if mode == "vision":
        second = np.arange(dim) >= sections[0]
        component, power = second.astype(np.int64), np.arange(dim) - sections[0] * second
    else:
        cycle, power = np.repeat(np.arange(4), sections), np.arange(dim // 2)
        component = cycle[power % cycle.size].astype(np.int64)
    return b.add("Gather", components, b.constant(component), axis=1), power


def _rates(
    power: NDArray[Any], dim: int, base: float, scale: float, yarn: Yarn | None
) -> tuple[NDArray[np.float64], float]:
    """The angle of each pair at position 1, and the factor of the result."""
    rates = np.float64(base) ** (-2 * power / dim)
    if yarn is None or yarn.ext_factor == 0:
        return rates * scale, yarn.attn_factor if yarn else 1.0

    fast, slow = (
        dim * log(yarn.n_ctx_orig / (2 * pi * beta)) / (2 * log(base))
        for beta in (yarn.beta_fast, yarn.beta_slow)
    )
    low, high = max(0, floor(fast)), min(dim - 1, ceil(slow))
    ramp = (np.arange(len(power)) - low) / max(0.001, high - low)
    r = yarn.ext_factor * (1 - np.clip(ramp, 0, 1))
    return rates * (scale * (1 - r) + r), yarn.attn_factor * (1 + 0.1 * log(1 / scale))


def _convolved(node: Node) -> int:
    """The window with its channels as the last axis, a part of it, and its product."""
    return 4 * (node.operands[0].size + 2 * node.size)


@kernel(ops.ssm_conv, working_memory=_convolved)
def ssm_conv(b: Lowering, x: Operand, weight: Operand) -> str:
    value, kernels = b.transposed(x.of_rank(3), 0, 2, 1), b.transposed(weight.of_rank(2), 1, 0)
    taps = weight.dim(0).pin()  # (sequences, K-1 + tokens, channels), (K, channels)
    tokens = x.dim(0) - (taps - 1)
    y = ""
    for i in range(taps):
        part = b.add("Mul", b.sliced(value, 1, i, tokens + i), b.sliced(kernels, 0, i, i + 1))
        y = b.add("Add", y, part) if y else part
    return y


def _scan(node: Node) -> int:
    """Shares of each head, and all that is scanned, in the order of tokens."""
    state, x = node.operands[:2]
    return 4 * 4 * state.dim(0) * x.dim(1) * x.dim(2) * x.dim(3) + 2 * 4 * (x.size + node.size)


def native_states_memory(node: Node) -> int:
    """Of native code: the states that the ids pick."""
    state, ids = node.operands[0], node.operands[-1]
    return 4 * state.dim(0) * state.dim(1) * state.dim(2) * ids.dim(0)


@kernel(ops.ssm_scan, working_memory=_scan)
def ssm_scan(
    b: Lowering, s: Operand, x: Operand, dt: Operand, A: Operand, B: Operand, C: Operand, ids: Operand
) -> str:
    """By native code, else by a Scan over tokens that carries the state of all sequences."""
    states, head_dim, heads = s.dim(0), s.dim(1), s.dim(2)
    (tokens, sequences), groups = x.dims(4)[2:], B.dim(1)
    first = b.add(
        "Gather", s.of_rank(4), b.shaped(ids.stored, [sequences])
    )  # (seq., heads, head_dim, states)
    end = b.product([states, head_dim, heads, sequences])
    if x.is_empty():  # a Scan over no tokens divides by zero and ends the process
        return b.shaped(first, [end])
    if states.same(0):
        return b.zeros([b.product(x.dims())])
    if b.native.has(RECURRENCE) and states.at_most(MOST_KEYS):
        given = x.of_rank(4), dt.of_rank(3), A.of_rank(2), B.of_rank(4), C.of_rank(4)
        return b.add("SelectiveScan", first, *given, domain=DOMAIN)
    step = softplus_of(b, dt.of_rank(3))  # (sequences, tokens, heads)
    decay = b.add("Unsqueeze", A.of_rank(2), b.ints(1))  # (heads, 1, states or 1)
    spread: list[AnySize] = [states, 1, heads // groups, groups, tokens, sequences]
    grouped = (b.shaped(each.floats, [states, 1, 1, groups, tokens, sequences]) for each in (B, C))
    shares = [b.shaped(b.expanded(each, spread), [states, 1, heads, tokens, sequences]) for each in grouped]
    value = b.add("Unsqueeze", x.of_rank(4), b.ints(-1))  # (sequences, tokens, heads, head_dim, 1)
    change = b.add("Unsqueeze", step, b.ints(-1, -2))  # (sequences, tokens, heads, 1, 1)
    with b.body() as body:
        state = body.input(TensorProto.FLOAT, 4)
        now, input, into, out = (body.input(TensorProto.FLOAT, 4) for _ in range(4))
        kept = b.add("Mul", state, b.add("Exp", b.add("Mul", now, decay)))
        after = b.add("Add", kept, b.add("Mul", into, b.add("Mul", input, now)))
        y = b.add("ReduceSum", b.add("Mul", after, out), b.ints(-1), keepdims=0)  # (seq., heads, head_dim)
    graph = body.graph([(after, TensorProto.FLOAT, 4), (y, TensorProto.FLOAT, 3)])
    last, ys = b.add_many(
        "Scan", first, change, value, *shares,
        outputs=2, body=graph, num_scan_inputs=4, scan_input_axes=[1, 1, 1, 1], scan_output_axes=[1],
    )  # fmt: skip
    ends = [b.shaped(ys, [b.product(x.dims())]), b.shaped(last, [end])]
    return b.add("Concat", *ends, axis=0)


def _delta_rule(node: Node) -> int:
    """By ONNX Runtime's op: two copies of the states. By a Scan: three, and what is scanned in the order of tokens."""
    s, q, v = node.operands[0], node.operands[1], node.operands[3]
    scanned = 0 if node.args[-1] is None else s.size + 7 * q.size + 2 * v.size
    return 4 * (2 * s.size + node.size + scanned)


@kernel(ops.delta_rule, working_memory=_delta_rule)
def delta_rule(
    b: Lowering,
    s: Operand,
    q: Operand,
    k: Operand,
    v: Operand,
    decay: Operand,
    share: Operand,
    removed: Operand | None = None,
) -> str:
    end = b.product(s.dims())
    if v.is_empty():
        return b.shaped(s.floats, [end])
    if s.is_empty():
        return b.zeros([b.product(v.dims())])
    if b.native.has(RECURRENCE) and s.dim(0).at_most(MOST_KEYS):
        given = (each.of_rank(4) for each in (s, q, k, v, decay, share, removed) if each is not None)
        return b.add("DeltaRule", *given, domain=DOMAIN)
    if removed is None:
        y, after = _gated(b, s, q, k, v, decay, share)
    else:
        y, after = _removing(b, s, q, k, v, decay, share, removed)
    return b.add("Concat", b.shaped(y, [b.product(v.dims())]), b.shaped(after, [end]), axis=0)


def _gated(
    b: Lowering, s: Operand, q: Operand, k: Operand, v: Operand, decay: Operand, share: Operand
) -> tuple[str, str]:
    """By ONNX Runtime's own op, which takes all heads of a token as one row, and the keys of a state as rows."""
    heads, tokens, sequences = v.dims(4)[1:]
    q_, k_, v_, decay_, share_ = (
        b.shaped(x.floats, [x.dim(0) * heads, tokens, sequences]) for x in (q, k, v, decay, share)
    )
    count = heads.pin()
    y, after = b.add_many(
        "LinearAttention", q_, k_, v_, b.transposed(s.of_rank(4), 0, 1, 3, 2), decay_, share_,
        outputs=2, domain=CONTRIB, scale=1.0, q_num_heads=count, kv_num_heads=count,
    )  # fmt: skip
    return y, b.transposed(after, 0, 1, 3, 2)


def _removing(
    b: Lowering,
    s: Operand,
    q: Operand,
    k: Operand,
    v: Operand,
    decay: Operand,
    share: Operand,
    removed: Operand,
) -> tuple[str, str]:
    """By a Scan over tokens that carries the states of all sequences, (sequences, heads, value, key)."""
    query, key, value, read = (b.add("Unsqueeze", x.of_rank(4), b.ints(-1)) for x in (q, k, v, removed))
    factor = b.add("Unsqueeze", b.add("Exp", decay.of_rank(4)), b.ints(-2))
    put = b.add("Mul", read, b.add("Neg", b.add("Unsqueeze", share.of_rank(4), b.ints(-1))))
    rows = b.transposed(b.add("Concat", put, key, axis=-1), 0, 1, 2, 4, 3)  # (.., 2, key)
    with b.body() as body:
        state = body.input(TensorProto.FLOAT, 4)
        now, asked, into, added, kept = (body.input(TensorProto.FLOAT, 4) for _ in range(5))
        columns = b.add("Concat", b.add("MatMul", state, now), added, axis=-1)  # (.., value, 2)
        after = b.add("Add", b.add("Mul", state, kept), b.add("MatMul", columns, into))
        y = b.add("Squeeze", b.add("MatMul", after, asked), b.ints(-1))  # (sequences, heads, value)
    graph = body.graph([(after, TensorProto.FLOAT, 4), (y, TensorProto.FLOAT, 3)])
    last, ys = b.add_many(
        "Scan", s.of_rank(4), read, query, rows, value, factor,
        outputs=2, body=graph, num_scan_inputs=5, scan_input_axes=[1] * 5, scan_output_axes=[1],
    )  # fmt: skip
    return ys, last
