"""A graph and its twin in NumPy, which computes the same nodes in core's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backbay import Context, Tensor

from ..numbers.comparison import must_equal
from ..numbers.encoding import Array

Evaluate = Callable[..., Array]


@dataclass(eq=False)
class Twin:
    """A tensor and its NumPy function; a leaf holds its array, a view shares its storage's array.

    No element is larger than `peak`.
    """

    tensor: Tensor
    name: str
    peak: float
    parts: tuple[Twin, ...] = ()
    evaluate: Evaluate | None = None
    array: Array = field(init=False)  # once it is evaluated

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape


class Wiring:
    """The twins of a context, and its roots in the order of `forward`."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.twins: list[Twin] = []
        self.roots: list[Twin] = []
        self.log: list[str] = []
        self._count = 0

    def leaf(self, numbers: Array, peak: float) -> Twin:
        twin = Twin(self.ctx.from_floats(numbers), f"leaf{self._next()}", peak)
        twin.array = numbers.copy()
        return self._keep(twin, f"leaf {numbers.shape[::-1]}")

    def ids(self, numbers: Array) -> Twin:
        twin = Twin(self.ctx.from_ints(numbers), "ids", numbers.max(initial=0))
        twin.array = numbers.copy()
        return twin

    def op(self, name: str, x: Twin, *args: Any, evaluate: Evaluate, peak: float | None = None) -> Twin:
        """Trace an op by its name; twins in `args` are operands. Without a `peak`, it is that of x."""
        given = [arg.tensor if isinstance(arg, Twin) else arg for arg in args]
        tensor = getattr(x.tensor, name)(self.ctx, *given)
        parts = (x, *[arg for arg in args if isinstance(arg, Twin)])
        shown = ", ".join(arg.name if isinstance(arg, Twin) else str(arg) for arg in args)
        twin = Twin(tensor, f"t{self._next()}", x.peak if peak is None else peak, parts, evaluate)
        return self._keep(twin, f"{twin.name} = {x.name}.{name}({shown}) {tensor.shape}")

    def forward(self, twin: Twin) -> None:
        if twin not in self.roots:
            self.ctx.forward(twin.tensor)
            self.roots.append(twin)
            self.log.append(f"forward({twin.name})")

    def rewrite(self, leaf: Twin, numbers: Array) -> None:
        leaf.tensor.from_floats(numbers)
        leaf.array[...] = numbers

    def check(self, outputs: Iterable[Twin], states: Iterable[Twin], when: str) -> None:
        """Compute on the backend and in NumPy, and compare the readable results; each output is a root."""
        named = list(outputs)
        self.ctx.compute(*[twin.tensor for twin in named])
        done: set[Twin] = set()
        for root in self.roots:
            self._place(root, done)
        for twin in (*named, *states):
            must_equal(twin.tensor.numpy(), np.asarray(twin.array, np.float64), f"{when}: {twin.name}")

    def _place(self, twin: Twin, done: set[Twin]) -> None:
        """Evaluate a twin after its operands, depth first."""
        if twin in done or twin.evaluate is None:
            return
        for part in twin.parts:
            self._place(part, done)
        done.add(twin)
        twin.array = twin.evaluate(*[part.array for part in twin.parts])

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _keep(self, twin: Twin, line: str) -> Twin:
        self.twins.append(twin)
        self.log.append(line)
        return twin
