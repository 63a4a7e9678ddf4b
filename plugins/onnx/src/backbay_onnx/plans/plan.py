"""A graph ready to run: the session of its structure, and its own memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backbay import Graph, Node, Plan
from backbay.internals import Bytes, Timings, keep_blocks
from backbay.plugin import CPU, GRAPH, Cancel, Entry, Timing, check_cancel, gather, stop_when_cancelled

from ..session.runtime import load_runtime, translate_errors
from ..session.session import RETURN, uses_arena
from .bound_graph import BoundGraph, bound_nbytes, leaf_bytes, lies_there
from .session_cache import OnnxPlanResources, SessionCache

LITTLE = 1 << 20  # bytes of working memory: a graph that needs no more keeps freed blocks
SMALL = 4  # times its working memory: a graph that needs a quarter of the largest one, or less, keeps freed blocks


class OnnxPlan(Plan):
    """Books the memory of a graph and runs it; `usual` runs may bind caches in part, and write no row twice on a GPU."""

    def __init__(
        self,
        services: OnnxPlanResources,
        sessions: SessionCache,
        graph: Graph,
        *,
        usual: bool = True,
        profiled: bool = False,
    ) -> None:
        self._services, self._sessions, self._graph = services, sessions, graph
        self._profiled, self._number = profiled, 0  # the number of the latest run in the log of the session
        self._compiled = compiled = sessions.find(graph, usual=usual, profiled=profiled)
        lowered = compiled.lowered
        self._feeds, self._sizes = lowered.feeds.of(graph), lowered.sizes_of(graph)
        self.nbytes, self._beside = self._nbytes(), self._nbytes_beside()
        self._bound: BoundGraph | None = None  # None where nothing is to be run
        self._whole: OnnxPlan | None = None  # for runs whose writes do not fit
        self._ran: OnnxPlan | None = None  # in the latest run; not when closed: what holds itself stays
        self._on_device = Entry(services.device.id, "graph")
        self._book()
        works = {id: peak.of(graph) for id, peak in compiled.peaks.items()}
        self._work = max(works.values())
        compiled.users += 1
        try:
            for id, work in works.items():
                services.workspaces[id].take(self, work)
        except BaseException:
            self.close()
            raise

    def profile(self, cancel: Cancel | None) -> Timings:
        self.run(cancel)
        return tuple if self._ran is None else self._ran._timings()

    def run(self, cancel: Cancel | None) -> None:
        check_cancel(cancel)
        if self._bound is None:
            return
        if not self._bound.writes_fit():
            self._run_whole(cancel)
            return
        self._ran = self
        events = self._compiled.events
        self._number = events.count_run() if events is not None else 0
        device = self._services.device
        largest = max(workspace.booked for workspace in self._services.workspaces.values())
        keeps = self._work <= LITTLE or SMALL * self._work <= largest
        arena = uses_arena(device)
        if not arena:
            keep_blocks(keeps=keeps)
        run_options = cancellable_run_options(cancel, returns=arena and not keeps)
        with translate_errors("running a graph"), device.alone(), run_options as options:
            self._bound.run(options)
        check_cancel(cancel)  # a GPU may have got all of its work before
        self._bound.put()
        if self._services.params.debug.guard_bytes:
            self._bound.check_guards()

    def read(self, node: Node) -> Bytes:
        storage, bound = node.storage, None if self._ran is None else self._ran._bound
        buffer = bound.results.get(storage.index) if bound is not None else None
        data = buffer.data if buffer is not None else leaf_bytes(self._graph, storage.index)
        return gather(data, node)

    def close(self) -> None:
        self._ran = None
        if self._whole is not None:
            self._whole.close()
            self._whole = None
        try:
            if self._bound is not None:
                with self._services.device.alone():
                    self._bound.close()
                    self._bound = None
        finally:
            self._services.ledger.give_back(GRAPH, self.nbytes)
            self._services.ledger.give_back(self._on_device, self._beside)
            for workspace in self._services.workspaces.values():
                workspace.give_back(self)
            self._compiled.users -= 1

    def report(self) -> list[str]:
        layers = self._services.layers
        return [
            f"{CPU if layers.runs_on_cpu(node) else layers.device.id} {node.op.name} {node}"
            for node in self._graph.nodes
            if node.op is not None
        ]

    def _timings(self) -> Timings:
        """Tells the times of the latest run, also after `close`."""
        compiled, number, device = self._compiled, self._number, self._services.device
        events, owners = compiled.events, compiled.lowered.owners

        def tell() -> list[Timing]:
            found = events.times(compiled.session, number) if events is not None else []
            return [
                Timing(
                    (owners[time.name],) if time.name in owners else (),
                    time.seconds,
                    device.id if time.provider == device.provider.name else CPU,
                )
                for time in found
            ]

        return tell

    def _run_whole(self, cancel: Cancel | None) -> None:
        """Run a model that any writes fit; it is made when it is first needed."""
        if self._whole is None:
            self._whole = OnnxPlan(
                self._services, self._sessions, self._graph, usual=False, profiled=self._profiled
            )
        self._whole.run(cancel)
        self._ran = self._whole

    def _book(self) -> None:
        """Book the memory of the graph, and take it."""
        ledger = self._services.ledger
        ledger.take(self._on_device, self._beside, lambda: None)
        try:
            ledger.take(GRAPH, self.nbytes, self._allocate)
        except BaseException:
            ledger.give_back(self._on_device, self._beside)
            raise

    def _allocate(self) -> None:
        services = self._services
        if services.params.alloc_memory and self._compiled.session is not None:
            with services.device.alone():
                self._bound = BoundGraph(services, self._graph, self._compiled, self._feeds, self._sizes)

    def _nbytes(self) -> int:
        """Bytes of all that is bound beside leaves and weights."""
        nodes, leaves = self._graph.nodes, self._compiled.lowered.leaves
        floats = [nodes[leaf.index] for leaf in leaves if leaf.form == "floats"]
        decoded = sum(4 * node.size for node in floats if node.kind != "parameter")
        return self._feeds.nbytes + self._nbytes_filled() + decoded

    def _nbytes_beside(self) -> int:
        """Bytes on the device of what lies on the host, where runs are recorded."""
        compiled, nodes = self._compiled, self._graph.nodes
        if compiled.numbers is None:
            return 0
        nbytes = self._nbytes_filled()
        nbytes += sum(array.nbytes for name, array in self._feeds.arrays.items() if name in compiled.there)
        for leaf in compiled.lowered.leaves:
            node = nodes[leaf.index]
            resident = node.kind == "parameter" and self._services.layers.is_resident(node)
            if leaf.name in compiled.there and not (resident or lies_there(node)):
                nbytes += 4 * node.size if leaf.form == "floats" else node.nbytes
        return nbytes

    def _nbytes_filled(self) -> int:
        """Bytes that a run fills, but for states in place."""
        graph, lowered, sizes = self._graph, self._compiled.lowered, self._sizes
        nbytes = sum(graph.nodes[index].nbytes for _, index in lowered.results)
        nbytes += sum(bound_nbytes(state, graph, sizes) for state in lowered.states if not state.in_place)
        return nbytes + sum(
            bound_nbytes(rows, graph, sizes) + 8 * sizes[rows.shape[1]] for rows in lowered.rows
        )


@contextmanager
def cancellable_run_options(cancel: Cancel | None, *, returns: bool = False) -> Iterator[Any]:
    """Options of a run that ends once `cancel` is set, and that returns free memory if it is to; None where neither is so."""
    options: Any = None if cancel is None and not returns else load_runtime().RunOptions()
    if returns:
        options.add_run_config_entry(*RETURN)
    with stop_when_cancelled(cancel, lambda: setattr(options, "terminate", True)):
        yield options
