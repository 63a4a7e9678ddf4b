"""One call tried on a backend, with the checks that apply to every call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backbay import (
    DeclaredUnsupportedError,
    DType,
    GuardZoneError,
    KernelBackend,
    Level,
    Op,
    Precision,
    RefusalError,
    ShapeError,
    Tensor,
    UnsupportedOpError,
)
from backbay.internals import COMPOSITE, KERNEL

from ..draw.data import Mode
from ..draw.draw import Draw
from ..draw.operand import Operand
from ..fault import Fault
from ..numbers.comparison import (
    MEASURES,
    ElementErrors,
    Extremes,
    WorstElement,
    first_bits,
    keep_worse,
    other_bits,
)
from ..numbers.encoding import Array, from_bytes
from ..suite.case import Call
from ..suite.lab import Lab
from .judgement import cost_of, element_at, judge
from .node_calls import kind_of
from .traced_call import TracedCall, make


class DeclinedCallError(Exception):
    """The backend refuses an optional call with the right error."""


@dataclass
class CallVerdict:
    """The checks that a call passed, and how near its worst error came to the bound."""

    level: Level = Level.KERNEL
    kind: str = ""  # op, dtypes, layouts and size classes, if the run imitates a model
    why_not: str = ""  # why the call is unsupported, or was refused, so that its composite ran
    ratio: float | None = None  # worst error / bound
    precision: Precision | None = None
    checks: list[str] = field(default_factory=list)
    extremes: Extremes = field(default_factory=dict)

    def note(self, check: str, errors: Sequence[ElementErrors] = ()) -> None:
        self.checks.append(check)
        if errors:
            self.ratio = max(self.ratio or 0.0, *(each.largest for each in errors))

    def note_errors(self, check: str, call: Call, errors: Sequence[ElementErrors], mode: Mode) -> None:
        self.note(check, errors)
        if mode == "hunt":
            self._note_worst(call, errors)

    def _note_worst(self, call: Call, errors: Sequence[ElementErrors]) -> None:
        """Note the elements with the largest errors, while the operands hold the data of the run."""
        for each in errors:
            if each.shares.size:
                sizes = each.shares, each.last_places()
                for measure, size in zip(MEASURES, sizes, strict=True):
                    place = tuple(map(int, np.unravel_index(size.argmax(), size.shape)))
                    share, last_places = (float(size[place]) for size in sizes)
                    if measure == "share" or last_places:
                        worst = WorstElement(share, last_places, element_at(call, place, each))
                        keep_worse(self.extremes, {measure: worst})


def try_call(lab: Lab, call: Call, mode: Mode) -> CallVerdict:
    """Run all checks of one call; raises Fault, or the backend's own error."""
    with TracedCall(lab.backend, call) as traced:
        observed = CallVerdict(traced.level, precision=traced.precision)
        if lab.model_calls:
            observed.kind = kind_of(call.op, traced.specs)
        make(call, mode, traced.precision, 0)
        if observed.level is Level.NONE:
            observed.why_not = traced.backend.supports(call.op, traced.specs).reason
            expect_unsupported(traced)
            _expect_no_more(lab, call, mode, traced.precision)
            return observed
        try:
            _check_runs(traced, call, mode, observed)
        except DeclinedCallError as declined:
            observed.level, observed.why_not = Level.NONE, str(declined)
        return observed


OpCall = tuple[Op[Any, Any], Call]


def try_calls(
    lab: Lab, draw: Draw, calls: Iterable[OpCall], mode: Mode | None = None, told: str = ""
) -> None:
    """Run all checks of a scenario's calls; without a mode, on integers if the results are exact."""
    for op, call in calls:
        call.op = op
        draw.note(f"{call}{told}")
        try_call(lab, call, mode or ("exact" if call.exact else "wide"))


def expect_unsupported(traced: TracedCall) -> None:
    """Raise Fault unless a call that `supports` declines raises the right error before anything runs."""
    traced.write()
    try:
        traced.run()
    except DeclaredUnsupportedError:
        return
    raise Fault("under-claimed", "supports() says no, but the call ran")


def _expect_no_more(lab: Lab, call: Call, mode: Mode, precision: Precision) -> None:
    """Raise Fault if a declined call works nevertheless, by core's composite or the backend's own kernel."""
    backend, op = lab.backend, call.op
    own = isinstance(backend, KernelBackend) and op in backend.kernels
    if not own and op.composite is None:
        return
    level, said = KERNEL if own else COMPOSITE, backend.supports
    vars(backend)["supports"] = lambda asked, specs: level if asked is op else said(asked, specs)
    try:
        with TracedCall(backend, call) as traced:
            if not any(result.size for result in traced.results):
                return  # an empty result proves nothing
            traced.write()
            judge(call, traced, traced.run(), cost_of(call, level.level, precision), mode)
    except Exception:  # noqa: BLE001 the call fails: supports() was right
        return
    finally:
        del vars(backend)["supports"]
    told = f"the op's {level.level.value} gives the right result"
    raise Fault("under-claimed", f"supports() says no, but {told}")


def _check_runs(traced: TracedCall, call: Call, mode: Mode, observed: CallVerdict) -> None:
    """A first run, the same run again, and a run with other data."""
    traced.write()
    first = _claimed(traced)
    precision = traced.precision
    observed.level, observed.precision, observed.why_not = traced.level, precision, traced.refusal
    cost = cost_of(call, observed.level, precision)
    observed.note_errors("result", call, judge(call, traced, first, cost, mode), mode)
    _check_leaves(traced, first)
    if traced.backend.deterministic and not call.chance:
        traced.write(_written(call))
        again = traced.run()
        for a, b, tensor in zip(first, again, traced.results, strict=True):
            if other_bits(a, b, tensor.dtype).any():
                told = "the same call gave different bits, but the backend declares itself deterministic"
                raise Fault("repeat", f"{told}: {first_bits(a, b, tensor.dtype)}")
        observed.note("repeat")
    make(call, mode, precision, 1)
    traced.write()
    other = traced.run()
    observed.note_errors("replay", call, judge(call, traced, other, cost, mode, "replay"), mode)
    _check_leaves(traced, other)


def _claimed(traced: TracedCall) -> list[Array]:
    """The first run of a call that `supports` accepts."""
    try:
        return traced.run()
    except (Fault, GuardZoneError):
        raise
    except RefusalError:
        for operand, leaf in traced.leaves.items():
            if leaf.bytes() != operand.bytes():
                raise Fault(
                    "storage", f"the call is refused, but has changed the operand {operand}"
                ) from None
        raise
    except UnsupportedOpError as error:
        # supports() sees only operands: the backend can refuse a dtype attribute only by an error.
        if any(isinstance(arg, DType) and arg.is_quantized for arg in traced.call.args):
            raise DeclinedCallError(str(error)) from None
        # Nor does supports() see which ops a composite calls with these attributes.
        opened = traced.level is Level.COMPOSITE or traced.call.op.inline
        if opened and isinstance(error, DeclaredUnsupportedError):
            raise DeclinedCallError(str(error)) from None
        raise Fault("over-claimed", f"supports() says yes, but: {error}") from error
    except NotImplementedError as error:
        raise Fault("over-claimed", f"supports() says yes, but: NotImplementedError: {error}") from error
    except ShapeError as error:  # tracing accepted the call's shapes: the kernel's result has another one
        raise Fault("shape", str(error)) from None
    except Exception as error:
        raise Fault("raised", f"{type(error).__name__}: {error}") from error


def _written(call: Call) -> list[Operand]:
    if call.op.writes is None:
        return []
    target = call.args[call.op.writes]
    assert isinstance(target, Operand)
    return [target]


def _check_leaves(traced: TracedCall, got: list[Array]) -> None:
    """Raise Fault unless inputs are unchanged, and a written leaf has changed only within the result's view."""
    written = _written(traced.call)
    for operand, leaf in traced.leaves.items():
        if operand in written:
            held = operand.layout.embed(got[0])
            if leaf.bytes() != held.tobytes():
                told = f"{operand}: the leaf lacks written elements, or has changed outside of the view"
                raise Fault("storage", f"{told}: {_changed(held.tobytes(), leaf)}")
        elif leaf.bytes() != operand.bytes():
            raise Fault("inputs", f"the operand {operand} was changed: {_changed(operand.bytes(), leaf)}")
    for tensor in traced.kept:
        operand = next(o for o, t in traced.tensors.items() if t is tensor)
        found = from_bytes(tensor.bytes(), tensor.dtype, tensor.shape)
        # All NaN are equal: a transpose by products makes new ones.
        if other_bits(operand.stored, found, tensor.dtype).any():
            told = f"the operand {operand}, also an output, was changed"
            raise Fault("inputs", f"{told}: {first_bits(operand.stored, found, tensor.dtype)}")


def _changed(before: bytes, tensor: Tensor) -> str:
    """The first element whose bits differ, with both numbers and bits: two NaN, or two zeros, look alike."""
    was, found = (from_bytes(data, tensor.dtype, tensor.shape) for data in (before, tensor.bytes()))
    return first_bits(was, found, tensor.dtype)
