"""Random graphs of small integers: chains, shared parts, views of views, reads after writes; and core's composites."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from backbay import DType, Level
from backbay.internals import composite_kernels

from ..checks.judgement import cost_of, judge
from ..checks.traced_call import TracedCall, make
from ..draw.draw import MODES, Draw
from ..machines.shadow import ShadowGraph, ShadowTensor
from ..numbers.encoding import Array, round_to
from ..suite.case import CASES, Case
from ..suite.lab import Lab, scenario

PEAK = 200.0  # integers up to it are held by each type that a backend may round activations to
WHOLE = 2.0**22
"""Results are at most as large, and sums and differences of two of them exact in single precision."""
FACTOR = 2000.0  # the products of integers up to it are at most WHOLE


def numbers(draw: Draw, shape: tuple[int, ...], peak: int = 9) -> Array:
    rng = np.random.default_rng(draw.below(1 << 16))
    return rng.integers(-peak, peak + 1, shape[::-1]).astype(np.float64)


@scenario("graph", tiny=1, smoke=12, default=240, nightly=2000, structures=8)
def random_graph(lab: Lab, draw: Draw) -> None:
    """Build a graph, compute it, compute it again with new data, then grow it."""
    with lab.backend.new_context() as ctx:
        wiring = ShadowGraph(ctx)
        n, m = draw.pick(4, 1, 3, 8, 17, 32, 33), draw.pick(3, 1, 2, 5, 16)
        leaves = [wiring.leaf(numbers(draw, (n, m)), 9) for _ in range(1 + draw.below(3))]
        states = [wiring.leaf(numbers(draw, (n, m + draw.below(3))), PEAK) for _ in range(draw.below(3))]
        grow(draw, wiring, states, 18)
        for _ in range(3):
            if draw.flag():
                read_again(draw, wiring)
        outputs = chosen(draw, wiring)
        forward(draw, wiring, outputs)
        wiring.check(outputs, states, "first")
        for leaf in leaves:
            wiring.rewrite(leaf, numbers(draw, leaf.shape))
        wiring.check(outputs, states, "with new data")
        if draw.flag():
            wiring.rewrite(leaves[0], numbers(draw, leaves[0].shape))
            wiring.check(outputs[: 1 + draw.below(len(outputs))], states, "with fewer outputs")
        if draw.flag():
            grow(draw, wiring, states, 6)
            outputs = chosen(draw, wiring)
            forward(draw, wiring, outputs)
            wiring.check(outputs, states, "after tracing more")


def forward(draw: Draw, wiring: ShadowGraph, outputs: list[ShadowTensor]) -> None:
    for output in outputs:
        wiring.forward(output)
    draw.note("; ".join(wiring.log))


def grow(draw: Draw, wiring: ShadowGraph, states: list[ShadowTensor], steps: int) -> None:
    """About half of so many steps."""
    for _ in range(steps):
        nodes = wiring.nodes
        if not draw.flag():
            continue
        if states and draw.flag(4):
            write(draw, wiring, draw.pick(*states))
            continue
        # In half of the cases one of the last four nodes, so that chains grow long.
        x = draw.pick(*nodes[:-5:-1]) if draw.flag() else draw.pick(*nodes)
        draw.pick(*STEPS)(draw, wiring, x)


def read_again(draw: Draw, wiring: ShadowGraph) -> None:
    """A result with one more reader, then a view of views of it that is read last: memory that was taken too early shows."""
    made = [node for node in wiring.nodes if not node.is_leaf] or wiring.nodes
    x = seen = made[draw.below(len(made))]
    for _ in range(draw.pick(1, 0, 2, 3, 4)):
        seen = viewed(draw, wiring, seen)
    draw.pick(binary, unary, scaled)(draw, wiring, x)
    for _ in range(draw.below(3)):
        draw.pick(binary, unary)(draw, wiring, wiring.nodes[-1])
    draw.pick(binary, unary)(draw, wiring, seen)


def viewed(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> ShadowTensor:
    n, m = x.shape
    way = draw.pick("permute", "slice", "reshape")
    if way == "slice":
        return sliced(draw, wiring, x)
    if way == "permute" or not x.tensor.is_contiguous:
        return wiring.op("permute", x, 1, 0, evaluate=lambda a: a.T)
    return wiring.op("reshape", x, m, n, evaluate=lambda a: a.reshape(n, m))


def chosen(draw: Draw, wiring: ShadowGraph) -> list[ShadowTensor]:
    """The outputs: the last node and a few others, which may be inputs of other nodes, or views; or all that nothing
    reads; or all.
    """
    made = [node for node in wiring.nodes if not node.is_leaf] or wiring.nodes
    read = {part for node in wiring.nodes for part in node.operands}
    ends = [node for node in made if node not in read]
    few = [made[draw.below(len(made))] for _ in range(draw.below(3))]
    picked = {made[-1], *draw.pick(few, ends, [*few, *ends], made)}
    return sorted(picked, key=wiring.nodes.index)


def small(wiring: ShadowGraph, x: ShadowTensor, most: float) -> ShadowTensor:
    """x, or x clamped if it may be larger than `most`."""
    if x.peak <= most:
        return x
    return wiring.op("clamp", x, -PEAK, PEAK, evaluate=lambda a: np.clip(a, -PEAK, PEAK), peak=PEAK)


# -- steps -----------------------------------------------------------------------------------------------


def unary(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    name = draw.pick("neg", "relu", "contiguous", "duplicate", "sqr")
    function: Callable[[Array], Array] = {
        "neg": lambda a: -a,
        "relu": lambda a: np.maximum(a, 0),
        "sqr": lambda a: a * a,
    }.get(name, np.array)
    if name == "sqr":
        x = small(wiring, x, FACTOR)
    wiring.op(name, x, evaluate=function, peak=x.peak**2 if name == "sqr" else x.peak)


def scaled(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    s, x = draw.pick(2.0, -1.0, 3.0), small(wiring, x, WHOLE / 3)
    wiring.op("scale", x, s, evaluate=lambda a: a * s, peak=x.peak * 3)


def narrowed(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    """x cast to another float type and back; in half of the cases the type cannot hold x, and the loss is used."""
    kind, x = draw.pick(DType.F16, DType.BF16), small(wiring, x, PEAK)
    if draw.flag():
        x = wiring.op("scale", x, WIDE, evaluate=lambda a: a * WIDE, peak=x.peak * WIDE)
    there = wiring.op("cast", x, kind, evaluate=lambda a: round_to(a, kind))
    back = wiring.op("cast", there, DType.F32, evaluate=np.array)
    wiring.nodes.remove(there)
    if x.peak > PEAK:
        wiring.op("sub", x, back, evaluate=np.subtract, peak=PEAK)


WIDE = 257.0
"""Multiples of it up to WIDE * PEAK need more bits than f16 has, and end below 65504; f16 and bf16 lose at most 128."""


def binary(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    """Two results, in either order, or one twice; the second may be repeated."""
    shapes = (x.shape, (x.shape[0], 1), (1, x.shape[1]), (1, 1))
    partners = [node for node in wiring.nodes if node.shape in shapes and node.tensor.dtype is DType.F32]
    y = partners[draw.below(len(partners))] if partners and not draw.flag(6) else x
    name = draw.pick("add", "mul", "sub", "relu", "add", "mul")
    most = FACTOR if name in ("mul", "relu") else WHOLE / 2
    y = small(wiring, y, most)
    x = small(wiring, x, most) if x is not y else y
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "relu": lambda a, b: np.maximum(a, 0) * b,
    }
    if x.shape == y.shape:
        x, y = (y, x) if draw.flag() else (x, y)
    elif name == "relu":
        name = "mul"  # both operands of relu have one shape
    peak = x.peak * y.peak if most == FACTOR else x.peak + y.peak
    wiring.op(name, x, y, evaluate=functions[name], peak=peak)


def pair(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    """Two ops in a row, which an optimizer may merge; other nodes may read the first one's result, too."""
    draw.pick(binary, binary, scaled, product)(draw, wiring, x)
    draw.pick(binary, binary, scaled, unary, narrowed)(draw, wiring, wiring.nodes[-1])


def product(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    x, n = small(wiring, x, PEAK), x.shape[0]
    weight = wiring.leaf(numbers(draw, (n, draw.pick(n, 1, 3, 16)), 2), 2)
    wiring.op("mulmat", weight, x, evaluate=lambda w, a: a @ w.T, peak=2 * n * x.peak)


def folded(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    n = x.shape[0]
    x, summed = small(wiring, x, WHOLE / n), draw.flag()
    evaluate = partial(np.sum, axis=-1, keepdims=True) if summed else partial(np.cumsum, axis=-1)
    wiring.op("sum_rows" if summed else "cumsum", x, evaluate=evaluate, peak=n * x.peak)


def transposed(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    y = wiring.op("permute", x, 1, 0, evaluate=lambda a: a.T)
    if draw.flag():
        wiring.op("contiguous", y, evaluate=np.array)


def reshaped(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    """A view of another shape, an op on it, and a view of the first shape."""
    n, m = x.shape
    if not x.tensor.is_contiguous:
        x = wiring.op("contiguous", x, evaluate=np.array)
    y = wiring.op("reshape", x, m, n, evaluate=lambda a: a.reshape(n, m))
    if not draw.flag(3):
        y = wiring.op("neg", y, evaluate=np.negative)
    wiring.op("reshape", y, n, m, evaluate=lambda a: a.reshape(m, n))


def sliced(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> ShadowTensor:
    dim = draw.below(2)
    low = draw.below(x.shape[dim])
    high = low + 1 + draw.below(x.shape[dim] - low)
    step = draw.pick(1, 2)
    index = (slice(None),) * (1 - dim) + (slice(low, high, step),)
    return wiring.op("slice", x, dim, low, high, step, evaluate=lambda a: a[index])


def joined(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    floats = [t for t in wiring.nodes if t.tensor.dtype is DType.F32 and t.shape[1] < 40]
    partners = [t for t in floats if t.shape[0] == x.shape[0]]
    if x in partners:
        y = partners[draw.below(len(partners))]
        wiring.op("concat", x, y, 1, evaluate=lambda a, b: np.concatenate([a, b]), peak=max(x.peak, y.peak))


def gathered(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    rng = np.random.default_rng(draw.below(1 << 16))
    ids = rng.integers(0, x.shape[1], draw.pick(1, 2, 5)).astype(np.int32)
    wiring.op("rows", x, wiring.ids(ids), evaluate=lambda a, i: a[i])


def routed(draw: Draw, wiring: ShadowGraph, x: ShadowTensor) -> None:
    """Rows of a table, with ids that sort a row of x."""
    n = x.shape[0]
    if x.tensor.dtype is not DType.F32 or n > 128:
        return
    rng, k, at = np.random.default_rng(draw.below(1 << 16)), 1 + draw.below(n), draw.below(x.shape[1])
    x = small(wiring, x, PEAK)
    fractions = wiring.leaf(rng.permutation(n)[None] / 128, 1)  # no two keys of a row are equal
    keys = wiring.op("add", x, fractions, evaluate=np.add)
    if draw.flag():
        ids = wiring.op("argsort", keys, evaluate=lambda a: a.argsort(-1))
    else:
        ids = wiring.op("top_k", keys, k, evaluate=lambda a: (-a).argsort(-1)[:, :k])
    row = wiring.op("slice", ids, 1, at, at + 1, evaluate=lambda a: a[at : at + 1])
    table = wiring.leaf(numbers(draw, (draw.pick(n, 4), n)), 9)
    taken = wiring.op("rows", table, row, evaluate=lambda a, i: a[i])
    for hidden in (fractions, keys, ids, row, taken):
        wiring.nodes.remove(hidden)
    wiring.op("reshape", taken, *taken.shape[:2], evaluate=lambda a: a[0])


STEPS: tuple[Callable[[Draw, ShadowGraph, ShadowTensor], object], ...] = (
    unary,
    scaled,
    binary,
    product,
    folded,
    transposed,
    reshaped,
    sliced,
    joined,
    gathered,
    routed,
    narrowed,
    pair,
    pair,
    unary,
)


# -- writes ----------------------------------------------------------------------------------------------


def write(draw: Draw, wiring: ShadowGraph, state: ShadowTensor) -> None:
    rows = [t for t in wiring.nodes if t.shape[0] == state.shape[0] and 0 < t.shape[1] <= state.shape[1]]
    rows = [t for t in rows if t.tensor.dtype is DType.F32]
    x = small(wiring, rows[draw.below(len(rows))], PEAK)  # states must not grow from run to run
    draw.pick(copied, placed, scattered)(draw, wiring, state, x)


def copied(draw: Draw, wiring: ShadowGraph, state: ShadowTensor, x: ShadowTensor) -> None:
    low = draw.below(state.shape[1] - x.shape[1] + 1)
    target = wiring.op("slice", state, 1, low, low + x.shape[1], evaluate=lambda a: a[low : low + x.shape[1]])
    wiring.forward(wiring.op("copy", x, target, evaluate=lambda a, dst: replaced(dst, ..., a)))


def placed(draw: Draw, wiring: ShadowGraph, state: ShadowTensor, x: ShadowTensor) -> None:
    low = draw.below(state.shape[1] - x.shape[1] + 1)
    offset, rows = low * state.tensor.stride(1), slice(low, low + x.shape[1])
    wiring.forward(wiring.op("set", state, x, offset, evaluate=lambda dst, a: replaced(dst, rows, a)))


def scattered(draw: Draw, wiring: ShadowGraph, state: ShadowTensor, x: ShadowTensor) -> None:
    order = np.random.default_rng(draw.below(1 << 16)).permutation(state.shape[1])[: x.shape[1]]
    ids = wiring.ids(order.astype(np.int32))
    wiring.forward(wiring.op("set_rows", state, x, ids, evaluate=lambda dst, a, at: replaced(dst, at, a)))


def replaced(dst: Array, index: Any, a: Array) -> Array:
    """The destination itself, with new elements, which may be its own."""
    dst[index] = np.array(a)
    return dst


# -- composites in place of kernels ----------------------------------------------------------------------


def composed() -> list[Case]:
    """The cases of ops with a composite, except inline ops, views and writes."""
    kinds = [case for case in CASES.values() if case.op.composite is not None]
    return [case for case in kinds if not (case.op.inline or case.op.view or case.op.writes is not None)]


@scenario("graph", tiny=1, smoke=20, default=200, nightly=2000, structures=4)
def composites(lab: Lab, draw: Draw) -> None:
    """An op with both a kernel and a composite gives the right result by its composite as well.

    A fault lies in the kernels that the composite uses; the op's own case tests the op's kernel.
    """
    cases = composed()
    case, turn = draw.by_turn(*cases), draw.turn // len(cases)
    draw.turn = turn // 2 * len(MODES) + turn % 2
    if draw.mode == "special":  # which composites need not keep
        draw.mode = "wide"
    call = case.draw(draw)
    with TracedCall(lab.backend, call, composed=True) as traced:
        if traced.level is not Level.KERNEL:
            return  # the op's own case runs the composite
        parts = {op.name for op, _ in composite_kernels(call.op, traced.args, traced.backend.supports)}
        draw.note(f"{call} made of {', '.join(sorted(parts))}")
        make(call, draw.mode, traced.precision, 0)
        traced.write()
        cost = cost_of(call, Level.COMPOSITE, traced.precision)
        judge(call, traced, traced.run(), cost, "wide", "composed")
