"""Windows of caches: bound to the rows that a graph reads, a read is a reshape and copies nothing."""

from __future__ import annotations

from dataclasses import dataclass

from backbay import Graph, Node, ops
from backbay.internals import Size

from .emitter import Emitter
from .views import window_rows


@dataclass(frozen=True)
class Window:
    """`rows` rows of a state from `first` on, and the ids of its writes; each run checks that the ids fall inside."""

    first: Size
    rows: Size
    ids: tuple[Node, ...]


def find_window(b: Emitter, graph: Graph, state: Node, width: Size) -> Window | None:
    """The window of all reads and writes of a state whose `row_axis` is its outermost dimension; None if there is none."""
    leaf = state.leaf
    if leaf is None or leaf.row_axis is None or leaf.row_axis != state.rank - 1:
        return None
    ids: list[Node] = []
    reads: list[Node] = []
    for node in graph.nodes:
        if node.op is None or node.op.view:
            continue
        written = node.args[node.op.writes] if node.op.writes is not None else None
        operands = [operand for operand in node.operands if operand.storage is state]
        if written is not None and written.storage is state:
            if (
                node.op is not ops.set_rows
                or not _takes_rows(b, written, width)
                or not is_checked(node.args[2])
            ):
                return None
            ids.append(node.args[2])
            operands.remove(written)  # once: the op may read it as well
        reads += operands
    return _common(b, reads, width, ids)


def _common(b: Emitter, reads: list[Node], width: Size, ids: list[Node]) -> Window | None:
    """All reads must see the same rows."""
    found = [window_rows(b, read, width) for read in dict.fromkeys(reads)]
    if not found or found[0] is None:
        return None
    first, rows = found[0]
    for other in found[1:]:
        if other is None or not (other[0].same(first) and other[1].same(rows)):
            return None
    return Window(first, rows, tuple(dict.fromkeys(ids)))


def _takes_rows(b: Emitter, target: Node, width: Size) -> bool:
    """Whether ids are numbers of bound rows."""
    symbols = b.symbols
    return (
        target.rank == 2
        and width == symbols.dim(target, 0)
        and symbols.offset(target).same(0)
        and symbols.stride(target, 1).same(width * target.dtype.type_size)
    )


def is_checked(ids: Node) -> bool:
    """Whether the host knows the ids before a run."""
    return ids.storage.leaf is not None and not ids.storage.leaf.computed
