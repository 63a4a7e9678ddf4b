"""What ONNX Runtime takes for values between nodes while a graph runs, and gives back when it has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from backbay import DType, Graph, Node, ops
from backbay.liveness import last_uses
from backbay.memory import Entry

if TYPE_CHECKING:
    from .backend import OnnxBackend

PAGE = 4096
COPIES_OF_SCORES = 3  # raw, with the mask, and as weights


class Workspace:
    """Books the largest of all plans' needs: graphs run one at a time. What is booked was to be had at that time."""

    def __init__(self, backend: OnnxBackend, entry: Entry) -> None:
        self._backend, self._entry = backend, entry
        self._needs: dict[int, int] = {}
        self._booked = 0

    def take(self, owner: object, nbytes: int) -> None:
        """Book what an owner's runs need; NoMemoryError where a limit refuses it, or the system does."""
        more = max(nbytes - self._booked, 0)
        holds = self._backend.params.alloc_memory and more
        self._backend.ledger.take(self._entry, more, lambda: _try(nbytes) if holds else None)
        self._booked += more
        self._needs[id(owner)] = nbytes

    def give_back(self, owner: object) -> None:
        self._needs.pop(id(owner), None)
        left = max(self._needs.values(), default=0)
        self._backend.ledger.give_back(self._entry, self._booked - left)
        self._booked = left


def _try(nbytes: int) -> None:
    """Take memory, and use every page of it: a promise alone may be broken later."""
    np.empty(nbytes, np.uint8)[::PAGE] = 0


class Needs:
    """About the most bytes that a graph needs at one time: when values begin and end is the same in all of a structure.

    Views, and values that are bound, take none.
    """

    def __init__(self, graph: Graph) -> None:
        bound = {node.storage.index for node in graph.outputs}
        ends = last_uses(graph)
        self._steps = [
            (node.index, not node.is_view and node.index not in bound, ends.get(node.index, ()))
            for node in graph.nodes
            if node.op is not None
        ]

    def of(self, graph: Graph) -> int:
        held = most = 0
        sizes: dict[int, int] = {}
        for index, takes, ended in self._steps:
            node = graph.nodes[index]
            if takes:
                held += sizes.setdefault(index, _nbytes(node))
            most = max(most, held + _within(node))
            for done in ended:
                held -= sizes.pop(done, 0)
        return most


def _nbytes(node: Node) -> int:
    """Values are computed as float32."""
    return 4 * node.size if node.dtype.is_float else node.nbytes


def _within(node: Node) -> int:
    """What a kernel of ours makes besides its result."""
    if node.op is ops.scaled_dot_product_attention:
        query, key = node.args[0], node.args[1]
        scores: int = 4 * query.dim(1) * query.dim(2) * key.dim(2)
        converted = [operand for operand in node.args[1:3] if operand.dtype is not DType.F32]
        return COPIES_OF_SCORES * scores + sum(_nbytes(operand) for operand in (query, *converted))
    looks_at_a_result = node.is_view and node.storage.op is not None  # leaves are looked at where they lie
    return _nbytes(node) if node.op is ops.mulmat_id or looks_at_a_result else 0
