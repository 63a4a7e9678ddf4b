"""The memory of one graph, bound to the session of its structure."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from backbay import Graph, Node
from backbay.internals import Array, Bytes
from backbay.plugin import HostBuffer, strided

from ..lowering.lowered_model import LeafInput, RowsOutput, SizeArrays, StateOutput, TermValues, binding_type
from ..memory.buffers import DeviceBuffer, LeafBuffer
from ..session.device import Device
from ..weights.store import decode_floats, named_data
from .io_binding import DirectIOBinding, Memory
from .recorded_runs import RecordedRuns, reads_before_writes
from .session_cache import CompiledGraph, OnnxPlanResources


def stored_shape(node: Node) -> tuple[int, ...]:
    """The shape of the values as they lie in memory: rows of a quantized type are bytes."""
    return (node.row_nbytes, *node.shape[1:]) if node.dtype.is_quantized else node.shape


def bound_shape(leaf: LeafInput, graph: Graph, sizes: TermValues) -> tuple[int, ...]:
    """Innermost first."""
    if leaf.shape is not None:
        return sizes.all(leaf.shape)
    node = graph.nodes[leaf.index]
    return node.shape if leaf.form == "floats" else stored_shape(node)


def bound_nbytes(output: StateOutput | RowsOutput, graph: Graph, sizes: TermValues) -> int:
    """Bytes of a state, or of its window, or of written rows."""
    return prod(sizes.all(output.shape)) * graph.nodes[output.index].dtype.type_size


def lies_there(node: Node) -> bool:
    """Whether a leaf has memory of the device."""
    return node.leaf is not None and isinstance(node.leaf.buffer, DeviceBuffer)


def is_fed(node: Node, device: Device) -> bool:
    """Whether each run copies a leaf from the host to the device."""
    return node.kind != "parameter" and not lies_there(node) and not device.is_host


class DecodedLeafBuffer:
    """A quantized leaf as float32; `refresh` decodes it anew if the host has written it."""

    def __init__(self, node: Node) -> None:
        self.node, self.array = node, np.zeros(node.size, np.float32)
        self._decoded = -1  # the generation

    def refresh(self) -> None:
        leaf = self.node.leaf
        assert leaf is not None
        buffer = leaf.buffer
        assert isinstance(buffer, LeafBuffer)
        if self._decoded != buffer.generation:
            self.array[:] = decode_floats(buffer.read(), self.node.dtype)
            self._decoded = buffer.generation


class BoundGraph:
    """Memory is bound once, before all runs. Each run fills the buffers of the results."""

    def __init__(
        self,
        services: OnnxPlanResources,
        graph: Graph,
        compiled: CompiledGraph,
        feeds: SizeArrays,
        sizes: TermValues,
    ) -> None:
        self._services, self._graph = services, graph
        self._session, self._sizes = compiled.session, sizes
        self._debug = services.params.debug
        self._there = compiled.there
        self._recorded: RecordedRuns | None = None
        if compiled.numbers is not None:
            states = self._states_in_place(compiled) if reads_before_writes(graph) else []
            self._recorded = RecordedRuns(compiled.session, services.device, compiled.numbers, states)
        self.results: dict[int, HostBuffer] = {}  # by node index
        self._wholes: list[tuple[StateOutput, HostBuffer]] = []  # new values of states not bound in place
        self._rows: list[tuple[RowsOutput, HostBuffer, HostBuffer]] = []  # numbers of rows, and new rows
        self._decoded: dict[int, DecodedLeafBuffer] = {}  # by node index
        self._checks: list[tuple[Array, int, int]] = []  # ids, and the rows that they must be in
        self._distinct: list[Array] = []  # ids that must not repeat one
        self._binding = DirectIOBinding(compiled.session, services.device)
        for name, array in feeds.arrays.items():
            self._binding.input(name, TensorProto.INT64, array.shape, self._fixed(name, array))
        self._bind(compiled)

    def writes_fit(self) -> bool:
        """Whether all writes fall into the bound windows of their states, and a GPU writes no row twice."""
        inside = all(
            ids.min(initial=low) >= low and ids.max(initial=low) < high for ids, low, high in self._checks
        )
        return inside and not any(map(_repeats, self._distinct))

    def run(self, options: Any) -> None:
        if self._debug.poison:
            for buffer in self._buffers():
                buffer.poison()
        for leaf in self._decoded.values():
            leaf.refresh()
        if self._recorded is not None:
            self._recorded.run(self._binding.bound, options)
            return
        for (
            leaf_input
        ) in self._fed:  # ONNX Runtime copies them to the device when they are bound, not when it runs
            self._bind_leaf(leaf_input)
        if self._fed:
            self._binding.bound.synchronize_inputs()
        self._session.run_with_iobinding(self._binding.bound, options)

    def put(self) -> None:
        """Write into states the rows and values that the session did not write in place."""
        for whole, buffer in self._wholes:
            data = leaf_bytes(self._graph, whole.index)
            begin = self._sizes[whole.begin]
            data[begin : begin + buffer.nbytes] = buffer.data
            self._write_back(whole.index, data)
        for rows, places, buffer in self._rows:
            data = leaf_bytes(self._graph, rows.index)
            width = self._sizes[rows.shape[0]] * self._graph.nodes[rows.index].dtype.type_size
            state = data[self._sizes[rows.begin] :].reshape(-1, width)
            state[places.data.view(np.int64)] = buffer.data.reshape(-1, width)
            self._write_back(rows.index, data)

    def check_guards(self) -> None:
        leaves = [node.leaf.buffer for node in self._graph.nodes if node.leaf is not None]
        for buffer in (*self._buffers(), *leaves):
            if isinstance(buffer, HostBuffer):
                buffer.check_guards()

    def close(self) -> None:
        for buffer in self._buffers():
            buffer.close()
        if self._recorded is not None:
            self._recorded.close()

    def _buffers(self) -> list[HostBuffer]:
        """Memory that each run fills, beside the states that are written in place."""
        buffers = [buffer for _, *both in self._rows for buffer in both]
        return [*self.results.values(), *[buffer for _, buffer in self._wholes], *buffers]

    # -- binding -----------------------------------------------------------------------------------------

    def _bind(self, compiled: CompiledGraph) -> None:
        graph, lowered, binding = self._graph, compiled.lowered, self._binding
        for leaf in lowered.leaves:
            self._bind_leaf(leaf)
        for part in lowered.resident:
            weight = self._services.weights.resident(graph.nodes[part.index], part.part)
            binding.input(part.name, part.kind, part.shape, weight, part.begin)
        for name, index in lowered.results:
            node = graph.nodes[index]
            result = self.results[index] = HostBuffer(node.nbytes, self._debug)
            binding.output(name, binding_type(node.dtype), stored_shape(node)[::-1], self._filled(result))
        for state in lowered.states:
            self._bind_state(state)
        for rows in lowered.rows:
            self._bind_rows(rows)
        for index, first, count in sorted({(i, *self._sizes.all(limits)) for i, *limits in lowered.checks}):
            self._checks.append((self._ids(index), first, first + count))
        self._distinct = [self._ids(index) for index in lowered.distinct]
        self._fed = [
            leaf for leaf in lowered.leaves if is_fed(graph.nodes[leaf.index], self._services.device)
        ]

    def _bind_state(self, state: StateOutput) -> None:
        node = self._graph.nodes[state.index]
        kind, shape = binding_type(node.dtype), self._sizes.all(state.shape)[::-1]
        if state.in_place:
            self._binding.output(state.name, kind, shape, self._memory(state.index), self._sizes[state.begin])
            return
        buffer = HostBuffer(bound_nbytes(state, self._graph, self._sizes), self._debug)
        self._wholes.append((state, buffer))
        self._binding.output(state.name, kind, shape, self._filled(buffer))

    def _bind_rows(self, rows: RowsOutput) -> None:
        node, shape = self._graph.nodes[rows.index], self._sizes.all(rows.shape)
        places = HostBuffer(8 * shape[1], self._debug)
        values = HostBuffer(bound_nbytes(rows, self._graph, self._sizes), self._debug)
        self._binding.output(rows.numbers, TensorProto.INT64, (shape[1], 1), self._filled(places))
        self._binding.output(rows.rows, binding_type(node.dtype), shape[::-1], self._filled(values))
        self._rows.append((rows, places, values))

    def _bind_leaf(self, leaf: LeafInput) -> None:
        node = self._graph.nodes[leaf.index]
        shape = bound_shape(leaf, self._graph, self._sizes)
        kind = TensorProto.FLOAT if leaf.form == "floats" else binding_type(node.dtype)
        if self._recorded is not None and is_fed(node, self._services.device):
            at: Memory = self._recorded.input(lambda: self._leaf_memory(leaf))
        else:
            at = self._fixed(leaf.name, self._leaf_memory(leaf))
        self._binding.input(leaf.name, kind, shape[::-1], at, self._sizes[leaf.begin])

    def _fixed(self, name: str, data: Memory) -> Memory:
        """What the session reads of data that stays: where a record reads it on the device, a copy of our own.

        ONNX Runtime would keep its copy where a record writes what lies between its nodes.
        """
        copied = self._recorded is not None and name in self._there and not isinstance(data, DeviceBuffer)
        return self._recorded.fixed(data) if self._recorded is not None and copied else data

    def _filled(self, buffer: HostBuffer) -> Memory:
        """What the session fills: a buffer of the host, or memory of the device that is copied there after each run."""
        return buffer.data if self._recorded is None else self._recorded.output(buffer)

    def _states_in_place(self, compiled: CompiledGraph) -> list[DeviceBuffer]:
        states = dict.fromkeys(state.index for state in compiled.lowered.states if state.in_place)
        buffers = [self._memory(index) for index in states]
        return [buffer for buffer in buffers if isinstance(buffer, DeviceBuffer)]

    def _leaf_memory(self, leaf: LeafInput) -> Memory:
        return (
            self._floats(self._graph.nodes[leaf.index]) if leaf.form == "floats" else self._memory(leaf.index)
        )

    def _floats(self, node: Node) -> Memory:
        if node.kind == "parameter":
            weights = self._services.weights
            if self._services.layers.is_resident(node):
                return weights.resident(node, "floats")
            return weights.floats(node)
        if node.index not in self._decoded:
            self._decoded[node.index] = DecodedLeafBuffer(node)
        return self._decoded[node.index].array

    def _ids(self, index: int) -> Array:
        node = self._graph.nodes[index]
        return strided(leaf_bytes(self._graph, node.storage.index), node)

    def _memory(self, index: int) -> Memory:
        """The memory of a leaf, or of a weight that is used as it is stored."""
        node = self._graph.nodes[index]
        assert node.leaf is not None
        buffer = node.leaf.buffer
        if isinstance(buffer, DeviceBuffer):
            return buffer
        if node.kind == "parameter" and self._services.layers.is_resident(node):
            return self._services.weights.resident(node, "bytes")
        return leaf_bytes(self._graph, index)

    def _write_back(self, index: int, data: Bytes) -> None:
        leaf = self._graph.nodes[index].leaf
        assert leaf is not None
        if isinstance(leaf.buffer, DeviceBuffer):
            leaf.buffer.write(data)


def leaf_bytes(graph: Graph, index: int) -> Bytes:
    """The data of a leaf: on the host the memory itself, else a copy, which is to be written back."""
    return named_data(graph.nodes[index])[1]


def _repeats(ids: Array) -> bool:
    return ids.shape[-1:] > (1,) and bool((np.diff(np.sort(ids, axis=-1), axis=-1) == 0).any())
