"""States: leaves that a graph writes into, their versions, and the rows of them that are bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnx import NodeProto

from backbay import Graph, Node, ops
from backbay.internals import Size, Term, term_of

from .emitter import Emitter
from .views import window_rows


@dataclass(frozen=True)
class RowWindow:
    """`rows` rows of a state from `first` on, and the ids of its writes; each run checks that the ids fall inside."""

    first: Size
    rows: Size
    ids: tuple[Node, ...]


def find_window(b: Emitter, graph: Graph, state: Node, width: Size) -> RowWindow | None:
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
                or not ids_are_checked(node.args[2])
            ):
                return None
            ids.append(node.args[2])
            operands.remove(written)  # once: the op may read it as well
        reads += operands
    return _common(b, reads, width, ids)


def _common(b: Emitter, reads: list[Node], width: Size, ids: list[Node]) -> RowWindow | None:
    """All reads must see the same rows."""
    found = [window_rows(b, read, width) for read in dict.fromkeys(reads)]
    if not found or found[0] is None:
        return None
    first, rows = found[0]
    for other in found[1:]:
        if other is None or not (other[0].same(first) and other[1].same(rows)):
            return None
    return RowWindow(first, rows, tuple(dict.fromkeys(ids)))


def _takes_rows(b: Emitter, target: Node, width: Size) -> bool:
    """Whether ids are numbers of bound rows."""
    symbols = b.symbols
    return (
        target.rank == 2
        and width == symbols.dim(target, 0)
        and symbols.offset(target).same(0)
        and symbols.stride(target, 1).same(width * target.dtype.type_size)
    )


def ids_are_checked(ids: Node) -> bool:
    """Whether the host knows the ids before a run."""
    return ids.storage.leaf is not None and not ids.storage.leaf.computed


class WrittenState:
    """A written leaf, bound as rows of `width` elements, so that a write is one scatter of rows."""

    def __init__(self, b: Emitter, node: Node, targets: Sequence[Node]) -> None:
        self._b, self.node = b, node
        self.unit = node.dtype.type_size
        self.elements = b.product(b.extents(node))
        self.width = self._width(targets)
        self.window: RowWindow | None = None
        self.values: list[str] = []  # names by version
        self.writers: list[
            NodeProto | None
        ] = []  # of all versions but the first; None where all was replaced
        self.counts: list[Size] = []  # the elements that each of them wrote

    @property
    def shape(self) -> list[Size]:
        """Innermost first."""
        return [self.width, self.elements // self.width]

    @property
    def begin(self) -> Size:
        return self._b.symbols.constant(0) if self.window is None else self.window.first * self.width

    @property
    def first_byte(self) -> Term:
        return term_of(self.begin * self.unit)

    @property
    def latest(self) -> str:
        return self.values[-1]

    def add(self, value: str, writer: NodeProto | None, count: Size) -> None:
        """A version that `writer` made of the latest one and `count` elements; without a writer it replaces all."""
        self.values.append(value)
        self.writers.append(writer)
        self.counts.append(count)

    def rows(self, size: Size) -> Size:
        """Bytes as a number of bound rows."""
        return size // self.unit // self.width

    def step(self, target: Node) -> Size | int:
        """The distance in rows between consecutive row-sized pieces of dimension 0."""
        return self.rows(self._b.symbols.stride(target, 0)) if self.width.constant == 1 else 1

    def index(self, target: Node) -> str:
        """The rows that a target's elements lie in, (rows, 1)."""
        symbols = self._b.symbols
        extents = [
            symbols.dim(target, 0) // self.width,
            *[symbols.dim(target, n) for n in range(1, target.rank)],
        ]
        steps = [self.step(target), *[self.rows(symbols.stride(target, n)) for n in range(1, target.rank)]]
        grid = self._b.grid(self.rows(symbols.offset(target)), extents, steps)
        return self._b.shaped(grid, [1, -1])

    def covered_by(self, target: Node) -> bool:
        """Whether a target is the whole state, in the same order."""
        return self._b.is_in_order(target) and self._b.product(self._b.extents(target)).same(self.elements)

    def _width(self, targets: Sequence[Node]) -> Size:
        one = self._b.symbols.constant(1)
        width = self._b.symbols.dim(targets[0], 0)
        if width.same(0) or not all(self._made_of_rows(target, width) for target in targets):
            return one
        return width if width.divides(self.elements) else one

    def _made_of_rows(self, target: Node, width: Size) -> bool:
        symbols = self._b.symbols
        row = width * self.unit
        if not (symbols.stride(target, 0).same(self.unit) and width.divides(symbols.dim(target, 0))):
            return False
        steps = [symbols.stride(target, n) for n in range(1, target.rank)]
        return all(row.divides(size) for size in (symbols.offset(target), *steps))


def find_states(b: Emitter, graph: Graph, *, windows: bool) -> dict[int, WrittenState]:
    """The states of a graph by storage index; with `windows`, cut to the rows that are read where possible."""
    targets: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op is not None and node.op.writes is not None:
            targets.setdefault(node.storage.index, []).append(node.args[node.op.writes])
    states = {index: WrittenState(b, graph.nodes[index], written) for index, written in targets.items()}
    firsts: dict[tuple[Node, ...], Size] = {}
    for state in states.values() if windows else ():
        window = find_window(b, graph, state.node, state.width)
        if window is not None:  # only these rows are bound
            first = firsts.setdefault(window.ids, window.first)  # layers of a cache share their rows' numbers
            if window.first.same(first):
                window = replace(window, first=first)
            state.window, state.elements = window, window.rows * state.width
    return states
