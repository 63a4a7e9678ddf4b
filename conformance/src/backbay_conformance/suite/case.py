"""Cases: one function per op, which draws a call with its expected results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from backbay import Op
from backbay.plugin import REQUIRED

from ..draw.draw import Draw
from ..draw.operand import Operand
from ..numbers.number import Number
from ..numbers.rounding import Array
from .profiles import check_profile

Expected = Any
"""The result of a formula: a Number, an array of stored elements that must come out as they are, or a list of these."""


@dataclass(eq=False)
class Call:
    """A call of an op, drawn by its case, with the formula that it must agree with.

    args      complete, in the op's declared order: operands, None, and attributes
    formula   gets the args in their order, float operands as Number, others as stored or as integers, and returns
              what must come out; it is the case's own, in float64
    exact     in the exact mode, the results are integers that every order of summation gives alike
    raw       operands come to the formula as stored elements, and so do its results: nothing but moves
    verify    instead of a formula, for results that are not unique: gets the decoded args and the result, and raises
              AssertionError that says what is wrong
    chance    which of several right results comes out may differ from run to run, as where ids repeat in a write
    free      results that the documentation leaves open: gets the decoded args, returns a mask of them
    instead   values that free elements may have, beside the formula's
    batch     for each operand in order, the dimension along which the call splits into independent ones, or None;
              the result splits along `batch_out`
    degrees   for each operand the power of two by which the result grows if the operand is doubled; None if it may
              not be scaled
    joint     instead of the sum of degrees, where scaling them makes sense only together
    padded    the same call with padding that does not change its result, and how to cut its result back
    altered   other values of some attributes, by name: the same operands with them give what they must, too
    """

    args: tuple[Any, ...]
    formula: Callable[..., Expected] | None = None
    exact: bool = True
    raw: bool = False
    verify: Callable[..., None] | None = None
    chance: bool = False
    free: Callable[..., Array] | None = None
    instead: tuple[float, ...] = (np.nan, 0.0)
    batch: tuple[int | None, ...] | None = None
    batch_out: int = 0
    degrees: tuple[int | None, ...] | None = None
    joint: int | None = None
    padded: tuple[Call, Callable[[Array], Array]] | None = None
    altered: dict[str, Any] = field(default_factory=dict)
    op: Op[Any, Any] = field(init=False)

    def operands(self) -> Iterator[Operand]:
        for value in self.args:
            if isinstance(value, Operand):
                yield value
            elif isinstance(value, tuple):
                yield from (item for item in value if isinstance(item, Operand))

    def mapped(self, function: Callable[[Operand], Any]) -> tuple[Any, ...]:
        """The args, with something in place of each operand."""

        def one(value: Any) -> Any:
            if isinstance(value, Operand):
                return function(value)
            return tuple(map(one, value)) if isinstance(value, tuple) and type(value) is tuple else value

        return tuple(map(one, self.args))

    def with_args(self, args: tuple[Any, ...]) -> Call:
        """The same call of other operands; relations are not inherited."""
        call = replace(self, args=args, batch=None, degrees=None, padded=None, altered={})
        call.op = self.op
        return call

    @property
    def dtype(self) -> str:
        """Its row in the report: the dtype of its first operand."""
        return str(next(self.operands()).dtype)

    def __str__(self) -> str:
        shown = []
        for parameter, value in zip(self.op.parameters, self.mapped(str), strict=True):
            if parameter.default is REQUIRED or value != parameter.default:
                shown.append(value if parameter.is_operand else f"{parameter.name}={value}")
        return f"{self.op.name}({', '.join(map(str, shown))})"


@dataclass(frozen=True)
class Case:
    """The source of one op's calls in one profile; `weight` is the number of its calls relative to other cases."""

    op: Op[Any, Any]
    profile: str
    function: Callable[[Draw], Call]
    weight: float = 1.0

    @property
    def name(self) -> str:
        return self.op.name

    def draw(self, draw: Draw) -> Call:
        call = self.function(draw)
        call.op = self.op
        if call.padded is not None:
            call.padded[0].op = self.op
        return call


CASES: dict[tuple[str, str], Case] = {}
"""Every case by profile and name of its op."""

F = TypeVar("F", bound=Callable[[Draw], Call])


def case(op: Op[Any, Any], profile: str = "core", weight: float = 1.0) -> Callable[[F], F]:
    """Declare how calls of an op are drawn in a profile."""

    def register(function: F) -> F:
        check_profile(profile, f"case of {op.name}")
        if (profile, op.name) in CASES:
            raise ValueError(f"two cases of {op.name} in profile {profile}")
        CASES[profile, op.name] = Case(op, profile, function, weight)
        return function

    return register


__all__ = ["CASES", "Call", "Case", "Draw", "Expected", "Number", "Operand", "case"]
