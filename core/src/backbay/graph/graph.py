"""The checked graph that a backend compiles, and the interface of its plan: runs, their times, and their cancellation."""

from __future__ import annotations

import _thread
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..data.encoding import Bytes
from ..data.leaf import Leaf, LeafRecording
from ..errors import CancelledError, ClosedError, OptionError
from ..ops.op_declaration import Op
from ..types.dtype import DType
from ..types.fork_safety import InterruptSafeEvent, cached_property
from ..types.gpu_layers import Placement
from ..types.spec import Spec

NodeKind = Literal["op", "parameter", "state", "input"]
"""op; parameter: a weight; state: a leaf that a graph writes, or of another context; input: any other leaf."""


class TracedTensor(Protocol):
    """The fields of a traced tensor that a node takes over."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    offset: int
    op: Op[Any, Any] | None
    leaf: Leaf | None
    placement: Placement


class Node(Spec):
    """A leaf, a weight, or an op on earlier nodes of the graph."""

    __slots__ = ("args", "index", "kind", "leaf", "op", "placement", "storage")

    def __init__(
        self, index: int, kind: NodeKind, tensor: TracedTensor, args: tuple[Any, ...], storage: Node | None
    ) -> None:
        super().__init__(tensor.dtype, tensor.shape, tensor.strides, tensor.offset)
        self.index = index
        self.kind: NodeKind = kind
        self.op = tensor.op
        self.args = args  # in the op's declared order; operands are nodes
        self.leaf: Leaf | None = tensor.leaf
        self.placement: Placement = tensor.placement
        self.storage: Node = storage or self  # the node that holds the bytes of a view or alias

    @property
    def is_view(self) -> bool:
        """Whether the node is a view or an alias, without data of its own."""
        return self.storage is not self

    @property
    def operands(self) -> list[Node]:
        """The nodes that it reads or writes, without absent operands."""
        return list(self.op.flat_operands(self.args)) if self.op else []


@dataclass(frozen=True)
class Graph:
    """The nodes in their order of execution, and the outputs, whose values must stay readable."""

    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    batch_size: int | None

    def of_kind(self, kind: NodeKind) -> list[Node]:
        return [node for node in self.nodes if node.kind == kind]

    @cached_property
    def of_weights(self) -> bool:
        """Whether the graph reads a weight."""
        return any(node.kind == "parameter" for node in self.nodes)

    @cached_property
    def homes(self) -> set[LeafRecording]:
        """The recordings that the leaves belong to."""
        return {node.leaf.home for node in self.nodes if node.leaf and node.leaf.home}

    def check_homes(self) -> None:
        """Raise ClosedError if a leaf's context is closed, so that its memory is freed."""
        for home in self.homes:
            if home.closed:
                raise ClosedError("a leaf of this graph belongs to a closed context")

    @cached_property
    def id_leaves(self) -> list[Leaf]:
        """The leaves whose values are ids."""
        return [node.leaf for node in self.nodes if node.leaf and node.leaf.id_uses]

    def structure_key(self) -> str:
        """A hash of all that a compiled graph depends on except sizes: graphs that differ only in sizes share it."""
        return _hash(f"{';'.join(map(_structure, self.nodes))} {[node.index for node in self.outputs]}")

    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """The size attributes, in node order, then in declaration order; equal structure keys mean equal layouts."""
        return tuple(size for node in self.nodes for _, size in size_attributes(node))

    def shape_key(self) -> str:
        """A hash of all that a compiled graph depends on: the structure, the size attributes, the leaves' shapes."""
        leaves = [node.shape for node in self.nodes if node.op is None]
        return _hash(f"{self.structure_key()} {self.sizes()} {leaves}")


def _hash(described: str) -> str:
    from hashlib import blake2b  # takes longer to import than most of core

    return blake2b(described.encode(), digest_size=16).hexdigest()


def size_attributes(node: Node) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The position and value of each size attribute; a single integer becomes a tuple."""
    if node.op is not None:
        for position in node.op.sizes:
            value = node.args[position]
            yield position, value if isinstance(value, tuple) else (value,)


def _structure(node: Node) -> str:
    op = node.op
    if op is None:
        fixed = node.shape if node.kind == "parameter" else node.rank
        return f"{node.kind} {node.dtype:d} {fixed} {node.leaf and node.leaf.row_axis}"
    args = [_attribute(value) for value in node.args]
    for position, size in size_attributes(node):
        args[position] = str(len(size))
    return f"{op.name}({','.join(args)}) {node.dtype:d} {len(node.shape)}"


def _attribute(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.index}"
    return f"[{','.join(map(_attribute, value))}]" if isinstance(value, tuple) else repr(value)


def assign_slots(graph: Graph) -> tuple[dict[int, int], list[int]]:
    """The slot of each node that has its own data, and the bytes of each slot; nodes in one slot share memory."""
    last = last_uses(graph)
    slots: dict[int, int] = {}
    sizes: list[int] = []
    free: list[int] = []
    for node in graph.nodes:
        if node.op is not None and not node.is_view:
            slots[node.index] = _take(free, sizes, node.nbytes)
        free.extend(slots[done] for done in last.get(node.index, ()))
    return slots, sizes


def last_uses(graph: Graph) -> dict[int, list[int]]:
    """For each node, the nodes whose data are last used by it. Outputs stay in use for ever."""
    kept = {node.storage.index for node in graph.outputs}
    last: dict[int, int] = {}
    for node in graph.nodes:
        for used in (node, *node.operands):
            if used.storage.op is not None and used.storage.index not in kept:
                last[used.storage.index] = node.index
    ends: dict[int, list[int]] = {}
    for index, end in last.items():
        ends.setdefault(end, []).append(index)
    return ends


def _take(free: list[int], sizes: list[int], nbytes: int) -> int:
    """Take the smallest free slot that fits; if none fits, enlarge the largest; if none is free, add a slot."""
    if not free:
        sizes.append(nbytes)
        return len(sizes) - 1
    fitting = [slot for slot in free if sizes[slot] >= nbytes]
    slot = min(fitting, key=sizes.__getitem__) if fitting else max(free, key=sizes.__getitem__)
    free.remove(slot)
    sizes[slot] = max(sizes[slot], nbytes)
    return slot


class Cancel(Protocol):
    """A flag that asks a load or a compute to stop, such as a threading.Event."""

    def is_set(self) -> bool: ...


@contextmanager
def stop_when_cancelled(
    cancel: Cancel | None, stop: Callable[[], object], poll: float = 0.002
) -> Iterator[None]:
    """While a library runs, check `cancel` every `poll` seconds in another thread; if it is set, call `stop` once."""
    if cancel is None:
        yield
        return
    done, deciding = InterruptSafeEvent(), threading.Lock()

    def watch() -> None:
        while not done.wait(poll):
            if cancel.is_set():
                with deciding:
                    if not done.is_set():
                        stop()
                return

    # Thread.start waits for ever for a thread that finds no memory to begin (until Python 3.13).
    _thread.start_new_thread(watch, ())
    try:
        yield
    finally:
        with deciding:
            done.set()


def require_cancel(cancel: object) -> None:
    """Raise unless an argument `cancel` is None or a flag."""
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise OptionError(f"cancel must have a method is_set, such as a threading.Event has, got {cancel!r}")


def check_cancel(cancel: Cancel | None) -> None:
    if cancel is not None and cancel.is_set():
        raise CancelledError


@dataclass(frozen=True)
class Timing:
    """The time that one node of a graph took, or several that ran as one.

    `nodes` are indices in `graph.nodes`; without any, the time is of the backend's own work, such as copies between
    devices.
    """

    nodes: tuple[int, ...]
    seconds: float
    device: str
    """The id of the device that it ran on."""


Timings = Callable[[], Sequence[Timing]]
"""Tells the times of a run that was profiled."""


class Plan(ABC):
    """A compiled graph with its memory, which can run many times. The backend books the memory in its ledger."""

    nbytes: int
    """The bytes of compute memory that this plan holds, or would hold if the backend only measures."""

    @property
    def valid(self) -> bool:
        """False after another compile moved memory that this plan shares; core then compiles the graph again."""
        return True

    @abstractmethod
    def run(self, cancel: Cancel | None) -> None:
        """Run every node in order. Check `cancel` at least between nodes; if it is set, raise CancelledError.

        A cancelled run has no effect on the next run, except for its writes into leaves.
        """

    def profile(self, cancel: Cancel | None) -> Timings:
        """Run as `run` does, with the same results, and take the time of each node.

        The function that is returned tells the times. It is called once, when no more runs are to be profiled, perhaps
        after `close`. Times of one run do not overlap: their sum is at most the time of the run. Without any, the
        backend tells the times of whole runs only, which is the default.
        """
        self.run(cancel)
        return tuple

    @abstractmethod
    def read(self, node: Node) -> Bytes:
        """The bytes of an output of the latest run, in logical order; the caller must not change or keep them."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory; called once."""

    def report(self) -> list[str]:
        """The device of each node, a line per node, for people."""
        return []
