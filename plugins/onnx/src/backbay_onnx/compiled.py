"""Sessions, one per structure of graphs, and which graphs they may run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from backbay import Graph
from backbay.encoding import Bytes

from .lowering import Lowered, Lowering
from .runtime import runtime, session_options, translated

if TYPE_CHECKING:
    from .backend import OnnxBackend

KEPT = 64  # structures; a model has a few
# The first merges a transpose before a cast wrongly and reads where nothing is, so that the process ends; the second
# merges a pad into a pool that then counts it otherwise, or refuses it.
DISABLED = ["MatmulTransposeFusion", "Pad_Fusion"]


class Compiled:
    """A lowered graph and its session, for every graph of the structure that its guards hold for."""

    def __init__(self, lowered: Lowered, session: Any) -> None:
        self.lowered, self.session = lowered, session

    def serves(self, graph: Graph) -> bool:
        for index, name in self.lowered.baked:
            leaf = graph.nodes[index].leaf
            if leaf is None or leaf.name != name:
                return False
        return self.lowered.guards.hold(graph)


class Sessions:
    """Compiled graphs by structure; those least recently used are dropped."""

    def __init__(self, backend: OnnxBackend) -> None:
        self._backend = backend
        self._compiled: OrderedDict[tuple[str, bool], list[Compiled]] = OrderedDict()
        self._lock = threading.Lock()
        self.created = 0

    def find(self, graph: Graph, *, prefixes: bool = True) -> Compiled:
        """The session for a graph, created if there is none yet; without prefixes, caches are bound in full."""
        with self._lock:
            key = (graph.structure_key(), prefixes)
            known = self._compiled.setdefault(key, [])
            self._compiled.move_to_end(key)
            found = next((compiled for compiled in known if compiled.serves(graph)), None)
            if found is None:
                found = self._compile(graph, prefixes)
                known.append(found)
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
            return found

    def close(self) -> None:
        self._compiled.clear()

    def _compile(self, graph: Graph, prefixes: bool) -> Compiled:
        backend = self._backend
        lowered = Lowering(graph, exact=backend.is_exact, prefixes=prefixes).lower()
        backend.weights.book_for(lowered, graph)
        session = None
        if backend.params.alloc_memory and (lowered.results or lowered.states):
            parts = [
                (file, backend.weights.packed(graph.nodes[index]).part(part))
                for file, index, part in lowered.parts
            ]
            options = session_options(backend.params.num_threads, shared=backend.shares_threads)
            session = create_session(lowered, parts, options)
            backend.weights.spill.relax()
            self.created += 1
        return Compiled(lowered, session)


def create_session(lowered: Lowered, parts: list[tuple[str, Bytes]], options: Any) -> Any:
    """A session that reads the parts of packed weights where they are."""
    with translated("creating a session"):
        if parts:
            names, data = [name for name, _ in parts], [part for _, part in parts]
            options.add_external_initializers_from_files_in_memory(
                names, data, [part.nbytes for part in data]
            )
        model = lowered.model.SerializeToString()
        return runtime().InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=DISABLED
        )
