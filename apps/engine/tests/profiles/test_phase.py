"""Lines of a profile: times and work of one step, summed up by op, layer and device."""

from __future__ import annotations

from dataclasses import replace

import pytest

import backbay
from backbay import DType
from backbay.internals import ProfiledRun
from backbay.plugin import Timing
from backbay_engine.profiles import PeakRates
from backbay_engine.profiles.phase import OTHER, UNTOLD, ProfilePhase, ProfileRuns, ProfileSetup, phase_of

MACHINE = ProfileSetup(blocks=2, host="CPU:0", walls=PeakRates(reading=1000.0, multiplying=1e6))


@pytest.fixture(scope="module")
def run() -> ProfiledRun:
    """A run of two ops, the second in layer 1."""
    with backbay.open(None, "cpu_ref") as backend, backend.new_context() as ctx:
        x = ctx.zeros(DType.F32, 10)
        y = x.neg(ctx.input()).exp(ctx.layer(1))
        with backend.profiling() as runs:
            ctx.compute(y)
    return runs[0]


def phase(run: ProfiledRun, *timings: Timing, steps: int = 1, runs: int = 1) -> ProfilePhase:
    timed = replace(run, seconds=1.0, timings=timings)
    return phase_of("a step", 0.9, ProfileRuns(steps, 1.5, [timed] * runs), MACHINE)


def test_times_add_up_by_op_by_layer_and_by_device(run: ProfiledRun) -> None:
    found = phase(run, Timing((1,), 0.25, "CPU:0"), Timing((2,), 0.5, "GPU:0"))
    assert {name: line.seconds for name, line in found.ops.items()} == {"neg": 0.25, "exp": 0.5}
    assert {name: line.seconds for name, line in found.layers.items()} == {"input": 0.25, "1": 0.5}
    assert {name: line.seconds for name, line in found.devices.items()} == {"CPU:0": 0.25, "GPU:0": 0.5}
    assert (found.usual, found.step, found.backend, found.told) == (0.9, 1.5, 1.0, 0.75)


def test_only_what_ran_on_the_host_has_a_share_of_the_wall(run: ProfiledRun) -> None:
    found = phase(run, Timing((1,), 0.4, "CPU:0"), Timing((2,), 0.5, "GPU:0"))
    assert found.ops["neg"].nbytes == 80  # 0.08 s at 1000 bytes a second
    assert found.ops["neg"].wall_share == pytest.approx(0.2)
    assert found.ops["exp"].wall_share is None


def test_a_node_with_several_times_counts_once(run: ProfiledRun) -> None:
    found = phase(run, Timing((1,), 0.25, "CPU:0"), Timing((1,), 0.25, "CPU:0"))
    line = found.ops["neg"]
    assert (line.calls, line.seconds, line.nbytes) == (1, 0.5, 80)


def test_nodes_that_ran_as_one_share_a_line_and_work_of_no_node_has_its_own(run: ProfiledRun) -> None:
    found = phase(run, Timing((1, 2), 0.5, "CPU:0"), Timing((), 0.125, "CPU:0"))
    assert {name: (line.calls, line.seconds) for name, line in found.ops.items()} == {
        "neg + exp": (2, 0.5),
        OTHER: (0, 0.125),
    }
    assert set(found.layers) == {"input + 1", OTHER}


def test_lines_are_of_one_step(run: ProfiledRun) -> None:
    found = phase(run, Timing((1,), 0.25, "CPU:0"), steps=4, runs=4)
    assert (found.ops["neg"].calls, found.ops["neg"].seconds, found.told) == (1, 0.25, 0.25)
    whole = phase(run, Timing((1,), 0.25, "CPU:0"), steps=1, runs=4)  # such as a prompt in four runs
    assert (whole.ops["neg"].calls, whole.ops["neg"].seconds, whole.backend) == (4, 1.0, 4.0)


def test_a_backend_that_tells_no_times_of_ops_gives_those_of_runs(run: ProfiledRun) -> None:
    found = phase(run)
    assert not found.tells_ops
    (line,) = found.ops.values()
    assert (line.calls, line.seconds, found.told) == (2, 1.0, 0.0)
    assert list(found.ops) == list(found.layers) == [UNTOLD]
    assert list(found.devices) == ["CPU:0"]
