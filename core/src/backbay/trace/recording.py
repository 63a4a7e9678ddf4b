"""What contexts of one graph share: its nodes, the order they run in, its plan, and who may use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from ..data.encoding import Bytes
from ..errors import (
    BackbayError,
    ClosedError,
    ContextBusyError,
    DTypeError,
    GraphSizeError,
    NotComputedError,
    UnsupportedOpError,
)
from ..ops.declaration import Op
from ..runtime.plan import Cancel, Plan
from ..types.dtypes import DType
from ..types.placement import Placement
from ..types.spec import Spec
from .leaf import Leaf
from .tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from ..backend.backend import Backend
    from ..graph.graph import Graph


@dataclass
class Counters:
    """What was done so far; two readings tell what happened between them."""

    traced_nodes: int = 0
    compilations: int = 0
    runs: int = 0
    bytes_allocated: int = 0

    def add(self, other: Counters) -> None:
        self.traced_nodes += other.traced_nodes
        self.compilations += other.compilations
        self.runs += other.runs
        self.bytes_allocated += other.bytes_allocated


class Recording:
    """The graph behind a context, while it grows and each time it is computed."""

    def __init__(self, backend: Backend, max_nodes: int) -> None:
        self.backend, self.max_nodes = backend, max_nodes
        self._limit: float = max_nodes
        self.blocked = False  # a fast check for tracing: closed, or computing
        self.closed = False
        self.counters = Counters()
        self.leaves: list[Leaf] = []
        self.batch_size: int | None = None
        self._roots: dict[Tensor, None] = {}  # in the order of forward; all of them stay readable
        self._pending: list[Tensor] = []  # the last of them, which no plan has had yet
        self._stale = False  # the plan, if any, is for another batch size
        self._graph: Graph | None = None
        self._plan: Plan | None = None
        self._results: tuple[Tensor, ...] = ()
        self._in_use = threading.Lock()

    # -- tracing -----------------------------------------------------------------------------------------

    def record(
        self,
        placement: Placement,
        op: Op[Any, Any],
        args: tuple[Any, ...],
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        offset: int,
        storage: Tensor | None,
    ) -> Tensor:
        """Add a node."""
        if self.blocked:
            self.refuse()
        self.counters.traced_nodes += 1
        if self.counters.traced_nodes > self._limit:
            raise GraphSizeError(
                f"more than the {self.max_nodes} nodes of this context; open one with max_nodes="
            )
        tensor = Tensor(dtype, shape, strides, offset)
        tensor.home, tensor.placement, tensor.op, tensor.args = self, placement, op, args
        tensor.storage, tensor.leaf = storage, None
        return tensor

    def add_leaf(self, spec: Spec, placement: Placement, row_axis: int | None) -> Tensor:
        """Add a leaf, with memory of its own unless the backend only measures."""
        self.check_usable()
        buffer = self.backend.take_leaf(spec, placement)
        leaf = Leaf(self.backend, self, spec, buffer, placement, row_axis=row_axis)
        self.leaves.append(leaf)
        if buffer is not None:
            self.counters.bytes_allocated += buffer.nbytes
        return leaf_tensor(leaf)

    def check_usable(self) -> None:
        """Raise if the context is closed, or computing."""
        if self.blocked:
            self.refuse()

    def refuse(self) -> None:
        """Raise what explains why nothing can be traced now."""
        if self.closed or self.backend.closed:
            raise ClosedError("the context is closed")
        raise ContextBusyError("the context is computing in another thread; use one context per thread")

    def admit(self, operand: Tensor) -> None:
        """Let a tensor of another context in, if it is a leaf or weight of this backend."""
        leaf = operand.leaf
        if leaf is None:
            raise DTypeError(
                f"{operand!r} belongs to another context; only leaves and weights cross: copy it into a leaf of "
                "its context, or read it and use from_floats"
            )
        if leaf.backend is not self.backend:
            raise DTypeError(f"{operand!r} belongs to another backend; read it and use from_floats")
        if leaf.closed:
            raise ClosedError(f"{operand!r} belongs to a closed context")

    def admit_ids(self, ids: Tensor, bound: int) -> None:
        """Let ids in whose values are known to stay below a bound, or are checked to from now on."""
        origin = ids.storage or ids
        if origin.leaf is not None:
            if origin.leaf.computed:
                raise DTypeError(
                    "ids must not come from a leaf that a graph writes into: nobody can check them"
                )
            origin.leaf.promise_ids(Spec(ids.dtype, ids.shape, ids.strides, ids.offset), bound)
            return
        if origin.op is None or origin.op.name not in ("top_k", "argsort"):
            source = origin.op.name if origin.op else "a weight"
            raise DTypeError(
                f"ids must be a leaf, a view of one, or come from top_k or argsort, not from {source}"
            )
        if ids.size and origin.args[0].dim(0) > bound:
            raise DTypeError(
                f"ids of {origin.op.name} reach {origin.args[0].dim(0) - 1}, but must stay below {bound}"
            )

    def admit_write(self, storage: Tensor) -> None:
        """Let an op write into a tensor, if it is a leaf whose values nobody relies on as ids."""
        if storage.leaf is None or storage.leaf.home is None:
            what = "a weight" if storage.op is None else f"what {storage.op.name} computes"
            raise DTypeError(
                f"the destination must be a leaf, or a view of one, not {what}; make one with ctx.empty"
            )
        if storage.leaf.id_uses:
            raise DTypeError("the destination serves as ids: only the host may write them, with from_ints")
        storage.leaf.computed = True

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is traced meanwhile counts for nothing: not as traced, not towards the limit."""
        traced, self._limit = self.counters.traced_nodes, inf
        try:
            yield
        finally:
            self.counters.traced_nodes, self._limit = traced, self.max_nodes

    # -- computing ---------------------------------------------------------------------------------------

    def forward(self, tensors: tuple[Tensor, ...]) -> None:
        """Fix that these run, after what was given before."""
        self.check_usable()
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise DTypeError(f"forward and compute take tensors, got {type(tensor).__name__}")
            if tensor not in self._roots:
                if tensor.home is not self:
                    self.admit(tensor)
                self._roots[tensor] = None
                self._pending.append(tensor)

    def set_batch_size(self, n: int) -> None:
        self.check_usable()
        self._stale = self._stale or n != self.batch_size
        self.batch_size = n

    def compute(self, outputs: tuple[Tensor, ...], cancel: Cancel | None) -> None:
        """Run the graph; afterwards the outputs, and only they, can be read."""
        with self._exclusive():
            given = len(self._pending)
            self.forward(outputs)
            self.backend.check_runnable()
            graph, plan = self._compiled(given)
            self._results = ()
            self.blocked = True
            try:
                self.backend.run(graph, plan, cancel)
            finally:
                self.blocked = self.closed
            self.counters.runs += 1
            self._results = outputs

    def reserve(self) -> None:
        """Compile, and so allocate, without running."""
        with self._exclusive():
            graph, _ = self._compiled(len(self._pending))
            graph.check_homes()

    def export(self, folder: Path, names: Mapping[str, Tensor]) -> Path:
        """Let the backend write the graph as a model of its engine."""
        with self._exclusive():
            self.check_usable()
            self.backend.check_runnable()
            if not self._roots:
                raise BackbayError("there is nothing to export; give the results to ctx.forward")
            graph = self._build(tuple(self._roots))
            if graph.of_weights and not self.backend.loaded:
                raise NotComputedError(f"the weights hold no data: {self.backend.why_no_data()}")
            return self.backend.export(graph, self._named(graph, names), folder)

    def _named(self, graph: Graph, names: Mapping[str, Tensor]) -> dict[int, str]:
        """Names by the place of their node."""
        leaves = {node.leaf: node.index for node in graph.nodes if node.leaf is not None}
        results = dict(zip(self._roots, (node.index for node in graph.outputs), strict=True))
        found: dict[int, str] = {}
        for name, tensor in names.items():
            place = leaves.get(tensor.leaf) if tensor.leaf is not None else results.get(tensor)
            if place is None or place in found:
                why = (
                    "has a name already" if place in found else "is neither a leaf of the graph nor a result"
                )
                raise BackbayError(f"{name!r}: {tensor!r} {why}")
            found[place] = name
        return found

    def read(self, tensor: Tensor) -> Bytes:
        """The bytes of a result of the latest compute."""
        if self.closed or self.backend.closed:
            raise ClosedError(f"{tensor!r} belongs to a closed context")
        if self._plan is None or self._graph is None or tensor not in self._results or not self._plan.valid:
            raise NotComputedError(
                f"{tensor!r} was not named by the latest compute, or its inputs were written since"
            )
        node = self._graph.outputs[list(self._roots).index(tensor)]
        if node.storage.leaf is not None and node.storage.leaf.closed:
            raise ClosedError(f"{tensor!r} is a view of a leaf of a closed context")
        return self._plan.read(node)

    def evaluate(self, tensor: Tensor) -> Bytes:
        """A tensor's value, from what its leaves hold now, beside the graph of `forward`: nothing may be written."""
        self.backend.check_runnable()
        graph = self._build((tensor,))
        writers = [node.op.name for node in graph.nodes if node.op is not None and node.op.writes is not None]
        if writers:
            raise NotComputedError(f"{tensor!r} depends on {writers[0]}, which writes; compute it first")
        plan = self.backend.compile(graph)
        try:
            self.backend.run(graph, plan, None)
            return plan.read(graph.outputs[0]).copy()
        finally:
            plan.close()

    def has_result(self, tensor: Tensor) -> bool:
        return tensor in self._results

    def forget_results(self) -> None:
        self._results = ()

    def _compiled(self, given: int) -> tuple[Graph, Plan]:
        """The plan, compiled anew only if there is more to run, or if its memory has moved.

        Where that fails, the context stays usable: the pending roots after the first `given`, which `compute` was to
        add, are dropped again, and so are those that the backend will never run.
        """
        self.check_usable()
        current = not self._stale and not self._pending
        if self._graph is not None and self._plan is not None and current and self._plan.valid:
            return self._graph, self._plan
        attempt: Callable[[tuple[Tensor, ...]], object] = self._build
        try:
            graph = self._build(tuple(self._roots))
            attempt = self._try
            self._drop_plan()  # its memory may be what the next one needs
            plan = self.backend.compile(graph)
        except BaseException as error:
            self._drop_roots(self._pending[given:])
            if isinstance(error, UnsupportedOpError):
                settled = tuple(self._roots)[: len(self._roots) - len(self._pending)]
                self._drop_roots(_refused(attempt, settled, tuple(self._pending)))
            raise
        self._keep(graph, plan)
        return graph, plan

    def _build(self, roots: tuple[Tensor, ...]) -> Graph:
        from ..graph.building import build_graph  # it opens composites, and so needs contexts

        graph = build_graph(self, roots)
        graph.check_homes()
        return graph

    def _try(self, roots: tuple[Tensor, ...]) -> None:
        """Compile for no other reason than to see whether it works."""
        self.backend.compile(self._build(roots)).close()

    def _keep(self, graph: Graph, plan: Plan) -> None:
        self._graph, self._plan, self._stale = graph, plan, False
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

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise ContextBusyError("the context is in use by another thread; use one context per thread")
        try:
            with self.backend.lock:  # compiling takes its turn like computing
                self.backend.release_dropped()
                yield
        finally:
            self._in_use.release()

    # -- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything, after a running compute. Closing again does nothing."""
        with self._in_use, self.backend.lock:
            self.release()

    def __del__(self) -> None:
        # A context that was dropped instead of closed gives its memory back all the same. The garbage collector may
        # run where this thread holds what a computing one waits for: never wait for that one here.
        if self.closed or self.backend.closed:
            return
        if self.backend.lock.acquire(blocking=False):
            try:
                self.release()
            finally:
                self.backend.lock.release()
        else:
            self.backend.dropped.append(self)

    def release(self) -> None:
        """Free everything; the caller holds the backend's lock."""
        if self.closed:
            return
        self.closed = self.blocked = True
        self._results = ()
        self._drop_plan()
        for leaf in self.leaves:
            self.backend.drop_leaf(leaf)
        self.leaves.clear()
        self._roots.clear()
        self._pending.clear()
        self.backend.forget(self)


def leaf_tensor(leaf: Leaf) -> Tensor:
    """The tensor of a leaf or weight."""
    tensor = Tensor(leaf.spec.dtype, leaf.spec.shape)
    tensor.home, tensor.placement, tensor.op, tensor.args = leaf.home, leaf.placement, None, ()
    tensor.storage, tensor.leaf = None, leaf
    return tensor


def _refused(
    attempt: Callable[[tuple[Tensor, ...]], object], before: tuple[Tensor, ...], roots: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Those of some roots that make an attempt unsupported, found by halves."""
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
    except Exception:  # noqa: BLE001, S110  such as for want of memory: another time it may work
        pass
    return ()
