"""What an operation is: a name, a rule for shapes and dtypes, and the documentation that is its specification."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from types import UnionType
from typing import Annotated, Any, Generic, Literal, ParamSpec, TypeVar, get_args, get_origin, overload

from ..errors import BackbayError, DTypeError, ShapeError
from ..types.dtypes import DType
from ..types.spec import Spec

P = ParamSpec("P")
R = TypeVar("R", Spec, list[Spec])

SIZE = "varies between steps"
Size = Annotated[int, SIZE]
"""An integer attribute that may vary from step to step: it is not part of a graph's structure."""
Sizes = Annotated[Sequence[int], SIZE]

MAX_INT = (1 << 63) - 1
REQUIRED = inspect.Parameter.empty

OPS: dict[str, Op[Any, Any]] = {}
"""Every declared op by its name, in order of declaration."""


class Parameter:
    """One parameter of an op: an operand, optional or many of them, or an attribute."""

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
        self.quick_class = None if self.variadic else _QUICK.get(_required_kind(kind))
        self.parse = _parser(self.name, kind, variadic=self.variadic)


class Op(Generic[P, R]):
    """An operation of the contract. Kernels, composites and cases are tables keyed by it."""

    composite: Callable[..., Any] | None = None
    """Traces the op as a composition of others: `composite(ctx, *args)`."""
    varies = False
    """Whether its attributes may leave out parts of the composite, so that without them nobody can tell what it needs."""
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
        self.strays = strays  # a view that may reach beyond the receiver, though not beyond its storage
        self.inline = inline  # tracing it traces the ops it is made of, always
        self.moves = moves  # elements only move, and are converted at most
        self.writes = self._index(
            writes
        )  # the operand that is written to, and that the result is an alias of
        self.ids = self._index(ids)  # the operand whose values index another
        # the operand and its dimension that ids count: they stay below its extent
        self.among = (self._index(among[0]) or 0, among[1]) if among else (0, 1)
        self.operands = tuple(i for i, p in enumerate(self.parameters) if p.is_operand)
        self.sizes = tuple(i for i, p in enumerate(self.parameters) if p.is_size)
        self.declared: Callable[..., R] = rule
        self.rule: Callable[..., R] = self.spread(rule)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def _index(self, name: str) -> int | None:
        return list(self.signature.parameters).index(name) if name else None

    def open(self, ctx: Any, args: tuple[Any, ...]) -> Any:
        """Trace what the op is made of."""
        if self.composite is None:
            raise BackbayError(f"{self.name} is not a composition of other ops")
        return self.composite(ctx, *args)

    def prepare(self, function: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]) -> None:
        """Declare what rewrites an op's arguments, given the context, before its rule sees them."""
        self.prepared = function

    def spread(self, function: Callable[..., Any], *, skip: int = 0) -> Callable[..., Any]:
        """A function of the op's signature, after `skip` more, as one of all in order, variadic ones as a tuple."""
        kinds = [p.kind for p in self.signature.parameters.values()]
        keywords = tuple(n for n, p in self.signature.parameters.items() if p.kind is p.KEYWORD_ONLY)
        if keywords:
            first = skip + len(kinds) - len(keywords)
            return lambda *args: function(*args[:first], **dict(zip(keywords, args[first:], strict=True)))
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            return lambda *args: function(*args[:-1], *args[-1])
        return function

    def check_signature(self, function: Callable[..., object], *, skip: int = 0) -> None:
        """Raise unless a kernel's or composite's parameters are the op's, after the first `skip`."""
        theirs = inspect.signature(function)
        names = list(theirs.parameters)[skip:]
        if names != list(self.signature.parameters):
            where = f"{function.__module__}.{function.__qualname__}"
            raise BackbayError(f"{where}{theirs} does not match its op {self.name}{self.signature}")

    def check_takes(self, function: Callable[..., object]) -> None:
        """Raise unless a function takes what core calls a kernel with, whatever it calls its parameters."""
        kinds = {name: p.kind for name, p in self.signature.parameters.items()}
        keywords = {name: None for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY}
        try:
            theirs = inspect.signature(function)
        except ValueError:  # a function of C may not tell
            return
        try:
            theirs.bind(*range(len(kinds) - len(keywords)), **keywords)
        except TypeError as error:
            where = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
            raise BackbayError(
                f"{where}{theirs} does not match its op {self.name}{self.signature}: {error}"
            ) from None

    def flat_operands(self, args: Sequence[Any]) -> Iterator[Any]:
        """The operands among complete arguments, without absent ones."""
        for index in self.operands:
            value = args[index]
            if self.parameters[index].variadic:
                yield from value
            elif value is not None:
                yield value

    def explain(self, error: BackbayError, args: Sequence[Any]) -> BackbayError:
        """The error again, with the op and the specs it was given in front."""
        specs = " x ".join(str_spec(value) for value in self.flat_operands(args))
        return type(error)(f"{self.name}: {specs}: {error}")


def str_spec(value: object) -> str:
    return Spec.__str__(value) if isinstance(value, Spec) else type(value).__name__


@overload
def op(rule: Callable[P, R], /) -> Op[P, R]: ...
@overload
def op(
    *,
    view: bool = False,
    strays: bool = False,
    inline: bool = False,
    moves: bool = False,
    writes: str = "",
    ids: str = "",
    among: tuple[str, int] | None = None,
) -> Callable[[Callable[P, R]], Op[P, R]]: ...
def op(
    rule: Callable[..., Any] | None = None,
    /,
    *,
    view: bool = False,
    strays: bool = False,
    inline: bool = False,
    moves: bool = False,
    writes: str = "",
    ids: str = "",
    among: tuple[str, int] | None = None,
) -> Any:
    """Declare an op by its rule: operands are annotated Spec, sizes Size or Sizes, the rest are attributes."""

    def declare(rule: Callable[..., Any]) -> Op[Any, Any]:
        new: Op[Any, Any] = Op(
            rule, view=view, strays=strays, inline=inline, moves=moves, writes=writes, ids=ids, among=among
        )
        if new.name in OPS:
            raise BackbayError(f"op {new.name} is declared twice")
        return OPS.setdefault(new.name, new)

    return declare if rule is None else declare(rule)


_QUICK = {float: "float", bool: "bool"}


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
        return lambda value: (
            value if value in choices else _reject(name, " or ".join(map(repr, choices)), value)
        )
    if get_origin(kind) is Sequence:
        parse = _sequence(name, int)
        return lambda values: parse(_iterable(name, values))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _record(name, kind)
    return {int: _integer, float: _number, bool: _boolean, DType: _dtype}[kind](name)


def _required_kind(kind: Any) -> Any:
    return next(k for k in get_args(kind) if k is not type(None)) if isinstance(kind, UnionType) else kind


def _flat(values: tuple[Any, ...]) -> Sequence[Any]:
    """A shape may be given as integers or as one sequence of them."""
    return values[0] if len(values) == 1 and isinstance(values[0], Sequence) else values


def _reject(name: str, expected: str, value: object) -> Any:
    text = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
    raise DTypeError(f"{name} must be {expected}, got {text}")


def _sequence(name: str, kind: Any) -> Callable[[Any], Any]:
    """Many values; plain integers in a tuple, as most are, pass at once."""
    one = _parser(name, kind, variadic=False)

    def parse(values: Any) -> Any:
        for value in values:
            if value.__class__ is not int:
                return tuple([one(value) for value in _flat(values)])
        return values if values.__class__ is tuple else tuple(values)

    return parse


def _iterable(name: str, values: Any) -> Any:
    return values if isinstance(values, Sequence) else _reject(name, "a sequence of integers", values)


def _record(name: str, kind: Any) -> Callable[[Any], Any]:
    """A NamedTuple, given as one or as any sequence of its fields."""
    fields = [
        _parser(f"{name}.{field}", hint, variadic=False) for field, hint in kind.__annotations__.items()
    ]

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


def _boolean(name: str) -> Callable[[Any], bool]:
    return lambda value: value if isinstance(value, bool) else _reject(name, "True or False", value)


def _dtype(name: str) -> Callable[[Any], DType]:
    return lambda value: value if isinstance(value, DType) else _reject(name, "a DType", value)
