"""The class of the backend: its memory, its weights, and its plans."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from backbay.plugin import (
    GRAPH,
    Backend,
    Buffer,
    Cancel,
    DeviceInfo,
    DType,
    Graph,
    Node,
    Op,
    Option,
    Placement,
    Plan,
    Precision,
    Progress,
    Spec,
    Support,
    TensorInfo,
    UnsupportedOpError,
    assign_slots,
    check_cancel,
    conversion_gap,
    decode,
    host_memory,
    numpy_view,
    unsupported,
)

from . import engine
from .engine import Array
from .kernels import kernel
from .program import Program

KEPT = 256
PROGRAMS: dict[str, tuple[Program, engine.Compiled]] = {}
"""The compiled programs of this process, at most KEPT of them: all backends and contexts share them."""
LOCK = Lock()


class Storage(Buffer):
    """The memory of a leaf: a flat array of the engine."""

    def __init__(self, spec: Spec, fill: int) -> None:
        self.nbytes, self.dtype = spec.nbytes, spec.dtype
        self.write(np.full(self.nbytes, fill, np.uint8))

    def flat(self, as_numbers: bool) -> Array:
        return on_device(self.read(), self.dtype, as_numbers) if as_numbers else self.array

    def read(self) -> Array:
        return engine.to_host(self.array)

    def write(self, data: Array) -> None:
        self.array = on_device(data, self.dtype)

    def close(self) -> None:
        del self.array


class Weight(Buffer):
    """A weight: mapped until it is loaded, then a flat array of the engine, decoded if it is quantized."""

    def __init__(self, data: Array, dtype: DType) -> None:
        self.nbytes, self.dtype, self.data = data.size, dtype, data
        self.array: Array | None = None

    def load(self) -> None:
        self.array = self.flat(self.dtype.is_quantized)

    def flat(self, as_numbers: bool) -> Array:
        if self.array is not None and as_numbers == self.dtype.is_quantized:
            return self.array
        return on_device(self.data, self.dtype, as_numbers)

    def read(self) -> Array:
        return self.data

    def write(self, data: Array) -> None:
        raise NotImplementedError("core never writes a weight")

    def close(self) -> None:
        self.array, self.data = None, self.data[:0]


class Compiled(Plan):
    """A compiled graph, bound to its leaves."""

    def __init__(self, backend: TorchBackend, graph: Graph) -> None:
        self.backend, self.key = backend, graph.shape_key()
        self.program, self.run_program = backend.program_of(graph)
        self.leaves = [node.leaf for node in graph.nodes if node.leaf is not None]
        at: dict[int, Any] = {node.index: node.leaf.buffer for node in graph.nodes if node.leaf is not None}
        self.inputs = [(at[index], as_numbers) for index, as_numbers in self.program.inputs]
        self.targets = [at[index] for index, _ in self.program.written]
        self.outputs = [node.index for node in graph.outputs]
        self.values: dict[int, Array] = {}
        # The engine makes the results, and the new value of each written leaf beside its old one.
        written = sum(graph.nodes[index].nbytes for index, _ in self.program.written)
        self.nbytes = sum(assign_slots(graph)[1]) + written
        backend.ledger.take(GRAPH, self.nbytes, lambda: None)

    def run(self, cancel: Cancel | None) -> None:
        check_cancel(cancel)  # the engine runs the whole graph in one call, which nothing interrupts
        leaves = [buffer.flat(as_numbers) for buffer, as_numbers in self.inputs]
        with engine.torch.inference_mode():
            outputs, written = self.run_program(leaves)
        check_cancel(cancel)  # a cancelled run writes nothing
        for target, array in zip(self.targets, written, strict=True):
            target.array = array
        self.values = dict(zip(self.outputs, outputs, strict=True))

    def read(self, node: Node) -> Array:
        return engine.to_host(self.values[node.index])

    def close(self) -> None:
        self.inputs, self.targets, self.values = [], [], {}
        self.backend.ledger.give_back(GRAPH, self.nbytes)


def _mode(value: Any) -> str:
    if value not in ("eager", "compiled"):
        raise ValueError("not one of eager, compiled")
    return str(value)


class TorchBackend(Backend):
    """Whole graphs, compiled by the engine."""

    contract_version = "1.2"
    kernels = kernel
    options = {"mode": Option("eager", _mode, "eager: op by op; compiled: by torch.compile")}

    def start(self) -> None:
        super().start()
        self.weights: dict[str, Weight] = {}

    def devices(self) -> list[DeviceInfo]:
        total, free = host_memory()
        return [DeviceInfo("CPU:0", "CPU", total_memory=total, free_memory=free)]

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        return Precision(DType.F32, DType.F32)

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        first = specs[0 if op.writes is None else op.operands.index(op.writes)]
        if op.moves and op.name != "rows" and first is not None and first.dtype.is_quantized:
            return unsupported("quantized tensors are neither written nor copied")
        gap = conversion_gap(op, specs)
        return unsupported(gap) if gap else super().supports(op, specs)

    def compile(self, graph: Graph) -> Plan:
        for node in graph.nodes:  # a cast's dtype is an attribute, which `supports` does not see
            if node.op is not None and node.op.name == "cast" and node.dtype.is_quantized:
                raise UnsupportedOpError(
                    f"backend {self.name!r} cannot run cast: {node.args[0]} to {node.dtype}"
                )
        return Compiled(self, graph)

    def program_of(self, graph: Graph) -> tuple[Program, engine.Compiled]:
        """The compiled program of a graph: graphs of equal shapes share it."""
        key = graph.shape_key() + self.option_values["mode"]
        with LOCK:
            if key not in PROGRAMS:
                program = Program(graph, self.kernels)
                PROGRAMS[key] = program, engine.compiled(program, self.option_values["mode"])
            if len(PROGRAMS) > KEPT:
                del PROGRAMS[next(iter(PROGRAMS))]
            return PROGRAMS[key]

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        return Storage(spec, 0xFF if self.params.debug.poison else 0)

    def weight(self, info: TensorInfo) -> Buffer:
        assert self.model is not None
        if info.name not in self.weights:
            self.weights[info.name] = Weight(self.model.data(info.name), info.dtype)
        return self.weights[info.name]

    def book_weights(self) -> None:
        for info in self.model.tensors.values() if self.model is not None else ():
            size = 4 * Spec(info.dtype, info.shape).size if info.dtype.is_quantized else info.nbytes
            self.ledger.take(self.weight_entry(info.name), size, lambda: None, mapped=False)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        assert self.model is not None
        for done, (name, info) in enumerate(self.model.tensors.items(), 1):
            check_cancel(cancel)
            weight = self.weight(info)
            assert isinstance(weight, Weight)
            weight.data = self.model.data(name)  # raises if the file has changed
            weight.load()
            self.model.drop_pages(name)  # the engine has its own copy
            progress(done / len(self.model.tensors))


def on_device(data: Array, dtype: DType, as_numbers: bool = False) -> Array:
    """Bytes of the host as a flat array of the engine; a quantized tensor may be decoded."""
    if as_numbers:
        return engine.to_engine(decode(data.reshape(-1, dtype.type_size), dtype).reshape(-1), DType.F32)
    return engine.to_engine(numpy_view(data, dtype), dtype)
