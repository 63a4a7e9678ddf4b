"""Several rows for one place: threads, or the cores of a GPU, write them at once, and may leave a mix of them.

A plan over several devices has a twin, which first makes rows of the same id equal; runs whose ids repeat take it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from backbay import Graph, Node, Plan, ops
from backbay.internals import Array, Bytes, Timings, numpy_view
from backbay.plugin import Cancel, gather


def ids_of_several_rows(graph: Graph) -> list[Node]:
    """The ids by which a graph writes more than one row, each once."""
    ids = [node.args[2] for node in graph.nodes if node.op is ops.set_rows]
    found = {
        node.index: node for node in ids if isinstance(node, Node) and node.shape[0] > 1 and all(node.shape)
    }
    return list(found.values())


def are_known(ids: Node) -> bool:
    """Whether ids are there before a run: the graph does not find them itself."""
    return ids.storage.leaf is not None


def may_repeat(ids: Node) -> bool:
    """Whether an id repeats, or is found by the graph itself."""
    if not are_known(ids):
        return True
    numbers = np.sort(_numbers(ids), -1)
    return bool((numbers[..., 1:] == numbers[..., :-1]).any())


def last_of_same(ids: Node, slices: tuple[int, int]) -> Array:
    """For each id the position of the last one that is equal, for so many slices of rows, in the order of NumPy."""
    numbers = _numbers(ids)
    found = np.empty(numbers.shape, np.int32)
    for place in np.ndindex(numbers.shape[:-1]):
        _, first, of_each = np.unique(numbers[place][::-1], return_index=True, return_inverse=True)
        found[place] = numbers.shape[-1] - 1 - first[of_each][::-1]
    return np.tile(found, (slices[0] // ids.dim(2), slices[1] // ids.dim(1), 1))


def _numbers(ids: Node) -> Array:
    assert ids.storage.leaf is not None
    assert ids.storage.leaf.buffer is not None
    return numpy_view(gather(ids.storage.leaf.buffer.read(), ids), ids.dtype).reshape(
        ids.dim(2), ids.dim(1), -1
    )


@final
class TwinPlan(Plan):
    """A plan, and its twin for runs whose ids repeat, which is made when the first of them comes."""

    def __init__(self, ids: Sequence[Node], usual: Plan, make_twin: Callable[[], Plan]) -> None:
        self._ids, self._usual, self._make_twin = ids, usual, make_twin
        self._twin: Plan | None = None
        self._latest = usual
        self.nbytes = usual.nbytes

    def run(self, cancel: Cancel | None) -> None:
        self._chosen().run(cancel)

    def profile(self, cancel: Cancel | None) -> Timings:
        return self._chosen().profile(cancel)

    def read(self, node: Node) -> Bytes:
        return self._latest.read(node)

    def close(self) -> None:
        self._usual.close()
        if self._twin is not None:
            self._twin.close()

    def report(self) -> list[str]:
        return self._latest.report()

    def _chosen(self) -> Plan:
        self._latest = self._usual
        if any(map(may_repeat, self._ids)):
            if self._twin is None:
                self._twin = self._make_twin()
                self.nbytes += self._twin.nbytes
            self._latest = self._twin
        return self._latest
