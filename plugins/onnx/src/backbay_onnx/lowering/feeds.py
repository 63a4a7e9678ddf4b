"""Feeds: integers that depend on sizes alone, computed once for a graph and bound as small inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbay import Graph
from backbay.internals import Term, cached_property
from backbay.plugin import program


@dataclass(frozen=True)
class Vector:
    """Sizes one after the other, such as a shape."""

    terms: tuple[Term, ...]
    rank = 1


@dataclass(frozen=True)
class Scalar:
    """One size, of rank 0."""

    term: Term
    rank = 0

    @property
    def terms(self) -> tuple[Term, ...]:
        return (self.term,)


@dataclass(frozen=True)
class Grid:
    """start + the sum over dimensions of index times step, innermost dimension first; the shape is reversed."""

    start: Term
    extents: tuple[Term, ...]
    steps: tuple[Term, ...]

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def terms(self) -> tuple[Term, ...]:
        return (self.start, *self.extents, *self.steps)

    def filled(self, values: Sequence[int]) -> NDArray[Any]:
        """The array for the values of the terms."""
        total = np.array(values[0], np.int64)
        extents, steps = values[1 : self.rank + 1], values[self.rank + 1 :]
        for n, (extent, step) in enumerate(zip(extents, steps, strict=True)):
            line = np.arange(extent, dtype=np.int64) * step
            total = total + line.reshape(-1, *[1] * n)
        return np.ascontiguousarray(total)


Feed = Vector | Scalar | Grid


def is_constant(feed: Feed) -> bool:
    """Whether a feed is the same in every graph of the structure."""
    return isinstance(feed, Vector) and all(isinstance(term, int) for term in feed.terms)


class Feeds:
    """The arrays of named feeds. All but grids lie in one array, one after the other."""

    def __init__(self, named: Mapping[str, Feed]) -> None:
        self.named = named
        self._grids = {name: feed for name, feed in named.items() if isinstance(feed, Grid)}
        plain = {name: feed for name, feed in named.items() if name not in self._grids}
        counts = [len(feed.terms) for feed in plain.values()]
        begins = list(accumulate(counts, initial=0))
        self.count = begins[-1]
        self.places = tuple(  # name, shape and first item
            (name, (count,) * feed.rank, begin)
            for (name, feed), count, begin in zip(plain.items(), counts, begins, strict=False)
        )
        ordered = (*plain.values(), *self._grids.values())
        self._values = program([term for feed in ordered for term in feed.terms])

    def of(self, graph: Graph) -> Fed:
        values = self._values(graph)
        given, first = {}, self.count
        for name, grid in self._grids.items():
            given[name] = grid, values[first : first + len(grid.terms)]
            first += len(grid.terms)
        return Fed(np.array(values[: self.count], np.int64), self.places, given)


@dataclass(frozen=True)
class Fed:
    """The arrays of one graph. Grids are made when they are first asked for: a dry run only counts their bytes."""

    numbers: NDArray[np.int64]
    places: tuple[tuple[str, tuple[int, ...], int], ...]
    given: Mapping[str, tuple[Grid, Sequence[int]]]  # grids by name, and the values of their terms

    @cached_property
    def grids(self) -> dict[str, NDArray[Any]]:
        return {name: grid.filled(values) for name, (grid, values) in self.given.items()}

    @property
    def nbytes(self) -> int:
        extents = [values[1 : grid.rank + 1] for grid, values in self.given.values()]
        return self.numbers.nbytes + sum(8 * prod(extent) for extent in extents)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By name."""
        plain = {
            name: self.numbers[first : first + prod(shape)].reshape(shape)
            for name, shape, first in self.places
        }
        return {**plain, **self.grids}


class Sizes:
    """The values of terms in a graph, all computed at once."""

    def __init__(self, terms: Iterable[Term]) -> None:
        self._terms = tuple(dict.fromkeys(term for term in terms if not isinstance(term, int)))
        self._values = program(self._terms)

    def of(self, graph: Graph) -> SizeValues:
        return SizeValues(zip(self._terms, self._values(graph), strict=True))


class SizeValues(dict[Term, int]):
    """Values by term; the value of a number is itself."""

    def __missing__(self, term: Term) -> int:
        if not isinstance(term, int):
            raise KeyError(term)
        return term

    def all(self, terms: Iterable[Term]) -> tuple[int, ...]:
        return tuple([self[term] for term in terms])
