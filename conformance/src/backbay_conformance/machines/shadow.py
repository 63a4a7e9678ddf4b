"""The shadow of a context: its graph in plain NumPy, node by node; the ops that the machine of a backend traces, and its weights."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from backbay import Context, DType, Tensor

from ..draw.model_file import write_model
from ..numbers.comparison import must_equal
from ..numbers.encoding import Array
from .machine import ChoiceSource

WIDTH = 8
WEIGHTS: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (WIDTH, 5),
    "blk.0.attn_k.weight": (WIDTH, 3),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.1.attn_q.weight": (WIDTH, WIDTH),
    "output.weight": (WIDTH, 3),
}
"""Names and shapes, dimension 0 first."""
HALF = ("blk.0.attn_k.weight", "blk.1.attn_q.weight")
"""Names of the f16 weights; the others are f32. The first leaves a gap up to the next multiple of 32 bytes."""


def weight(name: str) -> Array:
    """The numbers of a weight: small integers, different for each weight."""
    shape = WEIGHTS[name]
    rng = np.random.default_rng(list(WEIGHTS).index(name))
    return rng.integers(-3, 4, shape[::-1]).astype(np.float64)


@cache
def small_model() -> Path:
    """The path of the file, which is removed when the process exits."""
    folder = Path(tempfile.mkdtemp(prefix="backbay-conformance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    stored = (
        (name, DType.F16, weight(name).astype(np.float16))
        if name in HALF
        else (name, DType.F32, weight(name).astype(np.float32))
        for name in WEIGHTS
    )
    return write_model(folder / "small.gguf", 2, stored, WIDTH)


@dataclass(eq=False)
class ShadowTensor:
    """A tensor and the data that it must hold.

    A leaf holds `data`. A view is a NumPy view of its first operand's array. Any other node computes an array from
    its operands' arrays; `target` is the index of the operand that a write changes.
    """

    tensor: Tensor
    owner: ShadowContext | None  # None for a weight
    name: str
    peak: float  # bound of all elements, so that sums stay exact
    operands: tuple[ShadowTensor, ...] = ()
    function: Callable[..., Array] | None = None
    view: bool = False
    target: int | None = None
    data: Array | None = None
    written: bool = True  # a leaf is unwritten until its data are set

    @property
    def is_leaf(self) -> bool:
        return self.function is None

    @property
    def base(self) -> ShadowTensor:
        """The node whose storage this node shares; the node itself if it has its own."""
        if self.target is not None:
            return self.operands[self.target].base
        return self.operands[0].base if self.view else self

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def leaves(self) -> Iterator[ShadowTensor]:
        """All leaves and weights that the node depends on, or the node itself if it is a leaf."""
        if self.is_leaf:
            yield self
        for operand in self.operands:
            yield from operand.leaves()


@dataclass(eq=False)
class ShadowContext:
    """A context, and the data that its tensors must hold."""

    ctx: Context
    name: str
    nodes: list[ShadowTensor] = field(default_factory=list)
    roots: list[ShadowTensor] = field(default_factory=list)
    results: dict[ShadowTensor, Array | None] = field(
        default_factory=dict
    )  # None: readable, but with unknown data
    latest: list[ShadowTensor] = field(default_factory=list)  # the outputs of the last compute
    doubtful: set[ShadowTensor] = field(default_factory=set)  # may be readable or not
    closed: bool = False
    stale: bool = True  # the next compute compiles
    moved: bool = False  # another context has compiled since, and may have moved shared memory

    def root(self, shadow: ShadowTensor) -> None:
        if shadow not in self.roots:
            self.roots.append(shadow)
            self.stale = True

    def doubt(self) -> None:
        """From now on the results may be readable, or not."""
        self.doubtful |= set(self.results)
        self.results = {}

    def needs(self) -> Iterator[ShadowTensor]:
        for root in self.roots:
            yield from root.leaves()

    def run(self) -> None:
        """Evaluate each root in order, after its operands. A view shows its storage's data at the time of reading."""
        self.values: dict[ShadowTensor, Array] = {}
        self.known: dict[ShadowTensor, bool] = {}
        for root in self.roots:
            self._evaluate(root)

    def is_known(self, shadow: ShadowTensor) -> bool:
        """Whether the node's data depend on no unwritten leaf."""
        base = shadow.base
        return base.written if base.is_leaf else self.known[base]

    def _evaluate(self, shadow: ShadowTensor) -> Array:
        if shadow in self.values:
            return self.values[shadow]
        operands = [self._evaluate(operand) for operand in shadow.operands]
        known = all(self.is_known(operand) for operand in shadow.operands)
        if shadow.function is None:
            assert shadow.data is not None
            result = shadow.data
        elif shadow.target is not None:
            result, base = operands[shadow.target], shadow.base
            result[...] = shadow.function(*operands)
            source = all(self.is_known(o) for i, o in enumerate(shadow.operands) if i != shadow.target)
            base.written = source and (base.written or result.size == base.tensor.size)
        else:
            result = shadow.function(*operands)
            result = result if shadow.view else np.array(result)
        self.values[shadow], self.known[shadow] = result, known
        return result


class ShadowGraph(ShadowContext):
    """A graph in a context, with the expected data of each node; `log` tells how it was built."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx, "")
        self.log: list[str] = []
        self._count = 0

    def leaf(self, numbers: Array, peak: float) -> ShadowTensor:
        shadow = ShadowTensor(
            self.ctx.from_floats(numbers), self, self._name("leaf"), peak, data=numbers.copy()
        )
        return self._keep(shadow, f"leaf {numbers.shape[::-1]}")

    def ids(self, numbers: Array) -> ShadowTensor:
        return ShadowTensor(
            self.ctx.from_ints(numbers), self, "ids", numbers.max(initial=0), data=numbers.copy()
        )

    def op(
        self,
        name: str,
        x: ShadowTensor,
        *args: Any,
        evaluate: Callable[..., Array],
        peak: float | None = None,
    ) -> ShadowTensor:
        """Trace an op by its name; shadows in `args` are operands. Without a `peak`, it is that of x."""
        given = [arg.tensor if isinstance(arg, ShadowTensor) else arg for arg in args]
        tensor = getattr(x.tensor, name)(self.ctx, *given)
        operands = (x, *[arg for arg in args if isinstance(arg, ShadowTensor)])
        shown = ", ".join(arg.name if isinstance(arg, ShadowTensor) else str(arg) for arg in args)
        peak, own = x.peak if peak is None else peak, self._name("t")
        # A view, or an array that the function makes.
        shadow = ShadowTensor(tensor, self, own, peak, operands, evaluate, view=True)
        return self._keep(shadow, f"{own} = {x.name}.{name}({shown}) {tensor.shape}")

    def forward(self, shadow: ShadowTensor) -> None:
        if shadow not in self.roots:
            self.ctx.forward(shadow.tensor)
            self.root(shadow)
            self.log.append(f"forward({shadow.name})")

    def rewrite(self, leaf: ShadowTensor, numbers: Array) -> None:
        assert leaf.data is not None
        leaf.tensor.from_floats(numbers)
        leaf.data[...] = numbers

    def check(self, outputs: Iterable[ShadowTensor], states: Iterable[ShadowTensor], when: str) -> None:
        """Compute on the backend and in NumPy, and compare the readable results; each output is a root."""
        named = list(outputs)
        self.ctx.compute(*[shadow.tensor for shadow in named])
        self.run()
        for shadow in (*named, *states):
            want = shadow.data if shadow.data is not None else self.values[shadow]
            must_equal(shadow.tensor.numpy(), np.asarray(want, np.float64), f"{when}: {shadow.name}")

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _keep(self, shadow: ShadowTensor, line: str) -> ShadowTensor:
        self.nodes.append(shadow)
        self.log.append(line)
        return shadow


EXACT = 2048.0  # integers up to this are exact in every type that a backend may round activations to


class OperandSource(Protocol):
    """Gives actions their operands: the contexts and weights of a BackendMachine."""

    def open_contexts(self) -> list[ShadowContext]: ...

    def weight(self, choose: ChoiceSource) -> ShadowTensor: ...


Traced = Callable[[OperandSource, ShadowContext, ShadowTensor, ChoiceSource], ShadowTensor | None]


def _unary(
    peak: Callable[[float], float], trace: Callable[..., Tensor], function: Callable[[Array], Array]
) -> Traced:
    def made(
        machine: OperandSource, ctx: ShadowContext, x: ShadowTensor, choose: ChoiceSource
    ) -> ShadowTensor | None:
        top = peak(x.peak)
        return ShadowTensor(trace(x.tensor, ctx.ctx), ctx, "", top, (x,), function) if top <= EXACT else None

    return made


def _binary(
    machine: OperandSource, ctx: ShadowContext, x: ShadowTensor, choose: ChoiceSource
) -> ShadowTensor | None:
    """add or mul with a node of the same shape, from this context or a leaf of another context."""
    others = [n for n in ctx.nodes if n.shape == x.shape]
    elsewhere = [n for c in machine.open_contexts() if c is not ctx for n in c.nodes]
    others += [n for n in elsewhere if n.is_leaf and n.shape == x.shape]
    if not others:
        return None
    y = others[choose.below(len(others))]
    if choose.below(2):
        made = ShadowTensor(x.tensor.mul(ctx.ctx, y.tensor), ctx, "", x.peak * y.peak, (x, y), np.multiply)
    else:
        made = ShadowTensor(x.tensor.add(ctx.ctx, y.tensor), ctx, "", x.peak + y.peak, (x, y), np.add)
    return made if made.peak <= EXACT else None


def _rows(
    machine: OperandSource, ctx: ShadowContext, x: ShadowTensor, choose: ChoiceSource
) -> ShadowTensor | None:
    extent = x.tensor.dim(1)
    if x.tensor.rank < 2 or extent < 2:
        return None
    low = choose.below(extent)
    high = low + 1 + choose.below(extent - low)
    view = x.tensor.slice(ctx.ctx, 1, low, high)
    return ShadowTensor(view, ctx, "", x.peak, (x,), lambda a: a[low:high], view=True)


def _transposed(
    machine: OperandSource, ctx: ShadowContext, x: ShadowTensor, choose: ChoiceSource
) -> ShadowTensor | None:
    if x.tensor.rank != 2:
        return None
    return ShadowTensor(x.tensor.permute(ctx.ctx, 1, 0), ctx, "", x.peak, (x,), np.transpose, view=True)


def _product(
    machine: OperandSource, ctx: ShadowContext, x: ShadowTensor, choose: ChoiceSource
) -> ShadowTensor | None:
    w = machine.weight(choose)
    peak = w.peak * x.peak * WIDTH
    if x.tensor.dim(0) != WIDTH or x.tensor.rank != 2 or peak > EXACT:
        return None
    return ShadowTensor(w.tensor.mulmat(ctx.ctx, x.tensor), ctx, "", peak, (w, x), lambda a, b: b @ a.T)


TRACED: dict[str, Traced] = {
    "neg": _unary(lambda p: p, Tensor.neg, np.negative),
    "double": _unary(lambda p: 2 * p, lambda x, ctx: x.scale(ctx, 2.0), lambda a: 2 * a),
    "relu": _unary(lambda p: p, Tensor.relu, lambda a: np.maximum(a, 0)),
    "sqr": _unary(lambda p: p * p, Tensor.sqr, np.square),
    "contiguous": _unary(lambda p: p, Tensor.contiguous, lambda a: a),
    "sum_rows": _unary(lambda p: p * WIDTH, Tensor.sum_rows, lambda a: a.sum(-1, keepdims=True)),
    "binary": _binary,
    "slice": _rows,
    "permute": _transposed,
    "product": _product,
}
