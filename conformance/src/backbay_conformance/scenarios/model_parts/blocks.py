"""Parts of real models, which backends may fuse: their results must be right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backbay import Context, DType, Level, Precision, Tensor, UnsupportedOpError

from ...cases.matrix import product
from ...cases.norm import rms_formula, softmax_formula
from ...checks.traced_call import coarsest, precision_of
from ...draw.draw import Draw
from ...fault import Fault
from ...machines.fusible_chains import drawn_chain, rounded
from ...numbers.comparison import compare, first_of, must_equal, plain, same
from ...numbers.encoding import Array, from_bytes, round_to, unit
from ...numbers.number import Cost, Number
from ...suite.lab import Lab, scenario

Pairs = dict[str, tuple[Array, Array]]  # two sets of data for each leaf of a block
Formula = Callable[[dict[str, Number]], Number]
Trace = Callable[[Context, dict[str, Tensor]], Tensor]


STEP = 0.02
"""Tolerance relative to a step's largest magnitude: fused kernels round differently; bounds are checked elsewhere."""


def judge_block(lab: Lab, draw: Draw, pairs: Pairs, trace: Trace, formula: Formula) -> None:
    """Compute a block twice, the second time with other data; each result within the coarsest step's bound."""
    with lab.backend.new_context() as ctx:
        tensors = {name: ctx.from_floats(first) for name, (first, _) in pairs.items()}
        y = trace(ctx, tensors)
        cost = cost_of(lab, y)
        for turn, check in enumerate(("block", "replay")):
            for name, pair in pairs.items():
                tensors[name].from_floats(pair[turn])
            ctx.compute(y)
            numbers = {name: Number(pair[turn].astype(np.float64), 0.0, cost) for name, pair in pairs.items()}
            with np.errstate(all="ignore"):
                compare(formula(numbers), y.numpy(), y.dtype, exact=False, check=check)
        steps = steps_of(y)
        at = draw.below(len(steps))
        ctx.compute(y, steps[at])
        compare_step(lab, pairs, trace, at, steps[at].numpy())


def compare_step(lab: Lab, pairs: Pairs, trace: Trace, at: int, beside: Array) -> None:
    """Raise Fault unless a step that is also an output gives the same result as without the rest of the block."""
    with lab.backend.new_context() as ctx:
        leaves = {name: ctx.from_floats(second) for name, (_, second) in pairs.items()}
        step = steps_of(trace(ctx, leaves))[at]
        ctx.compute(step)
        alone = step.numpy()
    peak = np.abs(alone).max(initial=0.0, where=np.isfinite(alone))
    with np.errstate(invalid="ignore"):
        wrong = ~(same(beside, alone) | (np.abs(beside - alone) <= STEP * peak))
    if wrong.any():
        assert step.op is not None
        first = first_of(wrong)
        told = f"{step.op.name} gives another result as an output of the whole block than alone"
        raise Fault("outputs", f"{told}: at {first[::-1]} {plain(beside[first])} and {plain(alone[first])}")


def cost_of(lab: Lab, *results: Tensor) -> Cost:
    precisions: list[Precision] = []
    composite = False
    for tensor in steps_of(*results):
        assert tensor.op is not None
        specs = [tensor.args[i] for i in tensor.op.operands]
        precisions.append(precision_of(lab.backend, tensor.op, specs))
        composite |= lab.backend.supports(tensor.op, specs).level is Level.COMPOSITE
    return Cost.of(coarsest(precisions), unit(DType.F32) if composite else 0.0)


def steps_of(*results: Tensor) -> list[Tensor]:
    """The steps of a block, including its results; views are no steps."""
    found, stack = dict.fromkeys(results), [*results]
    while stack:
        tensor = stack.pop()
        for operand in tensor.op.flat_operands(tensor.args) if tensor.op else ():
            if operand not in found:
                found[operand] = None
                stack.append(operand)
    return [tensor for tensor in found if tensor.op is not None and not tensor.op.view]


def normal(draw: Draw, *shape: int, scale: float = 1.0) -> tuple[Array, Array]:
    """Two sets of data for a leaf."""
    rng = np.random.default_rng(draw.below(1 << 16))
    first, second = (rng.standard_normal((2, *shape[::-1])) * scale).astype(np.float32)
    return first, second


@scenario("graph", tiny=1, smoke=3, default=30, nightly=300)
def feed_forward(lab: Lab, draw: Draw) -> None:
    """The feed-forward half of a layer: norm, gate and up, activation, down, residual."""
    n, inner, tokens = draw.pick(32, 8, 33, 64), draw.pick(48, 16, 65), draw.pick(3, 1, 8, 17)
    shapes = {"x": (n, tokens), "norm": (n,), "gate": (n, inner), "up": (n, inner), "down": (inner, n)}
    pairs = {
        name: normal(draw, *shape, scale=1.0 if name in ("x", "norm") else 0.2)
        for name, shape in shapes.items()
    }
    reused = draw.flag()

    def trace(ctx: Context, t: dict[str, Tensor]) -> Tensor:
        h = t["x"].rms_norm(ctx, t["norm"], eps=1e-5)
        y = t["gate"].mulmat(ctx, h).silu(ctx, t["up"].mulmat(ctx, h))
        y = t["down"].mulmat(ctx, y).add(ctx, t["x"])
        return y.add(ctx, h) if reused else y

    def formula(v: dict[str, Number]) -> Number:
        h = rounded(rms_formula(v["x"], v["norm"], 1e-5))
        gate, up = rounded(product(v["gate"], h)), rounded(product(v["up"], h))
        y = rounded(rounded(gate * gate.sigmoid()) * up)
        y = rounded(rounded(product(v["down"], y)) + v["x"])
        return rounded(y + h) if reused else y

    judge_block(lab, draw, pairs, trace, formula)


@scenario("graph", smoke=3, default=30, nightly=300)
def scores_and_values(lab: Lab, draw: Draw) -> None:
    """Attention in single ops: scores, scale, mask, softmax, values."""
    d, tokens, history = draw.pick(16, 8, 33), draw.pick(2, 1, 5), draw.pick(7, 1, 32, 65)
    pairs = {"q": normal(draw, d, tokens), "k": normal(draw, d, history), "v": normal(draw, history, d)}
    causal = np.triu(np.full((tokens, history), -np.inf, np.float32), 1 + max(0, history - tokens))
    pairs["mask"] = (causal, causal)

    def trace(ctx: Context, t: dict[str, Tensor]) -> Tensor:
        s = t["k"].mulmat(ctx, t["q"]).scale(ctx, 0.25).add(ctx, t["mask"])
        return t["v"].mulmat(ctx, s.softmax(ctx))

    def formula(v: dict[str, Number]) -> Number:
        s = rounded(rounded(rounded(product(v["k"], v["q"])) * 0.25) + v["mask"])
        return rounded(product(v["v"], rounded(softmax_formula(s))))

    judge_block(lab, draw, pairs, trace, formula)


@scenario("graph", smoke=3, default=30, nightly=300)
def sums_and_shared_parts(lab: Lab, draw: Draw) -> None:
    """Chained additions, a product with a bias, and ops that differ only in an attribute."""
    n, tokens = draw.pick(16, 5, 33), draw.pick(3, 1, 8)
    pairs = {name: normal(draw, n, tokens) for name in ("x", "a", "b", "c", "bias")}
    pairs["w"] = normal(draw, n, n, scale=0.3)

    def trace(ctx: Context, t: dict[str, Tensor]) -> Tensor:
        s = t["x"].add(ctx, t["a"]).add(ctx, t["b"]).add(ctx, t["c"])
        p = t["w"].mulmat(ctx, s).add(ctx, t["bias"])
        y = p.scale(ctx, 2.0).add(ctx, p.scale(ctx, -0.5))
        y = y.add(ctx, p.rms_norm(ctx, eps=1e-5)).add(ctx, p.rms_norm(ctx, eps=0.5).mul(ctx, t["a"]))
        return y.add(ctx, p.clamp(ctx, -0.5, 0.25)).add(ctx, p.clamp(ctx, -1.0, 1.0))

    def formula(v: dict[str, Number]) -> Number:
        s = rounded(rounded(rounded(v["x"] + v["a"]) + v["b"]) + v["c"])
        p = rounded(rounded(product(v["w"], s)) + v["bias"])
        y = rounded(p * 2.0 + p * -0.5)
        y = rounded(y + rounded(rms_formula(p, None, 1e-5)))
        y = rounded(y + rounded(rounded(rms_formula(p, None, 0.5)) * v["a"]))
        return rounded(rounded(y + p.clip(-0.5, 0.25)) + p.clip(-1.0, 1.0))

    judge_block(lab, draw, pairs, trace, formula)


@scenario("graph", tiny=1, smoke=6, default=210, nightly=1500, structures=6)
def patterns_whose_parts_are_read(lab: Lab, draw: Draw) -> None:
    """Ops that optimizers merge: results within them are outputs, too, or are read again later."""
    chain, kind = drawn_chain(draw), draw.by_turn(DType.F32, DType.F32, DType.F16, DType.F32, DType.BF16)
    n = draw.pick(8, 2, 32, 34)
    tokens = draw.pick(3, 1, 8, n)
    shapes = ((n, tokens), (n, tokens), (n,), (1, tokens), (n, n))
    pairs = [normal(draw, *shape, scale=n**-0.5 if shape == (n, n) else 1.0) for shape in shapes]
    draw.note("; ".join(map(chain.told, chain.outputs)))
    with lab.backend.new_context() as ctx:
        leaves = [ctx.empty(kind, *shape) for shape in shapes]
        made = chain.traced(ctx, leaves)
        outputs = [made[number] for number in chain.outputs]
        cost = cost_of(lab, *outputs)
        for turn, check in enumerate(("pattern", "replay")):
            held = [round_to(pair[turn], kind) for pair in pairs]
            for leaf, numbers in zip(leaves, held, strict=True):
                leaf.from_floats(numbers)
            ctx.compute(*outputs)
            with np.errstate(all="ignore"):
                given = [Number(numbers, 0.0, cost) for numbers in held]
                results = chain.computed(given, [tensor.dtype for tensor in made])
            for number, output in zip(chain.outputs, outputs, strict=True):
                got = from_bytes(output.bytes(), output.dtype, output.shape)
                try:
                    compare(results[number], got, output.dtype, exact=False, check=check)
                except Fault as fault:
                    raise Fault(check, f"{chain.told(number)}: {fault.message}", fault.place) from None


@scenario("graph", smoke=3, default=28, nightly=150)
def casts_there_and_back(lab: Lab, draw: Draw) -> None:
    """A cast to a narrow type and back gives what the narrow tensor holds where it is a result by itself."""
    kind = draw.by_turn(DType.F16, DType.Q8_0, DType.BF16, DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1)
    n, rows = draw.pick(32, 64, 96), draw.pick(3, 1, 8)
    data = normal(draw, n, rows)[0] * np.exp(np.random.default_rng(draw.below(9)).uniform(-9, 9, (rows, 1)))
    with lab.backend.new_context() as ctx, lab.backend.new_context() as other:
        narrow = other.from_floats(data).scale(other, 0.7).cast(other, kind)
        try:
            other.compute(narrow)
        except UnsupportedOpError:
            if kind.is_quantized:  # which is optional, and supports() sees no target
                return
            raise
        x = ctx.from_floats(data).scale(ctx, 0.7)
        y = x.cast(ctx, kind).cast(ctx, DType.F32)
        lost = x.sub(ctx, y)
        ctx.compute(y, lost, *[x] * draw.below(2))
        want = narrow.numpy()
        must_equal(y.numpy(), want, f"f32 to {kind} and back", "casts")
        rounding = np.float32(0.7) * data.astype(np.float32) - want
        near = np.abs(lost.numpy() - rounding) <= 2.0**-20 * np.abs(data)
        if not near.all():
            at = first_of(~near)
            told = f"at {at[::-1]} expected about {plain(rounding[at])}, got {plain(lost.numpy()[at])}"
            raise Fault("casts", f"what a cast of f32 to {kind} loses: {told}", at)


@scenario("graph", smoke=1, default=8, nightly=60)
def long_graph(lab: Lab, draw: Draw) -> None:
    """Up to 8,000 nodes and 64 outputs, with recent and distant operands; small integers, known to the bit."""
    rng = np.random.default_rng(draw.below(1 << 16))
    sizes = (150, 4), (40, 64), (400, 16), (1000, 4), (4000, 4), (40, 32), (150, 2), (1500, 24)
    steps, count = draw.by_turn(*sizes)
    with lab.backend.new_context() as ctx:
        arrays = [rng.integers(-9, 10, (3, 8)).astype(np.float64) for _ in range(3)]
        tensors = [ctx.from_floats(array) for array in arrays]
        for _ in range(steps):
            i, j = len(arrays) - 1 - int(rng.integers(2)), int(rng.integers(len(arrays)))
            sign = 1 if rng.integers(2) else -1
            made = tensors[i].add(ctx, tensors[j]) if sign > 0 else tensors[i].sub(ctx, tensors[j])
            tensors.append(made.clamp(ctx, -99.0, 99.0))
            arrays.append(np.clip(arrays[i] + sign * arrays[j], -99, 99))
        outputs = {len(arrays) - 1, *(3 + rng.permutation(steps)[: count - 1]).tolist()}
        ctx.compute(*[tensors[i] for i in outputs])
        for i in sorted(outputs):
            told = f"node {i} of {len(arrays)}, one of {len(outputs)} outputs"
            must_equal(tensors[i].numpy(), arrays[i], told)


READS: tuple[Callable[[Context, Tensor], Tensor], ...] = (
    lambda ctx, x: x.contiguous(ctx),
    lambda ctx, x: x.duplicate(ctx),
    lambda ctx, x: x.scale(ctx, 1.0),
    lambda ctx, x: x.permute(ctx, 1, 0).contiguous(ctx).permute(ctx, 1, 0).contiguous(ctx),
    lambda ctx, x: x.cast(ctx, DType.F32 if x.dtype is DType.F16 else DType.F16).cast(ctx, DType.F32),
    lambda ctx, x: ctx.from_floats(np.eye(x.dim(0))).mulmat(ctx, x),
    lambda ctx, x: x.rows(ctx, ctx.from_ints(np.arange(x.dim(1)))),
)
"""Ways to read a tensor; each gives the tensor's data."""


@scenario("graph", tiny=1, smoke=4, default=40, nightly=400, structures=2)
def reads_around_writes(lab: Lab, draw: Draw) -> None:
    """The same read before and after writes into its leaf; each read gives the leaf's data at that point.

    The leaf may be of a narrow type, to which the written numbers are rounded, and a read may take the write's alias.
    """
    n, rows = draw.pick(4, 32, 7), draw.pick(5, 3, 33)
    low = draw.below(rows - 1)
    high = low + 1 + draw.below(rows - low - 1)
    rng = np.random.default_rng(draw.below(1 << 16))
    read, kind = draw.by_turn(*READS), draw.by_turn(DType.F32, DType.F16, DType.F32, DType.BF16)
    by_alias = draw.flag() if kind is DType.F32 else draw.by_turn(True, False, each=4)
    whole = not by_alias and draw.flag()
    finer = 1.0 if kind is DType.F32 else 1 + 2.0**-12  # what no narrow type holds
    with lab.backend.new_context() as own, lab.backend.new_context() as other:
        ctx = other if draw.flag() else own  # leaves of another context can be written too
        held = rng.integers(-9, 10, (rows, n)).astype(np.float64)
        state = own.empty(kind, n, rows).from_floats(held)
        source = ctx.empty(DType.F32, n, high - low)
        part = state if whole else state.slice(ctx, 1, low, high)
        outputs = [read(ctx, part)]
        ctx.forward(outputs[0])
        for step in (source, source.scale(ctx, 2.0)):
            alias = step.copy(ctx, state.slice(ctx, 1, low, high))
            ctx.forward(alias)
            outputs.append(read(ctx, alias if by_alias else part))
            ctx.forward(outputs[-1])
        for turn in range(2):
            new = rng.integers(-9, 10, (high - low, n)).astype(np.float64)
            source.from_floats(new * finer)
            ctx.compute(*outputs)
            for k, output in enumerate(outputs):
                held[low:high] = held[low:high] if k == 0 else k * new
                want = held if whole else held[low:high]
                must_equal(output.numpy(), want, f"run {turn}: a read after {k} of 2 writes", "order")
