"""Cases: one function per op, which draws a call and its formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from backbay import CacheConfig, Op
from backbay.internals import REQUIRED

from ..draw.choices import replayed
from ..draw.draw import Draw
from ..draw.operand import Operand
from ..numbers.encoding import Array
from .profiles import check_profile

Args = tuple[Any, ...]
Expected = Any
"""A formula's result: a Number, an array of stored elements to match exactly, or a list of these."""


@dataclass(eq=False)
class Call:
    """A call of an op, drawn by its case, with the formula for its result.

    args      all arguments in the op's declared order: operands, None, and attributes
    formula   gets the args in order, float operands as Number, others as stored elements or integers, and returns
              the expected results; it is independent of the backend, and computes in float64
    exact     in exact mode, the results are integers that any order of summation gives exactly
    raw       the formula gets and returns stored elements, for ops that only move elements
    verify    instead of a formula, for results that are not unique: gets the decoded args and the result, and raises
              AssertionError with a message
    placed    attributes depend on the operands' places in memory, so no other layout gives the same result
    chance    the result may differ from run to run, as in a write with repeated ids
    free      gets the decoded args, returns a mask of the elements that the documentation leaves open
    instead   values that free elements may have, besides the formula's; None if they may have any
    signed    a zero of the result has the sign of the formula's zero
    batch     for each operand in order, the dimension along which the call splits into independent calls, or None;
              the result splits along `batch_out`
    doubled   for each operand whether it may be doubled, for another call
    padded    the same call with padding that does not change the result, and a function that cuts the padding off
    altered   other values of some attributes, by name, for another call with the same operands
    variant   which of its data the operands hold: 0 the first, 1 the other
    recorded  by variant, the bytes of the operands of a failed call, in place of new data
    """

    args: tuple[Any, ...]
    formula: Callable[..., Expected] | None = None
    exact: bool = True
    raw: bool = False
    verify: Callable[..., None] | None = None
    placed: bool = False
    chance: bool = False
    free: Callable[..., Array] | None = None
    instead: tuple[float, ...] | None = (np.nan, 0.0)
    signed: bool = False
    batch: tuple[int | None, ...] | None = None
    batch_out: int = 0
    doubled: tuple[bool, ...] | None = None
    padded: tuple[Call, Callable[[Array], Array]] | None = None
    altered: dict[str, Any] = field(default_factory=dict)
    variant: int = field(init=False, default=0)
    recorded: dict[int, list[bytes]] = field(init=False, default_factory=dict)
    op: Op[Any, Any] = field(init=False)

    def operands(self) -> Iterator[Operand]:
        for value in self.args:
            if isinstance(value, Operand):
                yield value
            elif isinstance(value, tuple):
                yield from (item for item in value if isinstance(item, Operand))

    def mapped(self, function: Callable[[Operand], Any]) -> tuple[Any, ...]:
        """The args, with each operand replaced by a function of it."""

        def one(value: Any) -> Any:
            if isinstance(value, Operand):
                return function(value)
            return tuple(map(one, value)) if isinstance(value, tuple) and type(value) is tuple else value

        return tuple(map(one, self.args))

    def with_args(self, args: tuple[Any, ...]) -> Call:
        """The same call with other args; relations are not copied."""
        call = replace(self, args=args, batch=None, doubled=None, padded=None, altered={})
        call.op = self.op
        return call

    @property
    def dtype(self) -> str:
        """The dtype of the first operand, which selects the call's place in the report."""
        return str(next(self.operands()).dtype)

    def __str__(self) -> str:
        shown = []
        for parameter, value in zip(self.op.parameters, self.mapped(str), strict=True):
            if parameter.default is REQUIRED or value != parameter.default:
                shown.append(value if parameter.is_operand else f"{parameter.name}={value}")
        return f"{self.op.name}({', '.join(map(str, shown))})"


@dataclass(frozen=True)
class Case:
    """The calls of one op in one profile; `weight` scales their number."""

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


CASES: dict[tuple[str, str], Case] = {}  # every case, by profile and op name

F = TypeVar("F", bound=Callable[[Draw], Call])


def case(op: Op[Any, Any], profile: str = "core", weight: float = 1.0) -> Callable[[F], F]:

    def register(function: F) -> F:
        check_profile(profile, f"case of {op.name}")
        if (profile, op.name) in CASES:
            raise ValueError(f"two cases of {op.name} in profile {profile}")
        CASES[profile, op.name] = Case(op, profile, function, weight)
        return function

    return register


BUILDERS: dict[Op[Any, Any], Callable[[Args, CacheConfig], Call]] = {}
"""For an op whose formula depends on more than a call's decoded arguments: the call of any arguments."""

B = TypeVar("B", bound=Callable[..., Call])


def builder(op: Op[Any, Any]) -> Callable[[B], B]:
    """Declare the function that makes the call of any arguments of an op."""

    def register(function: B) -> B:
        BUILDERS[op] = lambda args, cache: function(args)
        return function

    return register


def call_of(op: Op[Any, Any], args: Args, cache: CacheConfig) -> Call | None:
    """The call of complete arguments, with the formula of the op's case; None for an op without a case."""
    if op in BUILDERS:
        call = BUILDERS[op](args, cache)
    else:
        own = next((case for case in CASES.values() if case.op is op), None)
        if own is None:
            return None
        call = own.draw(Draw(replayed([]), cache=cache)).with_args(args)
    call.op = op
    return call
