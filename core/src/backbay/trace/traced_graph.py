"""Tracing: adding nodes and leaves to a graph, and the rules for tensors that enter it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

from ..data.encoding import Bytes
from ..data.leaf import Leaf
from ..errors import ClosedError, ContextBusyError, DTypeError, GraphSizeError
from ..ops.op_declaration import Op
from ..types.dtype import DType
from ..types.gpu_layers import Placement
from ..types.spec import Spec
from .tensor import Tensor

if TYPE_CHECKING:
    from ..backend.backend import Backend


@dataclass
class Counters:
    """Counts of work done so far; the difference of two readings is the work between them."""

    traced_nodes: int = 0
    compilations: int = 0
    runs: int = 0
    bytes_allocated: int = 0

    def add(self, other: Counters) -> None:
        self.traced_nodes += other.traced_nodes
        self.compilations += other.compilations
        self.runs += other.runs
        self.bytes_allocated += other.bytes_allocated


class TracedGraph(ABC):
    """A graph that grows: its leaves, its nodes, and the rules for tensors that enter it."""

    def __init__(self, backend: Backend, max_nodes: int) -> None:
        self.backend, self.max_nodes = backend, max_nodes
        self._limit: float = max_nodes
        self.blocked = False  # closed or computing: one fast check for tracing
        self.closed = False
        # Held by who reads or writes data: another thread may close the backend at any time.
        self.data_lock = RLock()
        self.counters = Counters()
        self.leaves: list[Leaf] = []

    @abstractmethod
    def read(self, tensor: Tensor) -> Bytes:
        """The bytes of a result of the latest compute."""

    @abstractmethod
    def evaluate(self, tensor: Tensor) -> Bytes:
        """A tensor's value, computed aside, without the roots."""

    @abstractmethod
    def has_result(self, tensor: Tensor) -> bool:
        """Whether the latest compute named a tensor."""

    @abstractmethod
    def forget_results(self) -> None:
        """Make all results unreadable."""

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
        if self.blocked:
            self.refuse()
        self.counters.traced_nodes += 1
        if self.counters.traced_nodes > self._limit:
            limit = f"the {self.max_nodes} nodes of this context"
            raise GraphSizeError(f"more than {limit}; open one with max_nodes=")
        tensor = Tensor(dtype, shape, strides, offset)
        tensor.home, tensor.placement, tensor.op, tensor.args = self, placement, op, args
        tensor.storage, tensor.leaf = storage, None
        return tensor

    def add_leaf(self, spec: Spec, placement: Placement, row_axis: int | None) -> Tensor:
        """Add a leaf, and allocate its memory, unless the backend only measures."""
        with self.data_lock:
            self.check_usable()
            buffer = self.backend.take_leaf(spec, placement)
            leaf = Leaf(self.backend, self, spec, buffer, placement, row_axis=row_axis)
            self.leaves.append(leaf)
        if buffer is not None:
            self.counters.bytes_allocated += buffer.nbytes
        return leaf_tensor(leaf, self)

    def check_usable(self) -> None:
        """Raise ClosedError or ContextBusyError if the context is closed, or computing."""
        if self.blocked:
            self.refuse()

    def refuse(self) -> NoReturn:
        if self.closed or self.backend.closed:
            raise ClosedError(f"the context is closed{self.backend.closed_because}")
        raise ContextBusyError("the context is computing in another thread; use one context per thread")

    def admit(self, operand: Tensor) -> None:
        """Accept a tensor of another context if it is a leaf or weight of this backend, else raise."""
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
        """Accept ids. Their values are known to stay below a bound, or are checked at every write from now on."""
        origin = ids.storage or ids
        if origin.leaf is not None:
            if origin.leaf.computed:
                why = "such ids cannot be checked"
                raise DTypeError(f"ids must not come from a leaf that a graph writes into: {why}")
            origin.leaf.promise_ids(Spec(ids.dtype, ids.shape, ids.strides, ids.offset), bound)
            return
        if origin.op is None or origin.op.name not in ("top_k", "argsort"):
            rule = "ids must be a leaf, a view of one, or come from top_k or argsort"
            raise DTypeError(f"{rule}, not from {origin.op.name if origin.op else 'a weight'}")
        largest = origin.args[0].dim(0) - 1
        if ids.size and largest >= bound:
            raise DTypeError(f"ids of {origin.op.name} reach {largest}, but must stay below {bound}")

    def admit_write(self, storage: Tensor) -> None:
        """Accept a tensor as destination of a write, if it is a leaf that does not serve as ids, else raise."""
        if storage.leaf is None or storage.leaf.home is None:
            what = "a weight" if storage.op is None else f"what {storage.op.name} computes"
            rule = "the destination must be a leaf, or a view of one"
            raise DTypeError(f"{rule}, not {what}; make one with ctx.empty")
        if storage.leaf.id_uses:
            raise DTypeError("the destination serves as ids: only the host may write them, with from_ints")
        storage.leaf.computed = True

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Nodes traced in this block are not counted, and do not count towards the limit."""
        traced, self._limit = self.counters.traced_nodes, inf
        try:
            yield
        finally:
            self.counters.traced_nodes, self._limit = traced, self.max_nodes


def leaf_tensor(leaf: Leaf, home: TracedGraph | None) -> Tensor:
    """The tensor of a leaf, or of a weight, whose home is None."""
    tensor = Tensor(leaf.spec.dtype, leaf.spec.shape)
    tensor.home, tensor.placement, tensor.op, tensor.args = home, leaf.placement, None, ()
    tensor.storage, tensor.leaf = None, leaf
    return tensor
