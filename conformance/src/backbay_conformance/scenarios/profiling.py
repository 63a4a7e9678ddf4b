"""A compute that is profiled: right results, and times that fit into their runs."""

from __future__ import annotations

from collections.abc import Collection

from backbay.internals import ProfiledRun

from ..draw.draw import Draw
from ..fault import require
from ..machines.shadow import ShadowGraph
from ..suite.lab import Lab, scenario
from .graphs import PEAK, chosen, forward, grow, numbers

PROFILES, RUNS = 2, 2
CLOCKS = 1e-4  # seconds by which the clocks of a backend and of core may differ


@scenario("graph", tiny=1, smoke=2, default=16, nightly=100)
def a_profiled_compute(lab: Lab, draw: Draw) -> None:
    """Profile a graph between two computes as ever: results are right each time, times fit into their runs."""
    with lab.backend.new_context() as ctx:
        wiring = ShadowGraph(ctx)
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
        require(len(runs) == RUNS, f"{len(runs)} runs were profiled, not {RUNS}", check="values")
        for run in runs:
            check_times(run, devices)
    timed = {bool(run.timings) for runs in profiles for run in runs}
    told = "some profiled runs of a graph tell times of its ops, and some tell none"
    require(len(timed) < 2, told, check="values")


def check_times(run: ProfiledRun, devices: Collection[str]) -> None:
    """Raise Fault unless the times are of ops of the graph, on devices of the backend, and do not overlap."""
    total, nodes = sum(timing.seconds for timing in run.timings), run.graph.nodes
    told = f"the times of a profiled run sum up to {total} s, and the run took {run.seconds} s"
    require(total <= run.seconds + CLOCKS, told, check="values")
    for timing in run.timings:
        require(
            timing.seconds >= 0, f"a profile tells a time of {timing.seconds} s: {timing}", check="values"
        )
        told = f"a profile names the device {timing.device!r}, which is none of {sorted(devices)}"
        require(timing.device in devices, told, check="values")
        for index in timing.nodes:
            known = 0 <= index < len(nodes) and nodes[index].op is not None
            require(
                known,
                f"a profile tells the time of node {index}, which is no op of the graph",
                check="values",
            )
