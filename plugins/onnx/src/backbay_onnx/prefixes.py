"""Caches that are bound only as far as a graph reads them: then a read is a reshape, and copies nothing."""

from __future__ import annotations

from dataclasses import dataclass

from backbay import Graph, Node, ops
from backbay.structure import Size

from .emitting import Emitter
from .views import window_rows


@dataclass(frozen=True)
class Prefix:
    """The first `rows` rows of a state, and the ids of its writes, which must stay below: each run checks them."""

    rows: Size
    ids: tuple[Node, ...]


def find_prefix(b: Emitter, graph: Graph, state: Node, width: Size) -> Prefix | None:
    """The prefix that serves a state's reads and writes, if it was declared to grow along its outermost dimension."""
    leaf = state.leaf
    if leaf is None or leaf.row_axis is None or leaf.row_axis != state.rank - 1:
        return None
    ids: list[Node] = []
    windows: list[Node] = []
    for node in graph.nodes:
        if node.op is None or node.op.view:
            continue
        written = node.args[node.op.writes] if node.op.writes is not None else None
        if written is not None and written.storage is state:
            if (
                node.op is not ops.set_rows
                or not _takes_rows(b, written, width)
                or not _is_checked(node.args[2])
            ):
                return None
            ids.append(node.args[2])
        for operand in node.operands:
            if operand.storage is state and operand is not written:
                window = _window(operand)
                if window is None:
                    return None
                windows.append(window)
    return _common(b, windows, width, ids)


def _common(b: Emitter, windows: list[Node], width: Size, ids: list[Node]) -> Prefix | None:
    """All reads must see the same rows."""
    found = [window_rows(b, window, width) for window in dict.fromkeys(windows)]
    if not found or found[0] is None:
        return None
    first = found[0]
    if not all(rows is not None and rows.same(first) for rows in found[1:]):
        return None
    return Prefix(first, tuple(dict.fromkeys(ids)))


def _takes_rows(b: Emitter, target: Node, width: Size) -> bool:
    """Whether ids are numbers of bound rows."""
    symbols = b.symbols
    return (
        target.rank == 2
        and width == symbols.dim(target, 0)
        and symbols.offset(target).same(0)
        and symbols.stride(target, 1).same(width * target.dtype.type_size)
    )


def _is_checked(ids: Node) -> bool:
    """Whether the host knows the ids before a run."""
    return ids.storage.leaf is not None and not ids.storage.leaf.computed


def _window(node: Node) -> Node | None:
    """The view that a chain of views begins with."""
    while node.op is not None and node.op is not ops.view:
        node = node.args[node.op.writes or 0]
    return node if node.op is not None else None
