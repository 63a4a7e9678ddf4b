"""Profiles: a graph that is profiled computes what it always does, and its times are those of its ops."""

from __future__ import annotations

from collections.abc import Collection

from backbay.plugin import ProfiledRun

from ..draw.draw import Draw
from ..machines.wiring import Wiring
from ..numbers.comparison import Fault
from ..suite.lab import Lab
from ..suite.scenario import scenario
from .graphs import PEAK, chosen, forward, grow, numbers

PROFILES, RUNS = 2, 2
CLOCKS = 1e-4
"""Seconds by which the clocks of a backend and of core may differ."""


@scenario("graph", tiny=1, smoke=2, default=16, nightly=100)
def a_profiled_compute(lab: Lab, draw: Draw) -> None:
    """Profile a graph between two computes as ever: results are right each time, times fit into their runs."""
    with lab.backend.new_context() as ctx:
        wiring = Wiring(ctx)
        n, m = draw.pick(4, 1, 17, 32), draw.pick(3, 1, 16)
        leaf = wiring.leaf(numbers(draw, (n, m)), 9)
        states = [wiring.leaf(numbers(draw, (n, m + draw.below(3))), PEAK) for _ in range(draw.below(3))]
        grow(draw, wiring, states, 12)
        outputs = chosen(draw, wiring)
        forward(draw, wiring, outputs)
        if draw.flag():
            wiring.check(outputs, states, "before a profile")
        profiles = []
        for profile in range(PROFILES):
            with lab.backend.profiling() as runs:
                for number in range(RUNS):
                    wiring.rewrite(leaf, numbers(draw, leaf.shape))
                    wiring.check(outputs, states, f"profile {profile}, run {number}")
            profiles.append(runs)
        wiring.rewrite(leaf, numbers(draw, leaf.shape))
        wiring.check(outputs, states, "after a profile")
    devices = {device.id for device in lab.backend.devices()}
    for runs in profiles:
        if len(runs) != RUNS:
            raise Fault("values", f"{len(runs)} runs were profiled, not {RUNS}")
        for run in runs:
            check_times(run, devices)
    if len({bool(run.timings) for runs in profiles for run in runs}) > 1:
        raise Fault("values", "some profiled runs of a graph tell times of its ops, and some tell none")


def check_times(run: ProfiledRun, devices: Collection[str]) -> None:
    """Raise Fault unless the times are of ops of the graph, on devices of the backend, and do not overlap."""
    total = sum(timing.seconds for timing in run.timings)
    if total > run.seconds + CLOCKS:
        raise Fault(
            "values", f"the times of a profiled run sum up to {total} s, and the run took {run.seconds} s"
        )
    for timing in run.timings:
        if not timing.seconds >= 0:
            raise Fault("values", f"a profile tells a time of {timing.seconds} s: {timing}")
        if timing.device not in devices:
            raise Fault(
                "values", f"a profile names the device {timing.device!r}, which is none of {sorted(devices)}"
            )
        for index in timing.nodes:
            if not 0 <= index < len(run.graph.nodes) or run.graph.nodes[index].op is None:
                raise Fault(
                    "values", f"a profile tells the time of node {index}, which is no op of the graph"
                )
