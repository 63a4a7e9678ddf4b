"""A graph ready to run: a session of its structure, with this graph's memory bound to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from backbay import Graph, Node, Plan
from backbay.plugin import Array, Bytes, Cancel, Entry, HostBuffer, check_cancel, gather, strided

from ..lowering.element_types import binding_type
from ..lowering.feeds import Known
from ..lowering.lowering import LeafInput
from ..lowering.state_outputs import RowsOutput, StateOutput
from ..memory.buffers import Binding, DeviceBuffer, LeafBuffer
from ..session.runtime import CPU, runtime, translated
from ..weights.store import numbers
from .compiled import Compiled

if TYPE_CHECKING:
    from ..backend import OnnxBackend

GRAPH = Entry(CPU, "graph")
POLL_SECONDS = 0.005


class Shadow:
    """A quantized leaf as the numbers that it stands for, brought up to date when the host has written it."""

    def __init__(self, node: Node) -> None:
        self.node, self.array = node, np.zeros(node.size, np.float32)
        self._seen = -1

    def refresh(self) -> None:
        leaf = self.node.leaf
        assert leaf is not None
        buffer = leaf.buffer
        assert isinstance(buffer, LeafBuffer)
        if self._seen != buffer.generation:
            self.array[:] = numbers(buffer.read(), self.node.dtype)
            self._seen = buffer.generation


class OnnxPlan(Plan):
    """Everything is bound once; a run only runs."""

    def __init__(self, backend: OnnxBackend, graph: Graph, compiled: Compiled) -> None:
        self._backend, self._graph, self._compiled = backend, graph, compiled
        lowered = compiled.lowered
        self._feeds, self._sizes = lowered.feeds.of(graph), lowered.sizes.of(graph)
        sizes = [graph.nodes[index].nbytes for _, index in lowered.results]
        sizes += [bound_nbytes(state, graph, self._sizes) for state in lowered.states if not state.in_place]
        sizes += [
            bound_nbytes(rows, graph, self._sizes) + 8 * self._sizes[rows.shape[1]] for rows in lowered.rows
        ]
        shadowed = [
            graph.nodes[leaf.index]
            for leaf in lowered.leaves
            if leaf.form == "floats" and is_shadowed(graph.nodes[leaf.index])
        ]
        self.nbytes = sum(sizes) + self._feeds.nbytes
        self.nbytes += sum(4 * node.size for node in shadowed)
        self._results: dict[int, HostBuffer] = {}
        self._wholes: list[tuple[StateOutput, HostBuffer]] = []  # what is bound of a state is to become that
        self._rows: list[tuple[RowsOutput, HostBuffer, HostBuffer]] = []  # numbers of rows, and new ones
        self._shadows: dict[int, Shadow] = {}  # by node index
        self._checks: list[tuple[Array, int, int]] = []
        self._full: OnnxPlan | None = None  # for runs whose writes fall behind what is bound here
        self._ran: OnnxPlan = self
        self._binding: Binding | None = None
        self._fed: list[LeafInput] = []  # by the host, to a device that is another
        backend.ledger.take(GRAPH, self.nbytes, self._allocate)
        compiled.users += 1
        try:
            backend.workspace.take(self, compiled.peak.of(graph))
        except BaseException:
            self.close()
            raise

    def run(self, cancel: Cancel | None) -> None:
        check_cancel(cancel)
        if self._binding is None:
            return
        if not all(
            ids.min(initial=low) >= low and ids.max(initial=low) < high for ids, low, high in self._checks
        ):
            self._run_in_full(cancel)
            return
        self._ran = self
        debug = self._backend.params.debug
        if debug.poison:
            for buffer in self._made():
                buffer.poison()
        for shadow in self._shadows.values():
            shadow.refresh()
        with translated("running a graph"), cancellable(cancel) as options:
            self._feed(self._binding)
            self._compiled.session.run_with_iobinding(self._binding.bound, options)
        self._put()
        if debug.guard_bytes:
            self._check_guards()

    def _feed(self, binding: Binding) -> None:
        """ONNX Runtime copies what the host holds to a device when it is bound, not when it runs."""
        for leaf in self._fed:
            self._bind_leaf(binding, leaf)
        if self._fed:
            binding.bound.synchronize_inputs()

    def _put(self) -> None:
        """Write what could not be written by the run itself."""
        for whole, buffer in self._wholes:
            data = self._leaf_bytes(whole.index)
            begin = self._sizes[whole.begin]
            data[begin : begin + buffer.nbytes] = buffer.data
            self._write_back(whole.index, data)
        for rows, places, buffer in self._rows:
            data = self._leaf_bytes(rows.index)
            width = self._sizes[rows.shape[0]] * self._graph.nodes[rows.index].dtype.type_size
            state = data[self._sizes[rows.begin] :].reshape(-1, width)
            state[places.data.view(np.int64)] = buffer.data.reshape(-1, width)
            self._write_back(rows.index, data)

    def read(self, node: Node) -> Bytes:
        storage = node.storage
        buffer = self._ran._results.get(storage.index)
        data = buffer.data if buffer is not None else self._leaf_bytes(storage.index)
        return gather(data, node)

    def close(self) -> None:
        self._binding, self._checks, self._ran = None, [], self
        if self._full is not None:
            self._full.close()
        for buffer in self._made():
            buffer.close()
        self._results, self._wholes, self._shadows, self._rows = {}, [], {}, []
        self._backend.ledger.give_back(GRAPH, self.nbytes)
        self._backend.workspace.give_back(self)
        self._compiled.users -= 1

    def report(self) -> list[str]:
        return [
            f"{self._backend.device.id} {node.op.name} {node}"
            for node in self._graph.nodes
            if node.op is not None
        ]

    def _run_in_full(self, cancel: Cancel | None) -> None:
        """Run a model in which caches are bound whole; it is made when it is first needed."""
        if self._full is None:
            compiled = self._backend.sessions.find(self._graph, windows=False)
            self._full = OnnxPlan(self._backend, self._graph, compiled)
        self._full.run(cancel)
        self._ran = self._full

    # -- binding -----------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        if not self._backend.params.alloc_memory or self._compiled.session is None:
            return
        graph, lowered, debug = self._graph, self._compiled.lowered, self._backend.params.debug
        binding = Binding(self._compiled.session, self._backend.device)
        binding.numbers(self._feeds)
        for leaf in lowered.leaves:
            self._bind_leaf(binding, leaf)
        for part in lowered.resident:
            buffer = self._backend.weights.resident_part(graph.nodes[part.index], part.part)
            binding.input(part.name, part.kind, part.shape, buffer, part.begin)
        for name, index in lowered.results:
            node = graph.nodes[index]
            result = self._results[index] = HostBuffer(node.nbytes, debug)
            binding.output(name, binding_type(node.dtype), stored_shape(node)[::-1], result.data)
        for state in lowered.states:
            self._bind_state(binding, state)
        for rows in lowered.rows:
            self._bind_rows(binding, rows)
        checks = {(index, *self._sizes.all(limits)) for index, *limits in lowered.checks}
        for index, first, count in sorted(checks):
            node = graph.nodes[index]
            ids = strided(self._leaf_bytes(node.storage.index), node)
            self._checks.append((ids, first, first + count))
        self._fed = [leaf for leaf in lowered.leaves if self._is_fed(leaf)]
        self._binding = binding

    def _bind_state(self, binding: Binding, state: StateOutput) -> None:
        node = self._graph.nodes[state.index]
        kind, shape = binding_type(node.dtype), self._sizes.all(state.shape)[::-1]
        if state.in_place:
            binding.output(state.name, kind, shape, self._memory(state.index), self._sizes[state.begin])
            return
        buffer = HostBuffer(bound_nbytes(state, self._graph, self._sizes), self._backend.params.debug)
        self._wholes.append((state, buffer))
        binding.output(state.name, kind, shape, buffer.data)

    def _bind_rows(self, binding: Binding, rows: RowsOutput) -> None:
        node, shape, debug = (
            self._graph.nodes[rows.index],
            self._sizes.all(rows.shape),
            self._backend.params.debug,
        )
        numbers, values = (
            HostBuffer(8 * shape[1], debug),
            HostBuffer(bound_nbytes(rows, self._graph, self._sizes), debug),
        )
        binding.output(rows.numbers, TensorProto.INT64, (shape[1], 1), numbers.data)
        binding.output(rows.rows, binding_type(node.dtype), shape[::-1], values.data)
        self._rows.append((rows, numbers, values))

    def _made(self) -> list[HostBuffer]:
        """What is filled by each run, beside the states that are written where they are."""
        buffers = [buffer for _, *both in self._rows for buffer in both]
        return [*self._results.values(), *[buffer for _, buffer in self._wholes], *buffers]

    def _bind_leaf(self, binding: Binding, leaf: LeafInput) -> None:
        node = self._graph.nodes[leaf.index]
        shape = bound_shape(leaf, self._graph, self._sizes)
        kind = TensorProto.FLOAT if leaf.form == "floats" else binding_type(node.dtype)
        at = self._numbers(node) if leaf.form == "floats" else self._memory(leaf.index)
        binding.input(leaf.name, kind, shape[::-1], at, self._sizes[leaf.begin])

    def _numbers(self, node: Node) -> Array | DeviceBuffer:
        if node.kind == "parameter":
            weights = self._backend.weights
            return weights.floats(node) if self._backend.device.is_host else weights.resident_floats(node)
        if node.index not in self._shadows:
            self._shadows[node.index] = Shadow(node)
        return self._shadows[node.index].array

    def _is_fed(self, leaf: LeafInput) -> bool:
        node = self._graph.nodes[leaf.index]
        if self._backend.device.is_host or node.kind == "parameter":
            return False
        return node.leaf is not None and not isinstance(node.leaf.buffer, DeviceBuffer)

    def _memory(self, index: int) -> Array | DeviceBuffer:
        """Where a leaf lies, or a weight that is used as it is stored."""
        node = self._graph.nodes[index]
        assert node.leaf is not None
        buffer = node.leaf.buffer
        if isinstance(buffer, DeviceBuffer):
            return buffer
        if node.kind == "parameter" and not self._backend.device.is_host:
            return self._backend.weights.resident_bytes(node)
        return self._leaf_bytes(index)

    def _leaf_bytes(self, index: int) -> Bytes:
        """What a leaf holds: the memory itself on the host, else a copy, which is to be written back."""
        leaf = self._graph.nodes[index].leaf
        assert leaf is not None
        assert leaf.buffer is not None
        return leaf.buffer.read()

    def _write_back(self, index: int, data: Bytes) -> None:
        leaf = self._graph.nodes[index].leaf
        assert leaf is not None
        if isinstance(leaf.buffer, DeviceBuffer):
            leaf.buffer.write(data)

    def _check_guards(self) -> None:
        leaves = [node.leaf.buffer for node in self._graph.nodes if node.leaf is not None]
        for buffer in (*self._made(), *leaves):
            if isinstance(buffer, HostBuffer):
                buffer.check_guards()


def stored_shape(node: Node) -> tuple[int, ...]:
    """The shape of the values as they lie in memory: rows of a quantized type are bytes."""
    return (node.row_nbytes, *node.shape[1:]) if node.dtype.is_quantized else node.shape


def bound_shape(leaf: LeafInput, graph: Graph, sizes: Known) -> tuple[int, ...]:
    """Innermost first."""
    if leaf.shape is not None:
        return sizes.all(leaf.shape)
    node = graph.nodes[leaf.index]
    return node.shape if leaf.form == "floats" else stored_shape(node)


def bound_nbytes(output: StateOutput | RowsOutput, graph: Graph, sizes: Known) -> int:
    """The bytes that are bound: of a state all, or its first rows; or those of new rows."""
    return prod(sizes.all(output.shape)) * graph.nodes[output.index].dtype.type_size


def is_shadowed(node: Node) -> bool:
    return node.dtype.is_quantized and node.kind != "parameter"


@contextmanager
def cancellable(cancel: Cancel | None) -> Iterator[Any]:
    """Run options that end a run once `cancel` is set; None where nobody can cancel."""
    if cancel is None:
        yield None
        return
    options, done = runtime().RunOptions(), threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            if cancel.is_set():
                options.terminate = True
                return

    watcher = threading.Thread(target=watch, name="backbay-onnx-cancel", daemon=True)
    watcher.start()
    try:
        yield options
    finally:
        done.set()
        watcher.join()
