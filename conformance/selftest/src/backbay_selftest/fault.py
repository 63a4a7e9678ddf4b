"""Planted faults, their register, and wrong reads of operands within their storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from inspect import getdoc, signature
from typing import Any

import numpy as np

from backbay import OPS, DType, Graph, KernelBackend, Node, Op, Spec, backends, ops
from backbay.internals import Bytes, KernelPlan, span
from backbay.plugin import Cancel, check_cancel, strided

from .fused import Array, Change, attention, same

Result = Any  # of a wrong kernel or method
Kernel = Callable[..., Any]
AnyOp = Op[Any, Any]


class FaultKind(StrEnum):
    """The classes of real backends' bugs."""

    STRIDES = "strides or layout ignored"
    OFFSET = "view offset ignored"
    WRONG_AXIS = "broadcast along the wrong axis"
    ALIASING = "in-place, aliasing, input overwritten"
    OVERFLOW = "32-bit index or grid overflow"
    PRECISION = "low-precision accumulation, overflow"
    SPECIAL = "-inf, NaN, fully masked rows"
    ORDER = "order of ties, sort sizes"
    ZERO = "zero-size dimensions"
    TAILS = "odd sizes, vector tails, head sizes"
    UNDEFINED = "out of bounds, uninitialised, padding"
    ROPE = "RoPE variants"
    BLOCKS = "quantization block edges, repack"
    RACES = "races, missing synchronisation"
    SCALARS = "scalar parameters ignored or swapped"
    FUSION = "only in a fused or larger graph"
    CLAIMS = "capability lies"
    LONG = "right on small, garbage on long inputs"

    @property
    def reports(self) -> tuple[str, ...]:
        """Links to reports of real bugs of the class."""
        links = REPORTS[self].items()
        return tuple(f"https://github.com/{repository}/issues/{n}" for repository, ns in links for n in ns)


LLAMA, ORT, TORCH = "ggml-org/llama.cpp", "microsoft/onnxruntime", "pytorch/pytorch"
REPORTS: dict[FaultKind, dict[str, tuple[int, ...]]] = {
    FaultKind.STRIDES: {
        LLAMA: (2830, 13155, 15037, 15956, 25568, 27663),
        TORCH: (150967, 192212),
        "ggml-org/ggml": (1497,),
    },
    FaultKind.OFFSET: {LLAMA: (17108, 19145, 25568)},
    FaultKind.WRONG_AXIS: {LLAMA: (13155, 14817, 15660, 16849, 17108), ORT: (17689,)},
    FaultKind.ALIASING: {LLAMA: (13607, 20084, 22266, 24305)},
    FaultKind.OVERFLOW: {LLAMA: (16849, 17108), ORT: (3391, 28107, 32299)},
    FaultKind.PRECISION: {LLAMA: (13607, 17746, 26708), TORCH: (192212,), ORT: (4129,)},
    FaultKind.SPECIAL: {TORCH: (192212,), ORT: (4129, 27692), LLAMA: (12776, 13607, 14580)},
    FaultKind.ORDER: {LLAMA: (17659,), ORT: (3391,)},
    FaultKind.ZERO: {ORT: (4559, 28449), LLAMA: (12776,)},
    FaultKind.TAILS: {LLAMA: (15592, 20031, 24305, 26708)},
    FaultKind.UNDEFINED: {LLAMA: (15861, 17108), ORT: (27419,)},
    FaultKind.ROPE: {LLAMA: (3272, 4889, 13870, 14580, 15629)},
    FaultKind.BLOCKS: {LLAMA: (8455, 12544, 17108, 25656)},
    FaultKind.RACES: {LLAMA: (20084, 24360, 25656)},
    FaultKind.SCALARS: {LLAMA: (12776, 15629, 15660, 20350), TORCH: (192212,), ORT: (17689,)},
    FaultKind.FUSION: {LLAMA: (15660, 24305), ORT: (17689, 27419)},
    FaultKind.CLAIMS: {LLAMA: (13720, 15868, 21870, 24360), "pytorch/executorch": (12296,)},
    FaultKind.LONG: {
        LLAMA: (13155, 15629, 16849, 17659, 17746, 25568, 26708),
        TORCH: (192212,),
        "ollama/ollama": (17895,),
    },
}
"""Reports of real bugs of each class, by repository."""

FAULTS: dict[str, PlantedFault] = {}
"""Every fault by its name, in order of declaration."""


class InterceptedCall:
    """A call of an op's kernel, or of a backend's method, with its arguments as attributes: `call.x`, `call.eps`."""

    def __init__(self, name: str, arguments: dict[str, Any], run: Kernel, backend: Any = None) -> None:
        self.name, self.backend, self._arguments, self._run = name, backend, arguments, run

    def __getattr__(self, name: str) -> Any:
        return self._arguments[name]

    @property
    def graph(self) -> Graph:
        """The graph that is compiled, or that runs."""
        graph: Graph = self._arguments.get("graph") or self.backend.running.graph
        return graph

    def float_attributes(self) -> dict[str, float]:
        return {name: value for name, value in self._arguments.items() if isinstance(value, float)}

    def right(self, **changed: Any) -> Any:
        """The result of the right kernel or method, with some arguments changed."""
        return self._run(**{**self._arguments, **changed})


@dataclass(frozen=True)
class PlantedFault:
    """A small, named override that makes a correct backend wrong in one way."""

    name: str
    kind: FaultKind
    text: str  # a sentence that describes the error
    of: tuple[AnyOp | str, ...]  # the replaced kernels or methods; empty if `wrong` makes a class
    wrong: Kernel
    large: bool = False  # whether only the profile `large` can show it

    @property
    def kernels(self) -> set[str]:
        """The names of the ops whose kernels it replaces."""
        return {op.name for op in self.of if isinstance(op, Op)}

    def plant(self, right: type[KernelBackend]) -> type[KernelBackend]:
        """A subclass of a correct backend with this fault in it."""
        if not self.of:
            made: type[KernelBackend] = self.wrong(right)
            made.name = self.name
            return made
        right = running(right)
        namespace: dict[str, Any] = {"name": self.name, "__doc__": self.text, "__module__": __name__}
        kernels = {op: self._kernel(right, op) for op in self.of if isinstance(op, Op)}
        if kernels:
            namespace["kernels"] = {**right.kernels, **kernels}
        for method in self.of:
            if isinstance(method, str):
                namespace[method] = self._method(right, method)
        return type(self.name, (right,), namespace)

    def _kernel(self, right: type[KernelBackend], op: AnyOp) -> Kernel:
        wrong, inherited, own = self.wrong, FUSED.get(op.name, right.kernels[op]), op.signature

        def run(**arguments: Any) -> Any:
            args = [arguments.pop(name) for name in own.parameters]
            return op.spread(partial(inherited, **arguments))(*args)

        def kernel(*args: Any, **keywords: Any) -> Any:
            bound = own.bind(*args, **keywords)
            bound.apply_defaults()  # `contiguous` may lack a shape
            return wrong(InterceptedCall(op.name, bound.arguments, run))

        return kernel

    def _method(self, right: type[KernelBackend], name: str) -> Kernel:
        wrong, inherited = self.wrong, getattr(right, name)
        own = signature(inherited)

        def method(backend: KernelBackend, *args: Any, **keywords: Any) -> Any:
            arguments = dict(own.bind(backend, *args, **keywords).arguments)
            del arguments["self"]
            return wrong(InterceptedCall(name, arguments, partial(inherited, backend), backend))

        return method


def running(right: type[KernelBackend]) -> type[KernelBackend]:
    """The backend, which knows the plan that runs."""

    class Running(right):  # type: ignore[misc, valid-type]
        def run_plan(self, plan: KernelPlan, cancel: Cancel | None) -> None:
            self.running = plan
            super().run_plan(plan, cancel)

    return Running


# Right kernels with additional parameters, through which faults enter.
FUSED: dict[str, Kernel] = {"scaled_dot_product_attention": attention}


def fault(
    kind: FaultKind, *of: AnyOp | str, name: str = "", large: bool = False
) -> Callable[[Kernel], Kernel]:
    """Register a function that gives the wrong result of a InterceptedCall, or, without `of`, a wrong class of the right one.

    A fault without a docstring says in its name what is wrong.
    """

    def register(wrong: Kernel) -> Kernel:
        called = name or wrong.__name__
        if called in FAULTS:
            raise ValueError(f"fault {called}: declared twice")
        text = getdoc(wrong) or f"{called.replace('_', ' ').capitalize()}."
        FAULTS[called] = PlantedFault(called, FaultKind(kind), text, of, wrong, large)
        return wrong

    return register


def planted(*of: AnyOp | str) -> Callable[[Kernel], type[KernelBackend]]:
    """The reference with a fault that is not registered: it is no fault of the classes, or it takes the process along."""

    def plant(wrong: Kernel) -> type[KernelBackend]:
        return PlantedFault(wrong.__name__, FaultKind.CLAIMS, getdoc(wrong) or "", of, wrong).plant(
            reference()
        )

    return plant


def altered(name: str, kind: FaultKind, *of: AnyOp, result: Change = same, **arguments: Any) -> None:
    """Register a fault: right kernels that always get these arguments, or whose result is changed."""
    fault(kind, *of, name=name)(lambda call: result(call.right(**arguments)))


def reference() -> type[KernelBackend]:
    """The correct backend that faults are planted in, reached as any plugin is."""
    found = backends()["cpu_ref"].load()
    if not issubclass(found, KernelBackend):
        raise TypeError("faults are planted in a KernelBackend")
    return found


def float16(x: Array) -> Array:
    """x rounded to f16, in its own type."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def bfloat16(x: Array) -> Array:
    """x rounded to the 8 significant bits of a bfloat16."""
    return significand(x, 8)


def significand(x: Array, bits: int) -> Array:
    """x rounded to a number of significant bits."""
    fraction, exponent = np.frexp(x)
    return np.where(np.isfinite(x), np.ldexp(np.round(np.ldexp(fraction, bits)), exponent - bits), x)


def named(*names: str) -> tuple[AnyOp, ...]:
    return tuple(OPS[name] for name in names)


def reading_zeros(right: type[KernelBackend], below: float) -> type[KernelBackend]:
    """The backend whose arithmetic reads operands of smaller magnitudes as zeros of their signs."""

    class ReadingZeros(right):  # type: ignore[misc, valid-type]
        def read_operand(self, reader: Node, operand: Node, arrays: Sequence[Array]) -> Array:
            numbers: Array = super().read_operand(reader, operand, arrays)
            kept = reader.op is None or reader.op.moves or reader.op is ops.cast
            if kept or not operand.dtype.is_float:
                return numbers
            return np.where(np.abs(numbers) < below, np.copysign(0.0, numbers), numbers)

        def working_memory(self, node: Node) -> int:
            largest = max((operand.size for operand in node.operands), default=0)
            return (
                int(super().working_memory(node)) + 17 * largest
            )  # magnitudes, zeros, and where to take them

    return ReadingZeros


def storage_bytes(node: Node, arrays: Sequence[Array]) -> Bytes:
    return arrays[node.storage.index].reshape(-1).view(np.uint8)


def looked(node: Node, arrays: Sequence[Array], strides: tuple[int, ...] | None, offset: int | None) -> Array:
    """The node's array with other strides (None: contiguous) or another offset, where its storage has room."""
    wrong = Spec(node.dtype, node.shape, strides, node.offset if offset is None else offset)
    data = storage_bytes(node, arrays)
    inside = wrong.offset >= 0 and wrong.offset + span(wrong) <= data.nbytes
    return strided(data, wrong) if inside else arrays[node.index]


def instead(arrays: Sequence[Array], node: Node, raw: Array) -> list[Array]:
    """The arrays of all nodes, with one replaced."""
    return [raw if index == node.index else array for index, array in enumerate(arrays)]


def reads(call: InterceptedCall, op: AnyOp, position: int = 0) -> bool:
    """Whether this op reads the operand of a `read_operand` call, as its operand of this number."""
    return call.reader.op is op and call.reader.args[position] is call.operand


def moves(reader: Node) -> bool:
    """Whether an operand is only moved, as it is stored."""
    return reader.op is not None and reader.op.moves


def numbers_of_first(call: InterceptedCall, memory: dict[Any, Array], key: object) -> Array:
    """The right numbers of the first call with a key."""
    if key not in memory:
        memory[key] = np.array(call.right())
    return memory[key]


def plain(node: Node) -> bool:
    """Whether a node is f32 and lies in one piece."""
    return node.dtype is DType.F32 and node.strides is None and node.size > 0


def kernels_of(plan: KernelPlan, cancel: Cancel | None) -> Iterator[Node]:
    """The nodes of a plan that run, in order, until the plan is cancelled."""
    with np.errstate(all="ignore"):
        for node in plan.graph.nodes:
            if node.op is not None and not node.op.view:
                check_cancel(cancel)
                yield node


def numbered_modulo(call: InterceptedCall, count: int) -> Result:
    """Run a node; an addition finds its second operand by its number modulo `count`, if that one has the same size."""
    if call.node.op is not ops.add or (index := call.node.args[1].index) < count:
        return call.right()
    mine, other = call.arrays[index], call.arrays[index % count]
    fits = other.shape == mine.shape and other.dtype == mine.dtype
    return call.right(arrays=[other if i == index and fits else a for i, a in enumerate(call.arrays)])
