"""The way to a backend for an engine of pure functions: a table of kernels over its arrays, and their conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data.buffers import POISON, Buffer
from ...data.encoding import Array, Bytes, flat_numbers, numpy_view
from ...errors import RefusalError, UnsupportedOpError
from ...graph.array_engine import ArrayEngine, ArrayProgram, GraphFunction
from ...graph.graph import Cancel, Graph, Node, Plan, assign_slots, check_cancel
from ...memory.host_memory import host_memory, return_large_blocks
from ...memory.ledger import Entry
from ...memory.workspace_booking import Workspace
from ...ops import cast, rows
from ...ops.op_declaration import Op
from ...types.backend_declarations import DeviceInfo, Precision, Support, unsupported
from ...types.dtype import DType
from ...types.gpu_layers import Placement
from ...types.params import Debug
from ...types.spec import Spec
from ..backend import Backend
from ..hooks import Progress
from .array_devices import DeviceTrial
from .kernel_backend import CPU
from .kernel_table import conversion_gap

if TYPE_CHECKING:
    from ...gguf import TensorInfo

PIECE = 1 << 23
"""The bytes of a weight that are copied at a time."""
KEPT = 256
"""So many compiled programs stay in a process: the latest."""
PROGRAMS: dict[tuple[type[Backend], ArrayEngine, str], tuple[ArrayProgram, GraphFunction]] = {}
LOCK = Lock()


class GraphBackend(Backend):
    """A backend that runs each graph as one pure function over the arrays of an engine, compiled once for all graphs of
    equal shapes.

    A kernel has its op's parameters. An operand is an array of the engine of the reversed shape; a scalar is an array of
    one element. Floats and quantized types come as f32, integers unchanged, an absent operand as None. The result has the
    reversed shape, with or without leading extents of 1, and is rounded once to the op's dtype. A kernel must not change
    its operands: the kernel of a write returns the new value of its destination.

    Kernels of ops that only move elements (`op.moves`) get and return elements as they are stored. Views need no kernels.
    Quantized weights are decoded when they are loaded; quantized tensors are neither written nor copied.
    """

    engine: ArrayEngine
    """The engine. Backends that share the object share its compiled programs, so make it once for the whole process."""
    device: str = CPU
    """The id of the device on which all graphs run and all weights lie."""
    trial: DeviceTrial = DeviceTrial()
    """The outcome of the trial of this device, `try_device`: a dtype that it lacks is unsupported."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for op, kernel in cls.kernels.items():  # a plain mapping is not checked yet, unlike a KernelTable
            op.check_takes(kernel)

    def start(self) -> None:
        return_large_blocks()  # most engines align their arrays
        super().start()
        self._weights_read: dict[str, EngineWeight] = {}
        self.graph_entry = Entry(self.device_of(Placement()), "graph")
        self.workspace = Workspace(self.ledger, self.graph_entry)

    def devices(self) -> list[DeviceInfo]:
        total, free = host_memory()
        return [DeviceInfo(CPU, "CPU", total_memory=total, free_memory=free)]

    def device_of(self, placement: Placement) -> str:
        return self.device

    def weight_entry(self, weight: str) -> Entry:
        """All weights lie on the device of the graphs: an embedding on the host would be copied in each step."""
        entry = super().weight_entry(weight)
        return entry if self.device in (CPU, entry.device) else Entry(self.device, "weights", 0)

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        return Precision(DType.F32, DType.F32, self.trial.flushes_subnormals)

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        first = specs[0 if op.writes is None else op.operands.index(op.writes)]
        if op.moves and op is not rows and first is not None and first.dtype.is_quantized:
            return unsupported("quantized tensors are neither written nor copied")
        for spec in specs:
            if spec is not None and not op.view and spec.dtype in self.trial.lacks:
                return unsupported(f"{self.device} has no {spec.dtype}")
        gap = conversion_gap(op, specs)
        return unsupported(gap) if gap else super().supports(op, specs)

    def compile(self, graph: Graph) -> Plan:
        for node in graph.nodes:  # a cast's dtype is an attribute, which `supports` does not see
            if node.op is cast and node.dtype.is_quantized:
                what = f"{node.args[0]} to {node.dtype}"
                raise UnsupportedOpError(f"backend {self.name!r} cannot run cast: {what}")
            if node.op is cast and node.dtype in self.trial.lacks:
                raise RefusalError(f"{self.device} has no {node.dtype}", node)
        return GraphPlan(self, graph)

    def program_of(self, graph: Graph) -> tuple[ArrayProgram, GraphFunction]:
        """The compiled program of a graph: graphs of equal shapes share it."""
        key = type(self), self.engine, graph.shape_key()
        with LOCK:
            found = PROGRAMS.pop(key, None)
            if found is None:
                program = ArrayProgram(graph, self.kernels, self.engine)
                found = program, self.engine.compiled(program)
            PROGRAMS[key] = found  # the latest comes last
            if len(PROGRAMS) > KEPT:
                del PROGRAMS[next(iter(PROGRAMS))]
            return found

    def working_memory(self, node: Node) -> int:
        """The bytes that a kernel works in, beside its operands and its result as they are stored.

        By default these are its operands and its result as f32. A plan books the most of them. An engine that needs more,
        or fuses the conversions, overrides this method.
        """
        op = node.op
        assert op is not None
        made = [  # the numbers of a quantized weight are there since it was loaded
            each
            for each in node.operands
            if not (each.dtype.is_quantized and each.storage.kind == "parameter")
        ]
        as_they_are = {DType.I32, DType.I64, node.dtype if op.moves else DType.F32}
        converted = made if op.moves else [*made, node]
        return sum(4 * spec.size for spec in converted if spec.dtype not in as_they_are)

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        return EngineBuffer(self.engine, spec, self.params.debug)

    def weight(self, info: TensorInfo) -> EngineWeight:
        assert self.model is not None
        if info.name not in self._weights_read:
            data = self.model.data(info.name)
            self._weights_read[info.name] = EngineWeight(self.engine, data, info.dtype)
        return self._weights_read[info.name]

    def book_weights(self) -> None:
        for info in self.model.tensors.values() if self.model is not None else ():
            entry = self.weight_entry(info.name)
            size = 4 * Spec(info.dtype, info.shape).size if info.dtype.is_quantized else info.nbytes
            self.ledger.take(entry, size, lambda: None, mapped=False)
            if self.copies_weights:
                self.ledger.take(entry, info.nbytes, lambda: None)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        assert self.model is not None
        for done, (name, info) in enumerate(self.model.tensors.items(), 1):
            check_cancel(cancel)
            drop = partial(self.model.drop_pages, name)
            self.weight(info).load(self.model.data(name), drop)  # `data` raises if the file has changed
            progress(done / len(self.model.tensors))


class GraphPlan(Plan):
    def __init__(self, backend: GraphBackend, graph: Graph) -> None:
        self.backend = backend
        self.program, self.function = backend.program_of(graph)
        at: dict[int, Any] = {node.index: node.leaf.buffer for node in graph.nodes if node.leaf is not None}
        self.read_leaves = [(at[index], as_numbers) for index, as_numbers in self.program.read]
        self.written_leaves = [at[index] for index, _ in self.program.written]
        self.outputs = [node.index for node in graph.outputs]
        self.results: dict[int, Any] = {}
        self.nbytes = sum(assign_slots(graph)[1])
        if not backend.engine.donates:  # the engine makes the new value of a written leaf beside the old one
            self.nbytes += sum(graph.nodes[index].nbytes for index, _ in self.program.written)
        backend.ledger.take(backend.graph_entry, self.nbytes, lambda: None)
        steps = [node for node in graph.nodes if node.op is not None and not node.op.view]
        try:
            backend.workspace.take(self, max(map(backend.working_memory, steps), default=0))
        except BaseException:
            self.close()
            raise

    def run(self, cancel: Cancel | None) -> None:
        check_cancel(cancel)  # the engine runs the whole graph in one call, which nothing interrupts
        read = [buffer.storage_of(as_numbers) for buffer, as_numbers in self.read_leaves]
        with np.errstate(all="ignore"):  # infinities and NaN are ordinary results
            outputs, written = self.function(read, [buffer.storage for buffer in self.written_leaves])
        if not self.backend.engine.donates:
            check_cancel(cancel)  # a cancelled run writes nothing
        for buffer, storage in zip(self.written_leaves, written, strict=True):
            buffer.storage = storage  # a donated one is gone
        check_cancel(cancel)
        self.results = dict(zip(self.outputs, outputs, strict=True))

    def read(self, node: Node) -> Bytes:
        return host_bytes(self.backend.engine, self.results[node.index])

    def close(self) -> None:
        self.read_leaves, self.written_leaves, self.results = [], [], {}
        self.backend.ledger.give_back(self.backend.graph_entry, self.nbytes)
        self.backend.workspace.give_back(self)


class EngineBuffer(Buffer):
    def __init__(self, engine: ArrayEngine, spec: Spec, debug: Debug) -> None:
        self.engine, self.nbytes, self.dtype = engine, spec.nbytes, spec.dtype
        self._storage: Any = None
        self._poisoned = debug.poison
        if not self._poisoned:
            self.zero()

    @property
    def storage(self) -> Any:
        if self._poisoned:  # poison comes at the first read: most leaves are written before
            self.write(np.full(self.nbytes, POISON, np.uint8))
        return self._storage

    @storage.setter
    def storage(self, storage: Any) -> None:
        self._storage, self._poisoned = storage, False

    def storage_of(self, as_numbers: bool) -> Any:
        if as_numbers:
            return self.engine.to_engine(decode_all(self.read(), self.dtype), DType.F32)
        return self.storage

    def read(self) -> Bytes:
        return host_bytes(self.engine, self.storage)

    def write(self, data: Bytes) -> None:
        self.storage = None  # the old one goes before the new one comes
        self.storage = self.engine.to_engine(numpy_view(data.copy(), self.dtype), self.dtype)

    def zero(self) -> None:
        self.storage = None
        unit = 1 if self.dtype.is_quantized else self.dtype.type_size
        self.storage = self.engine.zeros(self.nbytes // unit, self.dtype)

    def close(self) -> None:
        self.storage = None


class EngineWeight(Buffer):
    """A weight: mapped until it is loaded, then a storage of the engine, decoded if it is quantized."""

    def __init__(self, engine: ArrayEngine, data: Bytes, dtype: DType) -> None:
        self.engine, self.nbytes, self.dtype, self.data = engine, data.size, dtype, data
        self.storage: Any = None

    def load(self, data: Bytes, drop_pages: Callable[[], None]) -> None:
        """Make the storage; `drop_pages` lets the system drop the pages of the file that were read."""
        self.data = data
        self.storage = self._made(self.dtype.is_quantized, drop_pages)
        drop_pages()

    def storage_of(self, as_numbers: bool) -> Any:
        loaded = self.storage is not None and as_numbers == self.dtype.is_quantized
        return self.storage if loaded else self._made(as_numbers)

    def _made(self, as_numbers: bool, drop_pages: Callable[[], None] = lambda: None) -> Any:
        if as_numbers:
            return self.engine.to_engine(decode_all(self.data, self.dtype), DType.F32)
        own = np.empty(self.data.size, np.uint8)
        for start in range(0, own.size, PIECE):  # else file and copy would be in memory at the same time
            own[start : start + PIECE] = self.data[start : start + PIECE]
            drop_pages()
        return self.engine.to_engine(numpy_view(own, self.dtype), self.dtype)

    def read(self) -> Bytes:
        return self.data

    def write(self, data: Bytes) -> None:
        raise NotImplementedError("core never writes a weight")

    def close(self) -> None:
        self.storage, self.data = None, self.data[:0]


def host_bytes(engine: ArrayEngine, storage: Any) -> Bytes:
    return np.ascontiguousarray(engine.to_host(storage)).view(np.uint8)


def decode_all(data: Bytes, dtype: DType) -> Array:
    """All elements of a quantized tensor as numbers."""
    return flat_numbers(data, dtype).reshape(-1)
