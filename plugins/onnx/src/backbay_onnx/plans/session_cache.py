"""Sessions, one for each structure of graphs, and the graphs that they may run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backbay import BackbayError, BackendParams, Graph
from backbay.internals import Ledger, return_freed_memory
from backbay.plugin import CPU, Entry, Workspace
from backbay_native import NativeCode

from ..lowering.graph_lowering import lower_graph
from ..lowering.kernel_view import LoweringSettings
from ..lowering.lowered_model import LoweredModel
from ..memory.working_memory import PeakMemoryCalculator
from ..ops import KERNELS, peak_memory
from ..session.device import Device
from ..session.layer_assignment import LayerAssignment
from ..session.native import DOMAIN, NO_NATIVE
from ..session.session import CAPTURE, LOG, SessionProfile, create_session, session_options
from ..weights.store import WeightStore


@dataclass(frozen=True)
class OnnxPlanResources:
    """One of each for all contexts of a backend."""

    params: BackendParams
    device: Device  # of the sessions, which may leave some layers to the CPU
    layers: LayerAssignment
    ledger: Ledger
    weight_entry: Callable[[str], Entry]
    weights: WeightStore
    workspaces: Mapping[str, Workspace]  # by the id of the device
    exact: bool  # activations stay float32
    shared_threads: bool
    native: NativeCode


NODE = 12 << 10  # bytes that ONNX Runtime takes for a node while it creates a session, measured
HELD_IN_VAIN = 1 << 22  # bytes that freed blocks may hold in vain, so that the system need not clear others
# Runs of a session, of plans that are closed, too: some versions give a record's memory back with the session alone.
MOST_RECORDED = 64
KEPT = 64  # sessions that no plan uses; a model has a few structures
KEPT_PACKED = 2  # of these, with packed weights: each takes as much memory as the model's file


@dataclass(eq=False)
class CompiledGraph:
    """A lowered graph and its session, for every graph of the structure whose sizes keep the guards."""

    lowered: LoweredModel
    session: Any  # None if there is nothing to run
    packed: Sequence[tuple[Entry, int]]  # memory of packed weights that the session holds
    peaks: Mapping[str, PeakMemoryCalculator]  # by the id of the device
    events: SessionProfile | None
    numbers: Iterator[int] | None = None  # of the runs that the device may record; None where it records none
    there: frozenset[str] = frozenset()  # where it does: the inputs that it reads in its own memory
    users: int = 0  # plans

    def serves(self, graph: Graph) -> bool:
        if self.events is not None and self.events.is_over:
            return False
        names = ((getattr(graph.nodes[index].leaf, "name", None), name) for index, name in self.lowered.baked)
        return all(given == baked for given, baked in names) and self.lowered.guards.hold(graph)


class SessionCache:
    """Compiled graphs by structure. The least recently used are dropped, sooner if they hold packed weights."""

    def __init__(self, services: OnnxPlanResources) -> None:
        self._services = services
        self._compiled: OrderedDict[Hashable, list[CompiledGraph]] = OrderedDict()
        self._lock = threading.Lock()
        self.created = 0

    def find(self, graph: Graph, *, usual: bool = True, profiled: bool = False) -> CompiledGraph:
        """The compiled graph for a graph, made if there is none yet; without `usual`, caches are bound whole, and
        rows may be written twice.

        If it is to be `profiled`, its session keeps a log of its runs.
        """
        with self._lock:
            key = (graph.structure_key(), self._services.layers.key(graph), usual, profiled)
            known = self._compiled.setdefault(key, [])
            self._compiled.move_to_end(key)
            found = next((compiled for compiled in known if compiled.serves(graph)), None)
            if found is None:
                found = self._compile(graph, usual=usual, profiled=profiled)
                known.append(found)
                self._drop_unused()
            return found

    def close(self) -> None:
        with self._services.device.alone():
            self._compiled.clear()

    def _drop_unused(self) -> None:
        idle = [compiled for known in self._compiled.values() for compiled in known if not compiled.users]
        heavy = [compiled for compiled in idle if compiled.packed]
        for compiled in {*idle[:-KEPT], *heavy[:-KEPT_PACKED]}:
            for known in self._compiled.values():
                if compiled in known:
                    known.remove(compiled)
            if compiled.numbers is not None:  # it is closed here, and not while another one records
                with self._services.device.alone():
                    compiled.session = None
            self._give_back(compiled.packed)
        for key in [key for key, known in self._compiled.items() if not known]:
            del self._compiled[key]

    def _compile(self, graph: Graph, *, usual: bool, profiled: bool) -> CompiledGraph:
        services = self._services
        settings = LoweringSettings(
            exact=services.exact, usual=usual, layers=services.layers, native=services.native
        )
        lowered = lower_graph(graph, KERNELS, settings)
        services.weights.book_for(lowered, graph)
        packed = self._book_packed(lowered, graph)
        try:
            peaks = self._peaks(graph, lowered)
            if services.device.records and usual and not (profiled or services.layers.splits):
                session, there = self._recording_session(lowered, graph)
                if session is not None or there:
                    numbers = iter(range(MOST_RECORDED))
                    return CompiledGraph(lowered, session, packed, peaks, None, numbers, there)
            session, events = self._session(lowered, graph, services.device.unrecorded, profiled=profiled)
            return CompiledGraph(lowered, session, packed, peaks, events)
        except BaseException:
            self._give_back(packed)
            raise

    def _peaks(self, graph: Graph, lowered: LoweredModel) -> dict[str, PeakMemoryCalculator]:
        """The working memory of each device, for the ops that it runs."""
        services, found = self._services, dict[str, PeakMemoryCalculator]()
        for id in services.workspaces:
            native = services.native if id == CPU else NO_NATIVE
            of_ops = [node for node in graph.nodes if services.layers.runs_on_cpu(node) == (id == CPU)]
            found[id] = peak_memory(graph, of_ops, lowered.copied, native)
        return found

    def _recording_session(self, lowered: LoweredModel, graph: Graph) -> tuple[Any, frozenset[str]]:
        """A session whose runs can be recorded, and the inputs that lie on the device; None if it cannot.

        All of it must run on the device, but for shapes, and read there what differs from run to run.
        """
        device, why, there = self._services.device, "", frozenset[str]()
        try:
            session, _ = self._session(lowered, graph, device, profiled=False)
        except BackbayError as error:
            if CAPTURE not in str(error):
                raise
            why = str(error)
        else:
            if session is None:  # where memory is only measured, all inputs count
                measured = [] if self._services.params.alloc_memory else lowered.model.graph.input
                return None, frozenset(value.name for value in measured)
            memories = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
            there = frozenset(
                value.name for value, memory in memories if memory.name.lower() == device.provider.memory
            )
            leaves = [leaf.name for leaf in lowered.leaves if graph.nodes[leaf.index].kind != "parameter"]
            here = [name for name in leaves if name not in there]
            if not here:
                return session, there
            why = f"{', '.join(here)} must be on the host"
        LOG.info("runs of a graph of %d nodes are not recorded: %s", len(lowered.model.graph.node), why)
        return None, there

    def _session(
        self, lowered: LoweredModel, graph: Graph, device: Device, *, profiled: bool
    ) -> tuple[Any, SessionProfile | None]:
        """A session, with its log if it is `profiled`; None if there is nothing to run."""
        services = self._services
        if not services.params.alloc_memory or not (lowered.results or lowered.states or lowered.rows):
            return None, None
        parts = [
            (file, services.weights.packed(graph.nodes[index]).part(part))
            for file, index, part in lowered.parts
        ]
        # A session without native code is made in half of the time.
        domains = [each.domain for each in lowered.model.opset_import]
        native = services.native.path if DOMAIN in domains else None
        options = session_options(services.params.num_threads, shared=services.shared_threads, native=native)
        events = SessionProfile(options) if profiled else None
        limit = services.params.max_memory.get(device.id)
        needed = len(lowered.model.graph.node) * NODE
        services.ledger.foresee(Entry(CPU, "host"), needed)
        session = create_session(lowered.model, parts, options, device, limit)
        services.weights.files.drop_pages()
        if needed > HELD_IN_VAIN or parts:
            return_freed_memory()  # creating a session takes several times the memory of the model's nodes
        self.created += 1
        return session, events

    def _book_packed(self, lowered: LoweredModel, graph: Graph) -> list[tuple[Entry, int]]:
        """Book the memory that ONNX Runtime will take for packed weights; all or nothing."""
        booked: list[tuple[Entry, int]] = []
        try:
            for index, nbytes in lowered.packed:
                leaf = graph.nodes[index].leaf
                assert leaf is not None
                entry = self._services.weight_entry(leaf.name)
                self._services.ledger.take(entry, nbytes, lambda: None, mapped=False)
                booked.append((entry, nbytes))
        except BaseException:
            self._give_back(booked)
            raise
        return booked

    def _give_back(self, booked: Sequence[tuple[Entry, int]]) -> None:
        for entry, nbytes in booked:
            self._services.ledger.give_back(entry, nbytes, mapped=False)
