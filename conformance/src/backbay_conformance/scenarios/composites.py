"""Core's composites on the kernels of a backend: what it would run if it had no kernel of its own for an op."""

from __future__ import annotations

from backbay import Level

from ..blame import blamed
from ..case import CASES, Call, Case
from ..declared import parts_of
from ..draw import MODES, Draw
from ..lab import Lab
from ..oracles import Fault
from ..scenario import scenario
from ..trial import Setup, cost_of, judge, make


def composed() -> list[Case]:
    """The cases of ops that have a composite, but for those that are always opened, views and writes."""
    kinds = [case for case in CASES.values() if case.op.composite is not None]
    return [case for case in kinds if not (case.op.inline or case.op.view or case.op.writes is not None)]


@scenario("graph", smoke=20, default=200, nightly=2000)
def composites(lab: Lab, draw: Draw) -> None:
    """Each op that has both gives by its composite what its kernel must give.

    A fault is that of the parts, which are named: the op's own case says whether its kernel is right.
    """
    cases = composed()
    case, turn = cases[draw.turn % len(cases)], draw.turn // len(cases)
    draw.turn = (
        turn // 2 * len(MODES) + turn % 2
    )  # exact and wide data; composites need not keep special values
    call = case.draw(draw)
    setup = Setup(lab.backend, call, composed=True)
    try:
        if setup.level is Level.KERNEL:  # else its own case has run the composite
            _compare(lab, call, setup, draw)
    finally:
        setup.close()


def _compare(lab: Lab, call: Call, setup: Setup, draw: Draw) -> None:
    parts = [op for op, _ in parts_of(setup.backend, setup.ctx, call.op, setup.args)]
    draw.note(f"{call} made of {', '.join(sorted({op.name for op in parts}))}")
    make(call, draw.mode, setup.precision, 0)
    setup.write()
    try:
        judge(call, setup, setup.run(), cost_of(call, Level.COMPOSITE, setup.precision), "wide", "composed")
    except Fault as fault:
        raise blamed(lab, fault, parts) from None
