"""The declaration of an op: its name, its parameters, its rule for shapes and dtypes, and its specification, the docstring."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    overload,
)

from ..errors import BackbayError, DTypeError, ShapeError
from ..types.dtype import DType
from ..types.spec import Spec

SIZE = "varies between steps"
SizeAttr = Annotated[int, SIZE]
"""An integer attribute that may vary from step to step; it is not part of a graph's structure."""
SizeAttrs = Annotated[Sequence[int], SIZE]

MAX_INT = (1 << 63) - 1

QUICK = {float: "float", bool: "bool"}

P = ParamSpec("P")
R = TypeVar("R", Spec, list[Spec])
REQUIRED = inspect.Parameter.empty


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


OPS: dict[str, Op[Any, Any]] = {}
"""Every declared op by its name, in order of declaration."""


class Op(Generic[P, R]):
    """An operation of the contract: the key in the tables of kernels, composites and cases."""

    composite: Callable[..., Any] | None = None
    """Traces the op as a composition of other ops: `composite(ctx, *args)`."""
    varies = False
    """Whether attributes decide which ops the composite needs, so that they cannot be listed in advance."""
    prepared: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]] | None = None

    def __init__(
        self,
        rule: Callable[P, R],
        *,
        view: bool,
        strays: bool,
        inline: bool,
        moves: bool,
        writes: str,
        ids: str,
        among: tuple[str, int] | None,
    ) -> None:
        self.name = rule.__name__
        self.family = rule.__module__.rpartition(".")[2]
        self.signature = inspect.signature(rule)
        self.parameters = tuple(map(Parameter, self.signature.parameters.values()))
        self.doc = inspect.getdoc(rule) or ""
        self.view = view  # the result is a view of the receiver
        self.strays = strays  # the view may exceed the receiver, but not the receiver's storage
        self.inline = inline  # tracing the op traces the ops of its composite instead, on every backend
        self.moves = moves  # elements are moved and perhaps converted, never computed with
        names = [p.name for p in self.parameters]
        # the operand that is written to; the result is an alias of this operand
        self.writes = names.index(writes) if writes else None
        # the operand whose values are indices into another operand
        self.ids = names.index(ids) if ids else None
        # the indexed operand, and its indexed dimension: ids stay below the extent of that dimension
        self.among = (names.index(among[0]), among[1]) if among else (0, 1)
        self.operands = tuple(i for i, p in enumerate(self.parameters) if p.is_operand)
        self.sizes = tuple(i for i, p in enumerate(self.parameters) if p.is_size)
        self.declared: Callable[..., R] = rule
        self.rule: Callable[..., R] = self.spread(rule)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def open(self, ctx: Any, args: tuple[Any, ...]) -> Any:
        if self.composite is None:
            raise BackbayError(f"{self.name} is not a composition of other ops")
        return self.composite(ctx, *args)

    def prepare(self, function: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]) -> None:
        """Declare a function of the context and the arguments that rewrites the arguments before the rule sees them."""
        self.prepared = function

    def spread(self, function: Callable[..., Any], *, skip: int = 0) -> Callable[..., Any]:
        """Convert a function of `skip` parameters and the op's own to one that takes all arguments by position.

        A variadic parameter becomes a tuple.
        """
        keywords = [p.name for p in self.parameters if p.keyword_only]
        if keywords:
            first = skip + len(self.parameters) - len(keywords)
            return lambda *args: function(*args[:first], **dict(zip(keywords, args[first:], strict=True)))
        if any(p.variadic for p in self.parameters):
            return lambda *args: function(*args[:-1], *args[-1])
        return function

    def check_signature(self, function: Callable[..., object], *, skip: int = 0) -> None:
        """Raise unless a kernel's or composite's parameters, after the first `skip`, are those of the op."""
        theirs = inspect.signature(function)
        names = list(theirs.parameters)[skip:]
        if names != list(self.signature.parameters):
            where = f"{function.__module__}.{function.__qualname__}"
            raise BackbayError(f"{where}{theirs} does not match its op {self.name}{self.signature}")

    def check_takes(self, function: Callable[..., object]) -> None:
        """Raise unless core can call a function as a kernel of the op; its parameters may have other names."""
        keywords = {p.name: None for p in self.parameters if p.keyword_only}
        try:
            theirs = inspect.signature(function)
        except ValueError:  # functions written in C may have no signature
            return
        try:
            theirs.bind(*range(len(self.parameters) - len(keywords)), **keywords)
        except TypeError as error:
            where = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
            ours = f"its op {self.name}{self.signature}"
            raise BackbayError(f"{where}{theirs} does not match {ours}: {error}") from None

    def flat_operands(self, args: Sequence[Any]) -> Iterator[Any]:
        """The operands among complete arguments, without the absent ones."""
        for index in self.operands:
            value = args[index]
            if self.parameters[index].variadic:
                yield from value
            elif value is not None:
                yield value

    def explain(self, error: BackbayError, args: Sequence[Any]) -> BackbayError:
        """The same error, with the op and its operands' specs in front."""
        specs = " x ".join(str_spec(value) for value in self.flat_operands(args))
        return type(error)(f"{self.name}: {specs}: {error}")


def str_spec(value: object) -> str:
    return Spec.__str__(value) if isinstance(value, Spec) else type(value).__name__


class OpTraits(TypedDict, total=False):
    """The traits of an op, see `Op`; its operands by their names."""

    view: bool
    strays: bool
    inline: bool
    moves: bool
    writes: str
    ids: str
    among: tuple[str, int]


USUAL: dict[str, Any] = dict.fromkeys(("view", "strays", "inline", "moves"), False)
USUAL |= {"writes": "", "ids": "", "among": None}


@overload
def op(rule: Callable[P, R], /) -> Op[P, R]: ...
@overload
def op(**traits: Unpack[OpTraits]) -> Callable[[Callable[P, R]], Op[P, R]]: ...
def op(rule: Callable[..., Any] | None = None, /, **traits: Unpack[OpTraits]) -> Any:
    """Declare an op by its rule. Annotations: Spec for operands, SizeAttr or SizeAttrs for sizes, else an attribute."""

    def declare(rule: Callable[..., Any]) -> Op[Any, Any]:
        new: Op[Any, Any] = Op(rule, **{**USUAL, **traits})
        if new.name in OPS:
            raise BackbayError(f"op {new.name} is declared twice")
        return OPS.setdefault(new.name, new)

    return declare if rule is None else declare(rule)
