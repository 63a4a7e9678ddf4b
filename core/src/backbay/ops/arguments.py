"""The parameters of ops: operands, sizes and other attributes, and the check and conversion of arguments."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from numbers import Real
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from ..errors import DTypeError, ShapeError
from ..types.dtypes import DType
from ..types.spec import Spec

SIZE = "varies between steps"
SizeAttr = Annotated[int, SIZE]
"""An integer attribute that may vary from step to step; it is not part of a graph's structure."""
SizeAttrs = Annotated[Sequence[int], SIZE]

MAX_INT = (1 << 63) - 1

QUICK = {float: "float", bool: "bool"}


class Parameter:
    """One parameter of an op: an operand (it may be optional or variadic) or an attribute."""

    def __init__(self, declared: inspect.Parameter) -> None:
        self.name = declared.name
        self.variadic = declared.kind is inspect.Parameter.VAR_POSITIONAL
        self.default = () if self.variadic else declared.default
        kind = declared.annotation
        self.is_size = get_origin(kind) is Annotated and SIZE in get_args(kind)
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        self.is_operand = kind is Spec or Spec in get_args(kind)
        self.is_optional = isinstance(kind, UnionType)
        self.keyword_only = declared.kind is inspect.Parameter.KEYWORD_ONLY
        # An argument of this class needs no parsing.
        self.quick_class = None if self.variadic else QUICK.get(_required_kind(kind))
        self.parse = _parser(self.name, kind, variadic=self.variadic)


def _parser(name: str, kind: Any, *, variadic: bool) -> Callable[[Any], Any]:
    """The check and conversion of one argument, by its annotation."""
    if variadic:
        return _sequence(name, kind)
    if isinstance(kind, UnionType):
        parse = _parser(name, _required_kind(kind), variadic=False)
        return lambda value: None if value is None else parse(value)
    if kind is Spec:
        return lambda value: value if isinstance(value, Spec) else _reject(name, "a Tensor", value)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        named = " or ".join(map(repr, choices))
        return lambda value: value if value in choices else _reject(name, named, value)
    if get_origin(kind) is Sequence:
        parse, what = _sequence(name, int), "a sequence of integers"
        return lambda given: parse(given if isinstance(given, Sequence) else _reject(name, what, given))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _record(name, kind)
    if kind in (bool, DType):
        expected = "True or False" if kind is bool else "a DType"
        return lambda value: value if isinstance(value, kind) else _reject(name, expected, value)
    return _integer(name) if kind is int else _number(name)


def _required_kind(kind: Any) -> Any:
    return next(k for k in get_args(kind) if k is not type(None)) if isinstance(kind, UnionType) else kind


def _reject(name: str, expected: str, value: object) -> Any:
    text = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
    raise DTypeError(f"{name} must be {expected}, got {text}")


def _sequence(name: str, kind: Any) -> Callable[[Any], Any]:
    """A parser of several values; a tuple of plain integers, the common case, passes at once."""
    one = _parser(name, kind, variadic=False)

    def parse(values: Any) -> Any:
        for value in values:
            if value.__class__ is not int:  # a shape may be several integers, or one sequence of integers
                flat = value if len(values) == 1 and isinstance(value, Sequence) else values
                return tuple([one(each) for each in flat])
        return values if values.__class__ is tuple else tuple(values)

    return parse


def _record(name: str, kind: Any) -> Callable[[Any], Any]:
    """A parser of a NamedTuple, given as such or as any sequence of its fields."""
    hints = kind.__annotations__.items()
    fields = [_parser(f"{name}.{field}", hint, variadic=False) for field, hint in hints]

    def parse(values: Any) -> Any:
        if not isinstance(values, Sequence) or len(values) != len(fields):
            _reject(name, f"{kind.__name__}({', '.join(kind._fields)})", values)
        return kind(*[field(value) for field, value in zip(fields, values, strict=True)])

    return parse


def _integer(name: str) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            return int(_reject(name, "an integer", value))
        if not -MAX_INT <= number <= MAX_INT:
            raise ShapeError(f"{name} must fit 64 bits, got {number}")
        return number

    return parse


def _number(name: str) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        try:
            return float(value) if isinstance(value, Real) else _reject(name, "a number", value)
        except OverflowError:
            raise ShapeError(f"{name} must fit a float, it is too large") from None

    return parse
