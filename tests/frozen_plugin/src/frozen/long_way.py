"""The long way: a graph becomes a list of closures over memory that is planned from symbolic sizes."""

from typing import ClassVar

import numpy as np
from backbay.plugin import (
    GRAPH,
    KERNEL,
    Backend,
    CacheConfig,
    DeviceInfo,
    DType,
    Entry,
    HostBuffer,
    Level,
    MappedBuffer,
    Node,
    Plan,
    Precision,
    ShapeError,
    Symbols,
    UnsupportedOpError,
    assign_slots,
    check_cancel,
    conversion_gap,
    decode,
    encode,
    encoding_gap,
    gather,
    hookimpl,
    host_memory,
    program,
    same_shape,
    stop_when_cancelled,
    strided,
    term_of,
    unsupported,
)

from .kernels import kernel


class FrozenPlan(Plan):
    """Each node's array, and a closure for each node that computes."""

    def __init__(self, backend, graph):
        self.backend, self.graph = backend, graph
        self.slots, sizes = assign_slots(graph)
        self.nbytes = sum(sizes)
        self.buffers = backend.ledger.take(GRAPH, self.nbytes, lambda: self.allocate(sizes))
        self.arrays, self.steps = [], []
        if backend.params.alloc_memory:
            self.arrays = [strided(self.storage(node), node) for node in graph.nodes]
            self.steps = [self.step(node) for node in graph.nodes if node.op is not None and not node.op.view]

    def allocate(self, sizes):
        if not self.backend.params.alloc_memory:
            return []
        return [HostBuffer(size, self.backend.params.debug) for size in sizes]

    def storage(self, node):
        leaf = node.storage.leaf
        return (self.buffers[self.slots[node.storage.index]] if leaf is None else leaf.buffer).read()

    def step(self, node):
        op, out = node.op, self.arrays[node.index]
        call = op.spread(kernel[op])

        def run():
            args = [self.operand(node, arg) if isinstance(arg, Node) else arg for arg in node.args]
            result = call(*args)
            if op.writes is None:
                self.store(node, result, out)

        return run

    def operand(self, reader, node):
        op, stored = reader.op, np.atleast_1d(self.arrays[node.index])
        target = None if op.writes is None else reader.args[op.writes]
        if op.ids is not None and node is reader.args[op.ids]:
            return stored
        if target is not None:
            return stored if node is target else self.for_target(node, stored, target, reader)
        return stored if op.moves else self.numbers(stored, node.dtype)

    def for_target(self, node, stored, target, writer):
        """What is written, in the target's dtype, and safe where both share memory."""
        whole = writer.op.name == "copy"
        if node.dtype is not target.dtype:
            values = decode(stored, node.dtype)
            return encode(values.reshape(target.shape[::-1]) if whole else values, target.dtype)
        moved = stored.copy() if node.storage is target.storage else stored
        return moved.reshape(self.arrays[target.index].shape) if whole else moved

    @staticmethod
    def numbers(stored, dtype):
        values = decode(stored, dtype)
        return values if dtype.is_integer else values.astype(np.float64)

    @staticmethod
    def store(node, result, out):
        if node.op.moves:
            source = node.args[0].dtype
            moved = result if source is node.dtype else encode(decode(result, source), node.dtype)
            out[...] = moved.reshape(out.shape)
            return
        if not same_shape(np.shape(result)[::-1], node.shape):
            raise ShapeError(f"{node.op.name} made {np.shape(result)}, not {node.shape[::-1]}")
        out[...] = encode(result, node.dtype).reshape(out.shape)

    def run(self, cancel):
        debug = self.backend.params.debug
        if debug.poison:
            for buffer in self.buffers:
                buffer.poison()
        stopped = []
        with np.errstate(all="ignore"), stop_when_cancelled(cancel, lambda: stopped.append(True)):
            for step in self.steps:
                check_cancel(cancel)
                step()
        if debug.guard_bytes:
            leaves = [node.leaf.buffer for node in self.graph.nodes if node.leaf is not None]
            for buffer in (*self.buffers, *leaves):
                if isinstance(buffer, HostBuffer):
                    buffer.check_guards()

    def read(self, node):
        return gather(self.storage(node), node)

    def close(self):
        for buffer in self.buffers:
            buffer.close()
        self.buffers, self.arrays, self.steps = [], [], []
        self.backend.ledger.give_back(GRAPH, self.nbytes)

    def report(self):
        sizes = self.backend.sizes_of(self.graph)
        return [f"CPU:0 {node.op.name} {node}: {size} bytes" for node, size in sizes.items()]


class FrozenGraphs(Backend):
    """A compiler of whole graphs, which plans memory once for each structure."""

    contract_version = "1.1"
    kernels = kernel
    deterministic = True
    priority = None
    options: ClassVar = {}

    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)
        self.layouts = {}  # structure key -> programs that answer the bytes of each result

    def start(self):
        super().start()
        assert self.ledger.holds is self.params.alloc_memory

    def sizes_of(self, graph):
        """The bytes of each result, by programs over symbolic sizes that graphs of one structure share."""
        key = graph.structure_key()
        own = [node for node in graph.nodes if node.op is not None and not node.is_view]
        known = self.layouts.get(key)
        if known is None or not known[0].hold(graph):
            symbols = Symbols(graph)
            known = self.layouts[key] = (symbols.guards, [self.size_program(symbols, node) for node in own])
        return {node: size(graph)[0] for node, size in zip(own, known[1], strict=True)}

    @staticmethod
    def size_program(symbols, node):
        """A program for the bytes of a node; rows of no elements are a case of their own, under a guard."""
        rows = symbols.constant(1)
        for n in range(1, node.rank):
            rows = rows * symbols.dim(node, n)
        if node.rank and symbols.dim(node, 0).same(0):
            return program([symbols.constant(0).term])
        blocks = symbols.dim(node, 0) // node.dtype.block_size if node.rank else symbols.constant(1)
        return program([term_of(blocks * node.dtype.type_size * rows)])

    def devices(self):
        total, free = host_memory()
        return [DeviceInfo("CPU:0", "the host", total_memory=total, free_memory=free)]

    def supports(self, op, specs):
        gap = conversion_gap(op, specs)
        if gap:
            return unsupported(gap)
        answer = super().supports(op, specs)
        return KERNEL if answer.level is Level.KERNEL else answer

    def compile(self, graph):
        for node in graph.nodes:
            gap = encoding_gap(node.dtype) if node.op is not None and node.op.name == "cast" else ""
            if gap:
                raise UnsupportedOpError(f"cast: {node.args[0]} to {node.dtype}: {gap}")
        return FrozenPlan(self, graph)

    def allocate(self, spec, placement):
        return HostBuffer(spec.nbytes, self.params.debug)

    def weight(self, info):
        return MappedBuffer(self.model.data(info.name))

    def read_weights(self, progress, cancel):
        for done in (0.5, 1.0):
            check_cancel(cancel)
            progress(done)

    def release(self):
        self.layouts.clear()

    def weight_entry(self, weight):
        entry = super().weight_entry(weight)
        assert isinstance(entry, Entry)
        return entry

    def precision(self, op, specs):
        return Precision(DType.F32, DType.F64)

    def cache_config(self):
        return CacheConfig(dtypes=(DType.F32,))


@hookimpl
def backbay_backend():
    return FrozenGraphs
