"""The state behind a context: its roots, its compiled plan, its results, and its turns among threads.

A context, and all contexts of its backend, serve one thread at a time. Ctrl-C may come after any call, and must not leave
a lock held. `with lock:` is safe, as no signal is handled between its steps; `lock.acquire()`, and an `__enter__` written
in Python, are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from threading import Lock, RLock
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..data.encoding import Bytes
from ..errors import (
    BackbayError,
    ClosedError,
    ContextBusyError,
    DTypeError,
    NotComputedError,
    RefusalError,
    UnsupportedOpError,
)
from ..graph.graph import Cancel, Graph, Plan, require_cancel
from ..memory.host_memory import raise_if_starved
from .tensor import Tensor
from .traced_graph import TracedGraph

if TYPE_CHECKING:
    from pathlib import Path

    from ..backend.backend import Backend

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_MAX_NODES = 8192
Roots = tuple[Tensor, ...]


def with_locks(step: Callable[Concatenate[Recording, P], T]) -> Callable[Concatenate[Recording, P], T]:
    """Let a method, such as compute, hold the locks of its context and of the backend."""

    @wraps(step)
    def locked(recording: Recording, /, *args: P.args, **keywords: P.kwargs) -> T:
        if recording.in_use.locked():
            raise ContextBusyError("the context is in use by another thread; use one context per thread")
        backend = recording.backend
        with recording.in_use, backend.lock:
            backend.busy += 1
            try:
                if backend.dropped:
                    backend.release_dropped()
                recording.check_usable()
                return step(recording, *args, **keywords)
            except (OSError, ImportError, RuntimeError) as error:
                raise_if_starved(error, f"backend {backend.name}")
                raise
            finally:
                backend.busy -= 1

    return locked


def run_if_free(lock: Lock | RLock, step: Callable[[], object]) -> bool:
    """Run a step with a lock; do nothing, and return False, if the lock is held."""
    acquired: list[bool] = []
    try:
        # One call, before or after which a signal is handled: so `acquired` always tells the truth.
        acquired.extend(map(lock.acquire, (False,)))
        if acquired[0]:
            step()
        return acquired[0]
    finally:
        if True in acquired:
            lock.release()


class Recording(TracedGraph):
    """A traced graph, with its plan and the results of its latest compute."""

    def __init__(self, backend: Backend, max_nodes: int) -> None:
        super().__init__(backend, max_nodes)
        self.batch_size: int | None = None
        self._roots: dict[Tensor, None] = {}  # in order of their forward; all are outputs of the graph
        self._pending: list[Tensor] = []  # the last roots, which are not in the plan yet
        self._stale = False  # the plan was compiled for another batch size, or for a profile
        self._graph: Graph | None = None
        self._plan: Plan | None = None
        self._results: Roots = ()
        self.in_use = Lock()

    def forward(self, tensors: Roots) -> None:
        self.check_usable()
        self._add_roots(tensors)

    def _add_roots(self, tensors: Roots) -> None:
        """Add all tensors, or none of them."""
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise DTypeError(f"forward and compute take tensors, got {type(tensor).__name__}")
            if tensor.home is not self:
                self.admit(tensor)
        for tensor in tensors:
            if tensor not in self._roots:
                self._roots[tensor] = None
                self._pending.append(tensor)

    def set_batch_size(self, n: int) -> None:
        self.check_usable()
        self._stale = self._stale or n != self.batch_size
        self.batch_size = n

    def recompile(self) -> None:
        """Let the next compute compile the graph anew."""
        self._stale = True

    @with_locks
    def compute(self, outputs: Roots, cancel: Cancel | None) -> None:
        require_cancel(cancel)
        self.backend.check_allocates()
        given = len(self._pending)
        self._add_roots(outputs)
        graph, plan = self._compiled(given)
        self._results = ()
        self._run(graph, plan, cancel)
        self.counters.runs += 1
        self._results = outputs

    def _run(self, graph: Graph, plan: Plan, cancel: Cancel | None) -> None:
        """Run a plan; meanwhile no thread can trace here, or write a leaf of this context."""
        with self.data_lock:
            self.blocked = True
        try:
            self.backend.run(graph, plan, cancel)
        finally:
            self.blocked = self.closed

    @with_locks
    def reserve(self) -> None:
        graph, _ = self._compiled(len(self._pending))
        graph.check_homes()

    @with_locks
    def export(self, folder: Path, names: Mapping[str, Tensor]) -> Path:
        self.backend.check_allocates()
        if not self._roots:
            raise BackbayError("there is nothing to export; give the results to ctx.forward")
        graph = self._build(tuple(self._roots))
        if graph.of_weights and not self.backend.loaded:
            raise NotComputedError(f"the weights hold no data: {self.backend.why_no_data()}")
        return self.backend.export(graph, self._named(graph, names), folder)

    def _named(self, graph: Graph, names: Mapping[str, Tensor]) -> dict[int, str]:
        leaves = {node.leaf: node.index for node in graph.nodes if node.leaf is not None}
        results = dict(zip(self._roots, (node.index for node in graph.outputs), strict=True))
        found: dict[int, str] = {}
        for name, tensor in names.items():
            place = leaves.get(tensor.leaf) if tensor.leaf is not None else results.get(tensor)
            if place is None or place in found:
                unknown = "is neither a leaf of the graph nor a result"
                why = "has a name already" if place in found else unknown
                raise BackbayError(f"{name!r}: {tensor!r} {why}")
            found[place] = name
        return found

    def read(self, tensor: Tensor) -> Bytes:
        if self.closed or self.backend.closed:
            raise ClosedError(f"{tensor!r} belongs to a closed context{self.backend.closed_because}")
        if self._plan is None or self._graph is None or tensor not in self._results or not self._plan.valid:
            why = "was not named by the latest compute, or its inputs were written since"
            raise NotComputedError(f"{tensor!r} {why}")
        node = self._graph.outputs[list(self._roots).index(tensor)]
        leaf = node.storage.leaf
        if leaf is not None and leaf.closed:
            raise ClosedError(f"{tensor!r} is a view of a leaf of a closed context")
        if leaf is not None and leaf.home is None:
            self.backend.check_file()
        return self._plan.read(node)

    @with_locks
    def evaluate(self, tensor: Tensor) -> Bytes:
        """A tensor's value from the current data of its leaves, computed aside, without the roots; no op may write."""
        self.backend.check_allocates()
        graph = self._build((tensor,))
        writers = [node.op.name for node in graph.nodes if node.op is not None and node.op.writes is not None]
        if writers:
            raise NotComputedError(f"{tensor!r} depends on {writers[0]}, which writes; compute it first")
        graph, plan = self._planned(graph, (tensor,))
        try:
            self._run(graph, plan, None)
            return plan.read(graph.outputs[0]).copy()
        finally:
            plan.close()

    def has_result(self, tensor: Tensor) -> bool:
        return tensor in self._results and self._plan is not None and self._plan.valid

    def forget_results(self) -> None:
        self._results = ()

    def _compiled(self, given: int) -> tuple[Graph, Plan]:
        """The graph and its plan, compiled only if there are new roots, another batch size, or moved memory.

        After an error the context stays usable: the pending roots after the first `given`, which the failed `compute`
        added, are dropped, and so are roots that the backend does not support.
        """
        current = not self._stale and not self._pending
        if self._graph is not None and self._plan is not None and current and self._plan.valid:
            return self._graph, self._plan
        attempt: Callable[[Roots], object] = self._build
        try:
            graph = self._build(tuple(self._roots))
            attempt = self._try
            self._drop_plan()  # first, as the next plan may need its memory
            graph, self._plan = self._planned(graph, tuple(self._roots))
        except BaseException as error:
            self._drop_roots(self._pending[given:])
            if isinstance(error, UnsupportedOpError):
                compiled = tuple(self._roots)[: len(self._roots) - len(self._pending)]
                self._drop_roots(_refused(attempt, compiled, tuple(self._pending)))
            raise
        self._keep(graph, self._plan)
        return graph, self._plan

    def _build(self, roots: Roots) -> Graph:
        graph = self.backend._build(self, roots)
        graph.check_homes()
        return graph

    def _planned(self, graph: Graph, roots: Roots) -> tuple[Graph, Plan]:
        """The plan of a graph, or of the same roots with composites in the place of ops that the backend refuses."""
        while True:
            try:
                return graph, self.backend.compiled(graph)
            except RefusalError as refusal:
                if not self.backend.composes(refusal):
                    raise
            graph = self._build(roots)

    def _try(self, roots: Roots) -> None:
        """Compile only to see whether it works."""
        self._planned(self._build(roots), roots)[1].close()

    def _keep(self, graph: Graph, plan: Plan) -> None:
        self._graph, self._stale = graph, False
        self._pending.clear()
        for node in graph.nodes:
            if node.leaf is not None:
                node.leaf.used = True
        self.counters.compilations += 1
        if self.backend.params.alloc_memory:
            self.counters.bytes_allocated += plan.nbytes

    def _drop_roots(self, dropped: Iterable[Tensor]) -> None:
        for root in dropped:
            del self._roots[root]
            self._pending.remove(root)

    def _drop_plan(self) -> None:
        if self._plan is not None:
            self._plan.close()
        self._plan = self._graph = None
        self._results = ()

    def close(self) -> None:
        with self.in_use, self.backend.lock:
            self.release()

    def after_fork(self) -> None:
        """Close without freeing, in a forked child."""
        self.closed = self.blocked = True
        self.in_use, self.data_lock = Lock(), RLock()

    def __del__(self) -> None:
        # A context that was dropped, not closed, also frees its memory. The garbage collector may run in any thread, and
        # in the midst of a compile: never wait for the backend's lock here, and free nothing while a context uses it.
        if self.closed or self.backend.closed:
            return
        run_if_free(self.backend.lock, lambda: None if self.backend.busy else self.release())
        if not self.closed:
            self.backend.dropped.append(self)

    def release(self) -> None:
        """Free everything; the caller holds the backend's lock."""
        if self.closed:
            return
        with self.data_lock:  # after this, no thread reads or writes data
            self.closed = self.blocked = True
        self._results = ()
        self._drop_plan()
        for leaf in self.leaves:
            self.backend.drop_leaf(leaf)
        self.leaves.clear()
        self._roots.clear()
        self._pending.clear()
        self.backend.forget(self)


def _refused(attempt: Callable[[Roots], object], before: Roots, roots: Roots) -> Roots:
    """The roots because of which `attempt` raises UnsupportedOpError, found by bisection."""
    try:
        if roots:
            attempt((*before, *roots))
    except UnsupportedOpError:
        if len(roots) == 1:
            return roots
        half = len(roots) // 2
        first = _refused(attempt, before, roots[:half])
        kept = tuple([root for root in roots[:half] if root not in first])
        return first + _refused(attempt, (*before, *kept), roots[half:])
    except Exception:  # noqa: BLE001, S110  such as lack of memory: another time it may work
        pass
    return ()
