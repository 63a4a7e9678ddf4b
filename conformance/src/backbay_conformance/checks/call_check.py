"""One call tried on a backend, with every check that holds for each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from backbay import (
    Backend,
    Context,
    DeclaredUnsupportedError,
    DType,
    GuardZoneError,
    KernelBackend,
    Level,
    Op,
    Precision,
    Spec,
    Tensor,
    UnsupportedOpError,
    ops,
)
from backbay.plugin import COMPOSITE, KERNEL

from ..draw.data import Mode
from ..draw.operand import Operand
from ..numbers.comparison import Fault, Verdict, compare
from ..numbers.encoding import decode, from_bytes
from ..numbers.number import Cost, Number
from ..numbers.rounding import FLOOR, LARGEST, Array, accumulate_unit, unit
from ..suite.case import Call
from ..suite.lab import Lab
from .declared_precision import declared, runs


class Declined(Exception):  # noqa: N818 no error: the documentation leaves it to the backend
    """A backend refuses what it need not do, with the right error."""


@dataclass
class Observed:
    """What a trial learned beside that it passed."""

    level: Level = Level.KERNEL
    why_not: str = ""  # it is unsupported
    ratio: float | None = None  # of the worst error to its bound
    precision: Precision | None = None
    checks: list[str] = field(default_factory=list)

    def note(self, check: str, verdict: Verdict | None = None) -> None:
        self.checks.append(check)
        if verdict is not None and verdict.ratio is not None:
            self.ratio = max(self.ratio or 0.0, verdict.ratio)


def tracer(op: Op[Any, Any]) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(Tensor, op.name)
    return function


def weight(backend: Backend, name: str, spec: Spec) -> Tensor:
    found = backend.get(name)
    if found is None or (found.dtype, found.shape) != (spec.dtype, spec.shape):
        raise Fault("weights", f"get({name!r}) gave {found!r}, the file holds {spec}")
    return found


class Setup:
    """A call traced in a context of its own: its leaves, and the tensors that come out.

    `weights` names the operands that are weights of the backend's model; the others are leaves.
    """

    def __init__(
        self,
        backend: Backend,
        call: Call,
        *,
        composed: bool = False,
        weights: Mapping[Operand, str] = MappingProxyType({}),
    ) -> None:
        self.backend, self.call, self.composed, self.weights = backend, call, composed, weights
        self.ctx: Context = backend.new_context()
        self.leaves: dict[Operand, Tensor] = {}
        try:
            self._trace(composed)
        except BaseException:
            self.ctx.close()
            raise

    def _trace(self, composed: bool) -> None:
        call, ctx = self.call, self.ctx
        self.tensors: dict[Operand, Tensor] = {}
        for operand in call.operands():
            if operand in self.weights:
                self.tensors[operand] = weight(self.backend, self.weights[operand], operand.spec)
                continue
            self.leaves[operand] = operand.leaf(ctx)
            self.tensors[operand] = operand.layout.trace(ctx, self.leaves[operand])
        args = call.mapped(self.tensors.__getitem__)
        if composed:
            assert call.op.composite is not None
            made = call.op.composite(ctx, *(call.op.prepared(ctx, args) if call.op.prepared else args))
        else:
            made = _traced(ctx, call, args)
        self.results: list[Tensor] = list(made) if isinstance(made, list) else [made]
        if composed or call.op.view or call.op.inline:
            # A view is read where it lies, and by a copy that runs on the device.
            readable = [result for result in self.results if runs(ctx, ops.contiguous, result)]
            self.results += [result.contiguous(ctx) for result in readable]
        self.args, self.specs = args, [args[i] for i in call.op.operands]
        self.kept = [
            t for o, t in self.tensors.items() if t.op is not None and t.op.name == "duplicate" and o.seed % 2
        ]

    @property
    def level(self) -> Level:
        if self.call.op.inline or self.call.op.view:
            return Level.KERNEL
        return self.backend.supports(self.call.op, self.specs).level

    @property
    def precision(self) -> Precision:
        """What is declared of the op, or, where its composite runs, the coarsest of what that is made of."""
        composed = self.composed or self.level is Level.COMPOSITE
        return declared(self.backend, self.ctx, self.call.op, self.args, composed=composed)

    def write(self, operands: list[Operand] | None = None) -> None:
        for operand, leaf in self.leaves.items():
            if operands is None or operand in operands:
                operand.write(leaf)

    def run(self) -> list[Array]:
        """Compute, and read the results as stored."""
        self.ctx.compute(*self.results, *self.kept)
        return [from_bytes(y.bytes(), y.dtype, y.shape) for y in self.results]

    def close(self) -> None:
        self.ctx.close()


def _traced(ctx: Context, call: Call, args: tuple[Any, ...]) -> Any:
    """The op's method with its args in declared order, variadic ones and keywords where they belong."""
    method = tracer(call.op)
    return call.op.spread(lambda x, *rest, **named: method(x, ctx, *rest, **named))(*args)


def make(call: Call, mode: Mode, precision: Precision, variant: int) -> None:
    """Fill in the data of all operands; those that others must leave room for come first."""
    for operand in sorted(call.operands(), key=lambda o: getattr(o.fill, "partner", None) is not None):
        operand.make(mode, precision, variant)


def cost_of(call: Call, level: Level, precision: Precision) -> Cost:
    """What the declared precision costs; a composite rounds between its steps, to its operands' type."""
    step = accumulate = accumulate_unit(precision)
    if level is Level.COMPOSITE:
        step = max(
            step, *[unit(o.dtype) for o in call.operands() if o.dtype.is_float], unit(precision.accumulate)
        )
    if precision.accumulate is DType.F16:
        return Cost(step, accumulate, precision.activation, LARGEST[DType.F16], FLOOR[DType.F16])
    return Cost(step, accumulate, precision.activation)


def expect(call: Call, cost: Cost) -> list[Any]:
    """What must come out."""
    assert call.formula is not None

    def argument(operand: Operand) -> Any:
        if call.raw or operand.dtype.is_integer:
            return operand.stored
        return Number(operand.decoded, 0.0, cost)

    with np.errstate(all="ignore"):
        expected = call.formula(*call.mapped(argument))
    return list(expected) if isinstance(expected, list) else [expected]


def judge(call: Call, setup: Setup, got: list[Array], cost: Cost, mode: Mode, check: str = "") -> Verdict:
    """Raise Fault unless the results are what the case says."""
    if call.verify is not None:
        _verify(call, got[0], check)
        return Verdict(None)
    expected = expect(call, cost)
    if len(got) == 2 * len(expected):
        expected = expected * 2
    if len(got) != len(expected):
        raise Fault(check or "shape", f"expected {len(expected)} results, got {len(got)}")
    free = call.free(*call.mapped(lambda o: o.decoded)) if call.free is not None else None
    exact, worst = call.exact and mode == "exact", None
    for want, have, tensor in zip(expected, got, setup.results, strict=True):
        verdict = compare(want, have, tensor.dtype, exact=exact, free=free, instead=call.instead, check=check)
        if verdict.ratio is not None:
            worst = max(worst or 0.0, verdict.ratio)
    return Verdict(worst)


def _verify(call: Call, got: Array, check: str) -> None:
    assert call.verify is not None
    try:
        call.verify(*call.mapped(lambda o: o.decoded), got)
    except AssertionError as error:
        raise Fault(check or "property", str(error)) from None


def try_call(lab: Lab, call: Call, mode: Mode) -> Observed:
    """All checks of one call; raises Fault, or whatever the backend raised."""
    setup = Setup(lab.backend, call)
    try:
        observed = Observed(setup.level, precision=setup.precision)
        make(call, mode, setup.precision, 0)
        if observed.level is Level.NONE:
            observed.why_not = setup.backend.supports(call.op, setup.specs).reason
            expect_unsupported(setup)
            _expect_no_more(lab, call, mode, setup.precision)
            return observed
        try:
            _check_runs(setup, call, mode, observed)
        except Declined as declined:
            observed.level, observed.why_not = Level.NONE, str(declined)
        return observed
    finally:
        setup.close()


def expect_unsupported(setup: Setup) -> None:
    """What a backend says it cannot do is refused before anything runs, with the right error."""
    setup.write()
    try:
        setup.run()
    except DeclaredUnsupportedError:
        return
    raise Fault("under-claimed", "supports() says no, and yet it ran")


def _expect_no_more(lab: Lab, call: Call, mode: Mode, precision: Precision) -> None:
    """Raise Fault if what a backend says it cannot do works: by core's composite, or by a kernel in Python."""
    backend, op = lab.backend, call.op
    if isinstance(backend, KernelBackend) and op in backend.kernels:
        level = KERNEL
    elif op.composite is not None:
        level = COMPOSITE
    else:
        return
    said = backend.supports
    vars(backend)["supports"] = lambda asked, specs: level if asked is op else said(asked, specs)
    try:
        setup = Setup(backend, call)
        try:
            if not any(result.size for result in setup.results):
                return  # that nothing comes out right proves nothing
            setup.write()
            judge(call, setup, setup.run(), cost_of(call, level.level, precision), mode)
        finally:
            setup.close()
    except Exception:  # noqa: BLE001 then it was right to say no
        return
    finally:
        del vars(backend)["supports"]
    raise Fault(
        "under-claimed", f"supports() says no, and yet its {level.level.value} gives the right result"
    )


def _check_runs(setup: Setup, call: Call, mode: Mode, observed: Observed) -> None:
    """The first run, the same again, and one with other data."""
    cost = cost_of(call, observed.level, setup.precision)
    setup.write()
    first = _claimed(setup)
    observed.note("result", judge(call, setup, first, cost, mode))
    _check_leaves(setup, first)
    if setup.backend.deterministic and not call.chance:
        setup.write(_written(call))
        again = setup.run()
        if any(a.tobytes() != b.tobytes() for a, b in zip(first, again, strict=True)):
            raise Fault(
                "repeat", "the same call gave other bits, though the backend declares itself deterministic"
            )
        observed.note("repeat")
    make(call, mode, setup.precision, 1)
    setup.write()
    other = setup.run()
    observed.note("replay", judge(call, setup, other, cost, mode, "replay"))
    _check_leaves(setup, other)


def _claimed(setup: Setup) -> list[Array]:
    """The first run of what a backend says it can do."""
    try:
        return setup.run()
    except (Fault, GuardZoneError):
        raise
    except UnsupportedOpError as error:
        # supports() sees operands alone: of a dtype that is an attribute, only the error can tell.
        if any(isinstance(arg, DType) and arg.is_quantized for arg in setup.call.args):
            raise Declined(str(error)) from None
        # Nor does it know which ops a composite comes down to with these attributes.
        opened = setup.level is Level.COMPOSITE or setup.call.op.inline
        if opened and isinstance(error, DeclaredUnsupportedError):
            raise Declined(str(error)) from None
        raise Fault("over-claimed", f"supports() says yes, and yet: {error}") from None
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise Fault("over-claimed", f"supports() says yes, and yet it raises {what}") from error


def _written(call: Call) -> list[Operand]:
    if call.op.writes is None:
        return []
    target = call.args[call.op.writes]
    assert isinstance(target, Operand)
    return [target]


def _check_leaves(setup: Setup, got: list[Array]) -> None:
    """Inputs are as they were; a written leaf has changed only where the result looks."""
    written = _written(setup.call)
    for operand, leaf in setup.leaves.items():
        if operand in written:
            if leaf.bytes() != operand.layout.embed(got[0]).tobytes():
                raise Fault(
                    "storage", f"{operand}: what was written is not what is stored, or lies outside its view"
                )
        elif leaf.bytes() != operand.bytes():
            raise Fault("inputs", f"the operand {operand} was changed")
    for tensor in setup.kept:
        operand = next(o for o, t in setup.tensors.items() if t is tensor)
        if tensor.bytes() != operand.stored.tobytes():
            raise Fault("inputs", f"the operand {operand}, an output too, was changed")


__all__ = ["Observed", "Setup", "cost_of", "decode", "expect", "judge", "make", "try_call"]
