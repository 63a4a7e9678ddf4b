"""Symbolic sizes, with which a plugin compiles one graph for all graphs of the same structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..errors import BackbayError
from .graph import Graph, Node

Term = int | tuple[Any, ...]
"""The formula of a size: a number, a value to read from a graph, or an operation on two terms. It holds no graph."""

READ: dict[str, Callable[..., int]] = {
    "dim": lambda graph, index, n: graph.nodes[index].dim(n),
    "stride": lambda graph, index, n: graph.nodes[index].stride(n),
    "offset": lambda graph, index: graph.nodes[index].offset,
    "size": lambda graph, index, position, item: _attribute(graph, index, position)[item],
}
COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "max": max,
}
DECIDE: dict[str, Callable[[int, int], bool]] = {
    "pin": lambda a, b: a == b,
    "same": lambda a, b: a == b,
    "fits": lambda a, b: a in (1, b),
    "divides": lambda a, b: b % a == 0 if a else b == 0,
    "at_most": lambda a, b: a <= b,
}


def evaluate_term(term: Term, graph: Graph) -> int:
    """The value of a term in a graph; the graph must have the structure that the term was made for."""
    if isinstance(term, int):
        return term
    kind = term[0]
    if kind in READ:
        return READ[kind](graph, *term[1:])
    return COMPUTE[kind](evaluate_term(term[1], graph), evaluate_term(term[2], graph))


def program(terms: Sequence[Term]) -> Callable[[Graph], tuple[int, ...]]:
    """Compile many terms to one function of a graph, which computes each common subterm once."""
    steps = _Steps()
    found = "".join(f"{steps.name(term)}," for term in terms)
    run = _function(f"def run(graph, nodes):\n{''.join(steps.lines)} return ({found})")
    return lambda graph: run(graph, graph.nodes)


@lru_cache(maxsize=512)  # different graphs often have the same program
def _function(source: str) -> Callable[[Graph, Sequence[Node]], tuple[int, ...]]:
    names: dict[str, Any] = {"attribute": _attribute, "max": max}
    exec(source, names)  # noqa: S102  made of terms only
    run: Callable[[Graph, Sequence[Node]], tuple[int, ...]] = names["run"]
    return run


class _Steps:
    """Terms as lines of Python over `graph` and its `nodes`, with a variable for each different subterm."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[Term, str] = {}

    def name(self, term: Term) -> str:
        """The variable that holds a term, or the literal of a constant."""
        if isinstance(term, int):
            return repr(term)
        if term not in self._names:
            source = self._source(*term)
            self._names[term] = f"v{len(self._names)}"
            self.lines.append(f" {self._names[term]} = {source}\n")
        return self._names[term]

    def _source(self, kind: str, *rest: Any) -> str:
        if kind == "offset":
            return f"nodes[{rest[0]:d}].offset"
        if kind == "attribute":
            return f"attribute(graph, {rest[0]:d}, {rest[1]:d})"
        if kind == "size":
            return f"{self.name(('attribute', *rest[:2]))}[{rest[2]:d}]"
        if kind in READ:
            return f"nodes[{rest[0]:d}].{kind}({rest[1]:d})"
        left, right = map(self.name, rest)
        if kind == "max":
            return f"max({left}, {right})"
        return f"{left} {kind} {right}" + (f" if {right} else 0" if kind in ("//", "%") else "")


def _attribute(graph: Graph, index: int, position: int) -> tuple[int, ...]:
    value = graph.nodes[index].args[position]
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Guard:
    """A decision of a lowering that depends on the values of sizes."""

    relation: str
    left: Term
    right: Term
    answer: bool


@dataclass
class Guards:
    """All decisions that a compiled graph relies on, beside its structure.

    They keep no graph alive. A plan may be reused for another graph only if the structure keys are equal and `hold` is
    true for that graph.
    """

    taken: dict[Guard, None] = field(default_factory=dict)
    _values: Callable[[Graph], tuple[int, ...]] | None = None
    _known: int = 0

    def hold(self, graph: Graph) -> bool:
        """Whether each decision is the same for this graph; its structure key must be the same."""
        if self._values is None or len(self.taken) != self._known:
            self._values = program([term for guard in self.taken for term in (guard.left, guard.right)])
            self._known = len(self.taken)
        values = iter(self._values(graph))
        return all(
            DECIDE[guard.relation](left, right) is guard.answer
            for guard, left, right in zip(self.taken, values, values, strict=True)
        )


class Size:
    """A number that may differ in another graph of the same structure.

    Sizes can be added, subtracted, multiplied and divided, and the result fed as data: `term` is the formula for any
    graph of the structure. Reading the value (`pin`) and comparing (`same`, `fits`, `divides`, `at_most`) record a
    guard. A size is never an integer or a condition by accident: `==` and `hash` compare terms, not values.
    """

    __slots__ = ("_symbols", "term")

    def __init__(self, symbols: Symbols, term: Term) -> None:
        self._symbols, self.term = symbols, term

    @property
    def constant(self) -> int | None:
        """The value, if it is the same in every graph of the structure, else None."""
        return self.term if isinstance(self.term, int) else None

    def pin(self) -> int:
        """The value. A guard limits the compiled graph to graphs with the same value."""
        value = self._symbols.value(self.term)
        self._symbols.decide("pin", self.term, value)
        return value

    def same(self, other: Size | int) -> bool:
        """Whether two sizes are equal; records a guard."""
        return self._symbols.decide("same", self.term, term_of(other))

    def fits(self, other: Size | int) -> bool:
        """Whether this size is 1 or equal to the other, as broadcasting requires; records a guard."""
        return self._symbols.decide("fits", self.term, term_of(other))

    def divides(self, other: Size | int) -> bool:
        """Whether the other size is a multiple of this size; records a guard."""
        return self._symbols.decide("divides", self.term, term_of(other))

    def at_most(self, other: Size | int) -> bool:
        """Whether this size is at most the other; records a guard."""
        return self._symbols.decide("at_most", self.term, term_of(other))

    def max(self, other: Size | int) -> Size:
        return self._with("max", other)

    def __add__(self, other: Size | int) -> Size:
        return self if other == 0 else self._with("+", other)

    def __sub__(self, other: Size | int) -> Size:
        return self if other == 0 else self._with("-", other)

    def __mul__(self, other: Size | int) -> Size:
        if self.term == 1 and isinstance(other, Size):
            return other
        return self if other == 1 else self._with("*", other)

    def __floordiv__(self, other: Size | int) -> Size:
        """The quotient, rounded down; 0 where the other is 0."""
        return self if other == 1 else self._with("//", other)

    def __mod__(self, other: Size | int) -> Size:
        """The remainder; 0 where the other is 0."""
        return self._with("%", other)

    def __eq__(self, other: object) -> bool:
        return self.term == (other.term if isinstance(other, Size) else other)

    def __hash__(self) -> int:
        return hash(self.term)

    def __bool__(self) -> bool:
        raise BackbayError("a size is no condition: ask same, fits, divides or at_most, which record a guard")

    def __repr__(self) -> str:
        return f"Size({self.term!r})"

    def _with(self, operation: str, other: Size | int) -> Size:
        right = term_of(other)
        if isinstance(self.term, int) and isinstance(right, int):
            return Size(self._symbols, COMPUTE[operation](self.term, right))
        return Size(self._symbols, (operation, self.term, right))


def term_of(size: Size | int) -> Term:
    return size.term if isinstance(size, Size) else size


class Symbols:
    """A lowering's access to the sizes of one graph; `guards` are its decisions about them.

    Dimensions of parameters belong to the structure, so their sizes are constants. All other sizes are symbols. Two
    symbols with equal values are different sizes, unless a guard says that they are the same.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.guards = Guards()

    def dim(self, node: Node, n: int) -> Size:
        """The extent of a dimension; 1 beyond the rank."""
        fixed = node.kind == "parameter" or n >= node.rank
        return self.constant(node.dim(n)) if fixed else Size(self, ("dim", node.index, n))

    def stride(self, node: Node, n: int) -> Size:
        """The bytes from one element of a dimension to the next, in the node's storage."""
        if n == 0 and not node.is_view:
            return self.constant(node.dtype.type_size)
        fixed = node.kind == "parameter"
        return self.constant(node.stride(n)) if fixed else Size(self, ("stride", node.index, n))

    def offset(self, node: Node) -> Size:
        """The offset in bytes at which a node begins in its storage."""
        return Size(self, ("offset", node.index)) if node.is_view else self.constant(0)

    def size(self, node: Node, parameter: str | int) -> Size | tuple[Size, ...]:
        """A size attribute, by name or position; a tuple if the attribute is a sequence."""
        if (op := node.op) is None:
            raise BackbayError(f"a {node.kind} has no size attributes")
        named = [i for i in op.sizes if parameter in (i, op.parameters[i].name)]
        if not named:
            raise BackbayError(f"{op.name} has no size attribute {parameter!r}")
        position = named[0]
        value = node.args[position]
        if isinstance(value, tuple):
            return tuple(Size(self, ("size", node.index, position, item)) for item in range(len(value)))
        return Size(self, ("size", node.index, position, 0))

    def constant(self, value: int) -> Size:
        """A size that is the same in every graph."""
        return Size(self, value)

    def value(self, term: Term) -> int:
        """The value of a term in this graph, without a guard: decisions need `decide`."""
        return evaluate_term(term, self._graph)

    def decide(self, relation: str, left: Term, right: Term) -> bool:
        """Whether a relation between terms holds. Records a guard, unless the answer is the same in every graph."""
        answer = DECIDE[relation](self.value(left), self.value(right))
        certain = isinstance(left, int) and isinstance(right, int)
        certain = certain or left == right or (relation == "divides" and right == 0)
        if not certain:
            self.guards.taken[Guard(relation, left, right, answer)] = None
        return answer
