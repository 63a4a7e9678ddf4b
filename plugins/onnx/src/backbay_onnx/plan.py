"""A graph ready to run: a session of its structure, with this graph's memory bound to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from backbay import Graph, Node, Plan
from backbay.encoding import Array, Bytes, gather, strided
from backbay.hostbuffer import HostBuffer
from backbay.memory import Entry
from backbay.plan import Cancel, check_cancel
from backbay.structure import Term, evaluate

from .compiled import Compiled
from .element_types import binding_type
from .lowering import LeafInput, StateOutput
from .runtime import runtime, translated
from .weights import numbers

if TYPE_CHECKING:
    from .backend import OnnxBackend

CPU = "CPU:0"
GRAPH = Entry(CPU, "graph")
POLL_SECONDS = 0.005


class LeafBuffer(HostBuffer):
    """Host memory of a leaf that counts how often the host has written it."""

    generation = 0

    def write(self, data: Bytes) -> None:
        super().write(data)
        self.generation += 1


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


class Binding:
    """An IOBinding to host memory. Its own methods look the device up by name for each of hundreds of inputs."""

    def __init__(self, session: Any) -> None:
        self.bound = session.io_binding()
        self._inner = self.bound._iobinding
        self._device = runtime().OrtDevice.make("cpu", 0)._get_c_device()

    def bind_input(self, name: str, kind: Any, shape: tuple[int, ...], array: Array) -> None:
        self._inner.bind_input(name, self._device, kind, shape, array.ctypes.data)

    def bind_output(self, name: str, kind: Any, shape: tuple[int, ...], array: Array) -> None:
        self._inner.bind_output(name, self._device, kind, shape, array.ctypes.data)


class OnnxPlan(Plan):
    """Everything is bound once; a run only runs."""

    def __init__(self, backend: OnnxBackend, graph: Graph, compiled: Compiled) -> None:
        self._backend, self._graph, self._compiled = backend, graph, compiled
        lowered = compiled.lowered
        self._feeds = lowered.feeds.of(graph)
        sizes = [graph.nodes[index].nbytes for _, index in lowered.results]
        sizes += [bound_nbytes(state, graph) for state in lowered.states if not state.in_place]
        shadowed = [
            graph.nodes[leaf.index]
            for leaf in lowered.leaves
            if leaf.form == "floats" and is_shadowed(graph.nodes[leaf.index])
        ]
        self.nbytes = sum(sizes) + sum(array.nbytes for array in self._feeds.values())
        self.nbytes += sum(4 * node.size for node in shadowed)
        self._results: dict[int, HostBuffer] = {}
        self._scratch: dict[int, HostBuffer] = {}
        self._shadows: list[Shadow] = []
        self._checks: list[tuple[Array, int]] = []
        self._full: OnnxPlan | None = None  # for runs whose writes fall behind what is bound here
        self._ran: OnnxPlan = self
        self._binding: Any = None
        backend.ledger.take(GRAPH, self.nbytes, self._allocate)

    def run(self, cancel: Cancel | None) -> None:
        check_cancel(cancel)
        if self._binding is None:
            return
        if not all(ids.max(initial=-1) < limit for ids, limit in self._checks):
            self._run_in_full(cancel)
            return
        self._ran = self
        debug = self._backend.params.debug
        if debug.poison:
            for buffer in (*self._results.values(), *self._scratch.values()):
                buffer.poison()
        for shadow in self._shadows:
            shadow.refresh()
        with translated("running a graph"), cancellable(cancel) as options:
            self._compiled.session.run_with_iobinding(self._binding, options)
        for index, buffer in self._scratch.items():
            self._leaf_bytes(index)[: buffer.nbytes] = buffer.data
        if debug.guard_bytes:
            self._check_guards()

    def read(self, node: Node) -> Bytes:
        storage = node.storage
        buffer = self._ran._results.get(storage.index)
        data = buffer.data if buffer is not None else self._leaf_bytes(storage.index)
        return gather(data, node)

    def close(self) -> None:
        self._binding, self._checks, self._ran = None, [], self
        if self._full is not None:
            self._full.close()
        for buffer in (*self._results.values(), *self._scratch.values()):
            buffer.close()
        self._results, self._scratch, self._shadows = {}, {}, []
        self._backend.ledger.give_back(GRAPH, self.nbytes)

    def report(self) -> list[str]:
        return [f"{CPU} {node.op.name} {node}" for node in self._graph.nodes if node.op is not None]

    def _run_in_full(self, cancel: Cancel | None) -> None:
        """Run a model in which caches are bound whole; it is made when it is first needed."""
        if self._full is None:
            compiled = self._backend.sessions.find(self._graph, prefixes=False)
            self._full = OnnxPlan(self._backend, self._graph, compiled)
        self._full.run(cancel)
        self._ran = self._full

    # -- binding -----------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        if not self._backend.params.alloc_memory or self._compiled.session is None:
            return
        graph, lowered, debug = self._graph, self._compiled.lowered, self._backend.params.debug
        binding = Binding(self._compiled.session)
        for name, array in self._feeds.items():
            binding.bind_input(name, np.int64, array.shape, array)
        for leaf in lowered.leaves:
            self._bind_leaf(binding, leaf)
        for name, index in lowered.results:
            node = graph.nodes[index]
            buffer = self._results[index] = HostBuffer(node.nbytes, debug)
            binding.bind_output(name, binding_type(node.dtype), stored_shape(node)[::-1], buffer.data)
        for state in lowered.states:
            node, data = graph.nodes[state.index], self._leaf_bytes(state.index)
            if not state.in_place:
                data = self._scratch.setdefault(
                    state.index, HostBuffer(bound_nbytes(state, graph), debug)
                ).data
            shape = sizes_of(state.shape, graph)
            binding.bind_output(state.name, binding_type(node.dtype), shape[::-1], data)
        for index, limit in lowered.checks:
            node = graph.nodes[index]
            self._checks.append((strided(self._leaf_bytes(node.storage.index), node), evaluate(limit, graph)))
        self._binding = binding.bound

    def _bind_leaf(self, binding: Binding, leaf: LeafInput) -> None:
        node = self._graph.nodes[leaf.index]
        shape = node.shape if leaf.form == "floats" else stored_shape(node)
        shape = shape if leaf.shape is None else sizes_of(leaf.shape, self._graph)
        if leaf.form == "floats":
            array, kind = self._numbers(node), np.float32
        else:
            array, kind = self._leaf_bytes(leaf.index), binding_type(node.dtype)
        binding.bind_input(leaf.name, kind, shape[::-1], array)

    def _numbers(self, node: Node) -> Array:
        if node.kind == "parameter":
            return self._backend.weights.floats(node)
        shadow = Shadow(node)
        self._shadows.append(shadow)
        return shadow.array

    def _leaf_bytes(self, index: int) -> Bytes:
        leaf = self._graph.nodes[index].leaf
        assert leaf is not None
        assert leaf.buffer is not None
        return leaf.buffer.read()

    def _check_guards(self) -> None:
        buffers = [*self._results.values(), *self._scratch.values()]
        leaves = [node.leaf.buffer for node in self._graph.nodes if node.leaf is not None]
        for buffer in (*buffers, *leaves):
            if isinstance(buffer, HostBuffer):
                buffer.check_guards()


def stored_shape(node: Node) -> tuple[int, ...]:
    """The shape of the values as they lie in memory: rows of a quantized type are bytes."""
    return (node.row_nbytes, *node.shape[1:]) if node.dtype.is_quantized else node.shape


def bound_nbytes(state: StateOutput, graph: Graph) -> int:
    """The bytes of a state that are bound: all, or its first rows."""
    return prod(sizes_of(state.shape, graph)) * graph.nodes[state.index].dtype.type_size


def is_shadowed(node: Node) -> bool:
    return node.dtype.is_quantized and node.kind != "parameter"


def sizes_of(terms: tuple[Term, ...], graph: Graph) -> tuple[int, ...]:
    return tuple(evaluate(term, graph) for term in terms)


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
