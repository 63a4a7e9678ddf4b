"""Ops in a row that optimizers merge, as a chain of steps that runs on a backend and in numbers with bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from backbay import Context, DType, Tensor

from ..cases.elementwise import repeated
from ..cases.matrix import product
from ..cases.norm import layer_formula, rms_formula, softmax_formula
from ..cases.sequence import rope_formula
from ..draw.draw import Draw
from ..numbers.encoding import FLOOR, unit
from ..numbers.number import Number

EPS, BASE = 0.5, 100.0
LEAVES = ("x", "a", "column", "row", "w")  # (n, tokens) twice, (n), (1, tokens), and (n, n)
X, A, COLUMN, ROW, W = range(len(LEAVES))


@dataclass(frozen=True)
class ChainStep:
    """An op of a chain: how it is traced, and the formula of its result."""

    trace: Callable[..., Tensor]
    formula: Callable[..., Number]


def rounded(x: Number, dtype: DType = DType.F32) -> Number:
    """An intermediate result, rounded to a type."""
    lost = np.abs(x.value) * unit(dtype) + (FLOOR[dtype] if dtype is DType.F16 else 0.0)
    return Number(x.value, x.error + lost, x.cost)


def _through(dtype: DType) -> ChainStep:
    return ChainStep(lambda ctx, x: x.cast(ctx, dtype).cast(ctx, x.dtype), lambda x: rounded(x, dtype))


def _turned(ctx: Context, x: Tensor) -> Tensor:
    return x.permute(ctx, 1, 0).contiguous(ctx)


def _rope(ctx: Context, x: Tensor) -> Tensor:
    n, tokens = x.shape
    places = ctx.from_ints(np.arange(tokens))
    return x.reshape(ctx, n, 1, tokens).rope(ctx, places, n, BASE).reshape(ctx, n, tokens)


def _roped(x: Number) -> Number:
    tokens, n = x.shape
    turn = (np.arange(tokens), n, BASE, 1.0, "normal", None, (0, 0, 0, 0), None)
    return rope_formula(x.reshape(tokens, 1, n), *turn).reshape(tokens, n)


def _stored(ctx: Context, x: Tensor) -> Tensor:
    """The rows in reverse order, written into a leaf of their own."""
    ids = ctx.from_ints(np.arange(x.dim(1))[::-1].copy())
    return ctx.zeros(x.dtype, *x.shape).set_rows(ctx, x, ids)


ONE: dict[str, ChainStep] = {
    "scale": ChainStep(lambda ctx, x: x.scale(ctx, 0.5), lambda x: x * 0.5),
    "neg": ChainStep(lambda ctx, x: x.neg(ctx), lambda x: -x),
    "clamp": ChainStep(lambda ctx, x: x.clamp(ctx, -0.5, 1.0), lambda x: x.clip(-0.5, 1.0)),
    "relu": ChainStep(lambda ctx, x: x.relu(ctx), lambda x: x.clip(0, np.inf)),
    "silu": ChainStep(lambda ctx, x: x.silu(ctx), lambda x: x * x.sigmoid()),
    "sigmoid": ChainStep(lambda ctx, x: x.sigmoid(ctx), lambda x: x.sigmoid()),
    "tanh": ChainStep(lambda ctx, x: x.tanh(ctx), lambda x: x.tanh()),
    "softmax": ChainStep(lambda ctx, x: x.softmax(ctx), softmax_formula),
    "rms_norm": ChainStep(lambda ctx, x: x.rms_norm(ctx, eps=EPS), lambda x: rms_formula(x, None, EPS)),
    "layer_norm": ChainStep(
        lambda ctx, x: x.layer_norm(ctx, eps=EPS), lambda x: layer_formula(x, None, None, EPS)
    ),
    "f16": _through(DType.F16),
    "bf16": _through(DType.BF16),
    "turn": ChainStep(lambda ctx, x: _turned(ctx, _turned(ctx, x)), lambda x: x),
    "reshape": ChainStep(lambda ctx, x: x.reshape(ctx, x.size).neg(ctx).reshape(ctx, *x.shape), lambda x: -x),
    "rope": ChainStep(_rope, _roped),
    "set_rows": ChainStep(_stored, lambda x: x[::-1]),
}
"""Steps of one operand."""

TWO: dict[str, ChainStep] = {
    "add": ChainStep(lambda ctx, x, y: x.add(ctx, y), lambda x, y: x + repeated(y, x.shape)),
    "sub": ChainStep(lambda ctx, x, y: x.sub(ctx, y), lambda x, y: x - repeated(y, x.shape)),
    "mul": ChainStep(lambda ctx, x, y: x.mul(ctx, y), lambda x, y: x * repeated(y, x.shape)),
    "gate": ChainStep(lambda ctx, x, y: x.silu(ctx, y), lambda x, y: x * x.sigmoid() * y),
}
"""Steps of two operands, the second of which may be repeated, except by `gate`."""

STEPS = {
    **ONE,
    **TWO,
    "mulmat": ChainStep(lambda ctx, w, x: w.mulmat(ctx, x), product),
    "sum_rows": ChainStep(lambda ctx, x: x.sum_rows(ctx), lambda x: x.sum()),
}
GATES = ("sigmoid", "silu", "tanh", "relu", "neg", "scale")  # steps that make an operand which is repeated

PATTERNS: tuple[tuple[str, ...], ...] = (
    ("mul", "add"),
    ("rms_norm", "mul"),
    ("silu", "mul"),
    ("add", "add"),
    ("mulmat", "add", "silu"),
    ("scale", "softmax"),
    ("rope", "set_rows"),
    ("add", "rms_norm", "mul"),
    ("f16", "add"),
    ("mul", "mul"),
    ("layer_norm", "mul", "add"),
    ("turn", "add"),
    ("mulmat", "gate"),
    ("add", "mul"),
    ("reshape", "reshape", "mul"),
    ("scale", "add", "softmax"),
    ("mul", "sub"),
    ("mulmat", "add", "relu"),
    ("bf16", "mulmat"),
    ("neg", "add"),
    ("softmax", "mulmat"),
    ("scale", "scale"),
    ("sigmoid", "mul"),
    ("rms_norm", "mul", "rope"),
    ("add", "layer_norm"),
    ("tanh", "mul", "add"),
    ("f16", "bf16"),
    ("clamp", "mul"),
    ("mulmat", "scale"),
    ("set_rows", "mulmat"),
)
"""Ops in a row that an optimizer may merge."""


@dataclass
class FusibleChain:
    """Steps in order: each has the numbers of its operands, leaves first. `outputs` are numbers of steps."""

    steps: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def step(self, name: str, *operands: int) -> int:
        self.steps.append((name, operands))
        return len(LEAVES) + len(self.steps) - 1

    def traced(self, ctx: Context, leaves: Sequence[Tensor]) -> list[Tensor]:
        made = list(leaves)
        for name, operands in self.steps:
            made.append(STEPS[name].trace(ctx, *[made[i] for i in operands]))
        return made

    def computed(self, leaves: Sequence[Number], dtypes: Sequence[DType]) -> list[Number]:
        made = list(leaves)
        for name, operands in self.steps:
            made.append(rounded(STEPS[name].formula(*[made[i] for i in operands]), dtypes[len(made)]))
        return made

    def told(self, number: int) -> str:
        if number < len(LEAVES):
            return LEAVES[number]
        name, operands = self.steps[number - len(LEAVES)]
        return f"{name}({', '.join(map(self.told, operands))})"


def drawn_chain(draw: Draw) -> FusibleChain:
    """Three patterns; each result within them may be an output, too, or have a late reader, also through a view."""
    chain, within, late = FusibleChain(), [], []
    last = X
    for pattern in (draw.by_turn(*PATTERNS), draw.pick(*PATTERNS), draw.pick(*PATTERNS)):
        last = draw.pick(X, last, A)
        if draw.flag():
            last = chain.step(draw.pick(*ONE), last)
        for name in pattern:
            last = _followed(draw, chain, name, last)
            within.append(last)
        chain.outputs.append(last)
    for number in within:
        use = draw.pick("none", "output", "late", "both", "turned", "output")
        if use in ("late", "both"):
            late.append(_followed(draw, chain, draw.pick("neg", "mul", "add", "scale"), number))
        if use in ("output", "both"):
            late.append(number)
        if use == "turned":
            late.append(chain.step("turn", number))
    chain.outputs += [number for number in late if number not in chain.outputs]
    return chain


def _followed(draw: Draw, chain: FusibleChain, name: str, x: int) -> int:
    """A step on x: with another operand, in either order, or with x twice."""
    if name == "mulmat":
        return chain.step(name, W, x)
    if name in ONE:
        return chain.step(name, x)
    if name != "gate" and draw.flag(4):
        return chain.step(name, x, chain.step(draw.pick(*GATES), _repeated(draw, chain, x)))
    y = draw.pick(A, x, X) if name == "gate" else draw.pick(A, COLUMN, ROW, x, X)
    swapped = y not in (COLUMN, ROW) and draw.flag()
    return chain.step(name, y, x) if swapped else chain.step(name, x, y)


def _repeated(draw: Draw, chain: FusibleChain, x: int) -> int:
    """An operand that is smaller than x: of one number for each row, or of one row."""
    leaf = draw.pick(ROW, COLUMN, None)
    return chain.step("sum_rows", x) if leaf is None else leaf
