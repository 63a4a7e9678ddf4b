"""Whether a graph may write a row twice: ggml's threads would write it at once, and leave a mix of both sources."""

from __future__ import annotations

from typing import final

import numpy as np

from backbay import Graph, Node, ops
from backbay.internals import numpy_view
from backbay.plugin import gather


@final
class RepeatedRows:
    """The ids of a graph's writes into rows, and whether one repeats."""

    def __init__(self, graph: Graph) -> None:
        ids = [node.args[2] for node in graph.nodes if node.op is ops.set_rows]
        several = {node.index: node for node in ids if isinstance(node, Node) and node.shape[0] > 1}
        self._ids = list(several.values())

    @property
    def written(self) -> bool:
        """Whether the graph writes several rows by ids at all."""
        return bool(self._ids)

    def may_come(self) -> bool:
        """Whether an id repeats, or is found by the graph itself and may repeat."""
        return any(map(_repeats, self._ids))


def _repeats(ids: Node) -> bool:
    leaf = ids.storage.leaf
    if leaf is None or leaf.buffer is None:
        return True
    numbers = np.sort(numpy_view(gather(leaf.buffer.read(), ids), ids.dtype).reshape(-1, ids.shape[0]))
    return bool((numbers[:, 1:] == numbers[:, :-1]).any())
