"""The short way to a backend: a table of kernels over NumPy arrays, which core runs in order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...data.buffers import Buffer, HostBuffer, MappedBuffer
from ...data.encoding import NUMPY, Array, Bytes, decode, encode, gather, strided
from ...errors import ShapeError, UnsupportedOpError
from ...graph.graph import Cancel, Graph, Node, Plan, Timing, Timings, assign_slots, check_cancel
from ...memory.host_memory import host_memory
from ...memory.ledger import Entry, Ledger
from ...memory.workspace_booking import Workspace
from ...ops import cast, copy
from ...ops.op_declaration import Op
from ...types.backend_declarations import DeviceInfo, Precision, Support, unsupported
from ...types.dtype import DType
from ...types.fork_safety import cached_property
from ...types.gpu_layers import Placement
from ...types.params import BackendParams
from ...types.spec import Spec, same_shape
from ..backend import Backend
from ..helper_processes import GATE
from .kernel_table import conversion_gap, encoding_gap

if TYPE_CHECKING:
    from ...gguf import ModelFile, TensorInfo

ALIGNMENT = 64  # bytes
CHUNK = 1 << 18  # elements that are decoded at a time

CPU = "CPU:0"
GRAPH = Entry(CPU, "graph")


def aligned_nbytes(nbytes: int) -> int:
    """The bytes that an array takes of the scratch memory."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class ScratchMemory:
    """Memory for the converted operands of one kernel at a time, as large as the largest plan needs."""

    def __init__(self, ledger: Ledger, entry: Entry) -> None:
        self._ledger, self._entry = ledger, entry
        self._memory: Bytes = np.empty(0, np.uint8)
        self._taken = 0
        self._booked = 0
        self._wanted: dict[int, int] = {}  # bytes by plan

    def join(self, owner: object, nbytes: int) -> None:
        """Make room for the operands of one more plan."""
        if nbytes > self._booked:
            self._ledger.take(self._entry, nbytes - self._booked, lambda: self._replace(nbytes))
            self._booked = nbytes
        self._wanted[id(owner)] = nbytes

    def leave(self, owner: object) -> None:
        """One plan less; the last one frees the memory."""
        self._wanted.pop(id(owner), None)
        if not self._wanted:
            self._ledger.give_back(self._entry, self._booked)
            self._memory, self._booked = np.empty(0, np.uint8), 0

    def _replace(self, nbytes: int) -> None:
        if self._ledger.holds:
            self._memory = np.empty(0, np.uint8)  # first free the old memory
            self._memory = np.empty(nbytes, np.uint8)

    def reset(self) -> None:
        """Allow overwriting: the kernel that used the operands is done."""
        self._taken = 0

    def take(self, shape: tuple[int, ...], dtype: type[np.floating[Any]]) -> Array:
        """An array of undefined content, valid until `reset`; of fresh memory if no plan asked for so much."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        begin, end = self._taken, self._taken + aligned_nbytes(nbytes)
        if end > self._memory.size:
            return np.empty(shape, dtype)
        self._taken = end
        return self._memory[begin : begin + nbytes].view(dtype).reshape(shape)


def converted_nbytes(node: Node, float_dtype: type[np.floating[Any]]) -> int:
    """The bytes of a kernel's operands, as far as they are converted for it."""
    assert node.op is not None
    if node.op.moves:
        return 0
    floats = [operand for operand in node.operands if not operand.dtype.is_integer]
    converted = [operand for operand in floats if NUMPY.get(operand.dtype) != np.dtype(float_dtype)]
    return sum(aligned_nbytes(operand.size * np.dtype(float_dtype).itemsize) for operand in converted)


def convert(raw: Array, dtype: DType, into: Array) -> Array:
    """Fill `into` with the numbers of a stored array; rows are decoded some at a time."""
    if dtype in NUMPY and dtype is not DType.BF16:
        np.copyto(into, raw)
    elif into.size:
        rows, filled = raw.reshape(-1, raw.shape[-1]), into.reshape(-1, into.shape[-1])
        step = max(1, CHUNK // into.shape[-1])
        for low in range(0, len(rows), step):
            filled[low : low + step] = decode(rows[low : low + step], dtype)
    return into


class KernelBackend(Backend):
    """A backend whose kernels are functions of NumPy arrays.

    A kernel has its op's parameters. An operand is an array of the reversed shape, so dimension 0 is the last axis; a
    scalar is an array of one element. Floats and quantized types come as `float_dtype`, integers unchanged, an absent
    operand as None. The result has the reversed shape, with or without leading extents of 1, and is rounded once to
    the op's dtype. A kernel must not change its operands.

    Kernels of ops that only move elements (`op.moves`) get and return elements as stored: bf16 as uint16, rows of a
    quantized type as bytes. Kernels of writes get the destination, which they write to, and the data, already
    converted. Views need no kernels. All methods that this class adds may be overridden.
    """

    float_dtype: ClassVar[type[np.floating[Any]]] = np.float32

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for op, kernel in cls.kernels.items():  # a plain mapping is not checked yet, unlike a KernelTable
            op.check_takes(kernel)

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        super().__init__(model, params)
        self._calls = {op: op.spread(kernel) for op, kernel in self.kernels.items()}

    @cached_property
    def _scratch(self) -> ScratchMemory:
        return ScratchMemory(self.ledger, GRAPH)

    @cached_property
    def _workspace(self) -> Workspace:
        return Workspace(self.ledger, GRAPH)

    def devices(self) -> list[DeviceInfo]:
        total, free = host_memory()
        return [DeviceInfo(CPU, "CPU", total_memory=total, free_memory=free)]

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        single = self.float_dtype is np.float32
        return Precision(DType.F32, DType.F32 if single else DType.F64)

    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        return HostBuffer(spec.nbytes, self.params.debug)

    def weight(self, info: TensorInfo) -> Buffer:
        assert self.model is not None
        return MappedBuffer(self.model.data(info.name))

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        gap = conversion_gap(op, specs)
        return unsupported(gap) if gap else super().supports(op, specs)

    def device_of(self, placement: Placement) -> str:
        return CPU

    def compile(self, graph: Graph) -> KernelPlan:
        for node in graph.nodes:  # a cast's target dtype is an attribute, which `supports` does not see
            if node.op is cast and (gap := encoding_gap(node.dtype)):
                what = f"cast: {node.args[0]} to {node.dtype}: {gap}"
                raise UnsupportedOpError(f"backend {self.name!r} cannot run {what}")
        return KernelPlan(self, graph)

    def run_plan(self, plan: KernelPlan, cancel: Cancel | None) -> None:
        """Run all nodes in order."""
        with GATE.without_forks(), np.errstate(all="ignore"):  # infinities and NaN are ordinary results
            for node in plan.graph.nodes:
                if node.op is not None and not node.op.view:
                    check_cancel(cancel)
                    if GATE.forks:
                        GATE.let_forks_pass()
                    begun = perf_counter()
                    self.run_node(node, plan.arrays)
                    if plan.times is not None:
                        plan.times.append(Timing((node.index,), perf_counter() - begun, CPU))

    def run_node(self, node: Node, arrays: Sequence[Array]) -> None:
        """Run one kernel; `arrays` holds the stored array of every node, by its index."""
        op = node.op
        assert op is not None
        self._scratch.reset()
        args = [
            self.read_operand(node, value, arrays) if isinstance(value, Node) else value
            for value in node.args
        ]
        if op.writes is not None:
            # A tensor can be written into itself: `read_operand` then returned the target for both operands.
            target = node.args[op.writes]
            for i in op.operands:
                if node.args[i] is target and i != op.writes:
                    args[i] = args[i].copy()
        result = self.run_kernel(node, args)
        if op.writes is None:
            self.store(node, result, arrays[node.index])

    def run_kernel(self, node: Node, args: Sequence[Any]) -> Any:
        """The result of a node's kernel on operands as it gets them; of a write, nothing counts."""
        assert node.op is not None
        try:
            call = self._calls[node.op]
        except KeyError:
            told = f"backend {self.name!r} claims {node.op.name}, without a kernel"
            raise UnsupportedOpError(told) from None
        return call(*args)

    def read_operand(self, reader: Node, operand: Node, arrays: Sequence[Array]) -> Array:
        """An operand as its kernel gets it."""
        raw, op = np.atleast_1d(arrays[operand.index]), reader.op
        assert op is not None
        if not op.moves or (op.ids is not None and operand is reader.args[op.ids]):
            return self.numbers(raw, operand.dtype)
        if op.writes is None or operand is reader.args[op.writes]:
            return raw
        return self.data_to_write(raw, operand, reader.args[op.writes], whole=op is copy)

    def numbers(self, raw: Array, dtype: DType, into: Array | None = None) -> Array:
        """A stored array as numbers to compute with: converted into `into`, or into scratch memory."""
        if into is None:
            if dtype.is_integer or NUMPY.get(dtype) == self.float_dtype:
                return raw
            *outer, row = raw.shape
            row = row // dtype.type_size * dtype.block_size if dtype.is_quantized else row
            into = self._scratch.take((*outer, row), self.float_dtype)
        return convert(raw, dtype, into)

    def working_memory(self, node: Node) -> int:
        """The bytes that a kernel makes: by default its result, before it is stored, and data that are converted for a
        write. Converted operands are not counted.
        """
        op = node.op
        assert op is not None
        if op.writes is not None:
            target = node.args[op.writes]
            sources = [operand for operand in node.operands if operand is not target]
            return sum(4 * source.size for source in sources if source.dtype is not target.dtype)
        return node.nbytes if op.moves else node.size * np.dtype(self.float_dtype).itemsize

    def store(self, node: Node, result: Array, out: Array) -> None:
        """Round a kernel's result to the node's dtype, and store it in the node's array `out`."""
        assert node.op is not None
        if node.op.moves:
            source = node.args[0].dtype
            moved = result if source is node.dtype else encode(decode(result, source), node.dtype)
            if np.size(moved) != out.size:
                raise _wrong_shape(node, result)
            out[...] = moved.reshape(out.shape)
            return
        if not same_shape(np.shape(result)[::-1], node.shape):
            raise _wrong_shape(node, result)
        if node.dtype in NUMPY and node.dtype is not DType.BF16:
            np.copyto(out, np.reshape(result, out.shape), casting="unsafe")
        else:
            out[...] = encode(result, node.dtype).reshape(out.shape)

    def resolve_view(self, node: Node, storage: Bytes) -> Array:
        """A node's view of the bytes of its storage, as an array."""
        return strided(storage, node)

    def data_to_write(self, raw: Array, source: Node, target: Node, *, whole: bool) -> Array:
        """The data of a write, converted to the target's dtype; a copy if it shares the target's storage.

        `whole` data fill the target and take its shape, as blocks lie along the target's rows.
        """
        if source.dtype is not target.dtype:
            values = decode(raw, source.dtype)
            return encode(values.reshape(target.shape[::-1]) if whole else values, target.dtype)
        return raw.copy() if source.storage is target.storage else raw


class KernelPlan(Plan):
    """A graph with its memory: a buffer for each slot, and an array for each node, a view of a buffer."""

    def __init__(self, backend: KernelBackend, graph: Graph) -> None:
        self.backend, self.graph = backend, graph
        self._slots, sizes = assign_slots(graph)
        self.nbytes = sum(sizes)
        slots = [Spec(DType.I8, (size,)) for size in sizes if backend.params.alloc_memory]
        self._buffers: list[Buffer] = backend.ledger.take(
            GRAPH, self.nbytes, lambda: [backend.allocate(slot, Placement()) for slot in slots]
        )
        self._storages: dict[int, Bytes] = {}
        self.arrays: list[Array] = []
        self.times: list[Timing] | None = None  # of the nodes, while a run is profiled
        if backend.params.alloc_memory:
            self.arrays = [backend.resolve_view(node, self._storage(node.storage)) for node in graph.nodes]
        ops = [node for node in graph.nodes if node.op is not None and not node.op.view]
        converted = max((converted_nbytes(node, backend.float_dtype) for node in ops), default=0)
        try:
            backend._scratch.join(self, converted)
            backend._workspace.take(self, max(map(backend.working_memory, ops), default=0))
        except BaseException:
            self.close()
            raise

    def run(self, cancel: Cancel | None) -> None:
        debug = self.backend.params.debug
        own = [buffer for buffer in self._buffers if isinstance(buffer, HostBuffer)]
        if debug.poison:
            for buffer in own:
                buffer.poison()
        self.backend.run_plan(self, cancel)
        if debug.guard_bytes:
            leaves = [node.leaf.buffer for node in self.graph.nodes if node.leaf is not None]
            for buffer in (*own, *(leaf for leaf in leaves if isinstance(leaf, HostBuffer))):
                buffer.check_guards()

    def profile(self, cancel: Cancel | None) -> Timings:
        times: list[Timing] = []
        self.times = times
        try:
            self.run(cancel)
        finally:
            self.times = None
        return lambda: times

    def read(self, node: Node) -> Bytes:
        return gather(self._storage(node.storage), node)

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._buffers, self.arrays = [], []
        self._storages.clear()
        self.backend.ledger.give_back(GRAPH, self.nbytes)
        self.backend._scratch.leave(self)
        self.backend._workspace.give_back(self)

    def report(self) -> list[str]:
        return [f"{CPU} {node.op.name} {node}" for node in self.graph.nodes if node.op is not None]

    def _storage(self, node: Node) -> Bytes:
        if node.index not in self._storages:
            buffer = node.leaf.buffer if node.leaf is not None else self._buffers[self._slots[node.index]]
            assert buffer is not None
            self._storages[node.index] = buffer.read()
        return self._storages[node.index]


def _wrong_shape(node: Node, result: Array) -> ShapeError:
    kernel, wanted = f"the kernel of {node.op and node.op.name}", node.shape[::-1]
    return ShapeError(f"{kernel} returned shape {np.shape(result)}, not {wanted}")
