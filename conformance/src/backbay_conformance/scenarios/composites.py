"""Core's composites on a backend's kernels, even for ops with a kernel of their own."""

from __future__ import annotations

from backbay import Level
from backbay.plugin import composite_kernels

from ..checks.judgement import cost_of, judge
from ..checks.traced_call import TracedCall, make
from ..draw.draw import MODES, Draw
from ..suite.case import CASES, Call, Case
from ..suite.lab import Lab
from ..suite.scenario import scenario


def composed() -> list[Case]:
    """The cases of ops with a composite, except inline ops, views and writes."""
    kinds = [case for case in CASES.values() if case.op.composite is not None]
    return [case for case in kinds if not (case.op.inline or case.op.view or case.op.writes is not None)]


@scenario("graph", tiny=1, smoke=20, default=200, nightly=2000)
def composites(lab: Lab, draw: Draw) -> None:
    """An op with both a kernel and a composite gives the right result by its composite as well.

    A fault lies in the kernels that the composite uses; the op's own case tests the op's kernel.
    """
    cases = composed()
    case, turn = cases[draw.turn % len(cases)], draw.turn // len(cases)
    draw.turn = (
        turn // 2 * len(MODES) + turn % 2
    )  # exact and wide data; composites need not keep special values
    call = case.draw(draw)
    traced = TracedCall(lab.backend, call, composed=True)
    try:
        if traced.level is Level.KERNEL:  # else the op's own case runs the composite
            _compare(call, traced, draw)
    finally:
        traced.close()


def _compare(call: Call, traced: TracedCall, draw: Draw) -> None:
    parts = [op for op, _ in composite_kernels(call.op, traced.args, traced.backend.supports)]
    draw.note(f"{call} made of {', '.join(sorted({op.name for op in parts}))}")
    make(call, draw.mode, traced.precision, 0)
    traced.write()
    judge(call, traced, traced.run(), cost_of(call, Level.COMPOSITE, traced.precision), "wide", "composed")
