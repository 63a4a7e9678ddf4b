"""The declaration of an op: its name, its rule for shapes and dtypes, and its specification, the docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ..errors import BackbayError
from ..types.spec import Spec
from .arguments import Parameter

P = ParamSpec("P")
R = TypeVar("R", Spec, list[Spec])

REQUIRED = inspect.Parameter.empty

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
        self.ids = (
            names.index(ids) if ids else None
        )  # the operand whose values are indices into another operand
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
    """Declare an op by its rule. Annotations: Spec for operands, SizeAttr or SizeAttrs for sizes, else an attribute."""

    def declare(rule: Callable[..., Any]) -> Op[Any, Any]:
        new: Op[Any, Any] = Op(
            rule, view=view, strays=strays, inline=inline, moves=moves, writes=writes, ids=ids, among=among
        )
        if new.name in OPS:
            raise BackbayError(f"op {new.name} is declared twice")
        return OPS.setdefault(new.name, new)

    return declare if rule is None else declare(rule)
