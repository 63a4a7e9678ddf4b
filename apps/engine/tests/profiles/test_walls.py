"""The rates of this machine, beside which a profile shows its times."""

from __future__ import annotations

from dataclasses import replace

import pytest

import backbay
from backbay import DType
from backbay.plugin import Timing
from backbay_engine.profiles import PeakRates, measure_peak_rates
from backbay_engine.profiles.measurement import raise_rates


def test_the_least_time_is_that_of_the_slower_wall() -> None:
    walls = PeakRates(reading=100.0, multiplying=1000.0)
    assert walls.seconds(50, 100) == 0.5
    assert walls.seconds(50, 2000) == 2.0


def test_rates_are_measured() -> None:
    walls = measure_peak_rates(2)
    assert 1e7 < walls.reading < 1e13 and 1e7 < walls.multiplying < 1e15


@pytest.mark.parametrize(
    ("seconds", "device", "multiplying"),
    [
        ([0.5], "CPU:0", 2 * 64 * 10 * 3),
        ([0.125, 0.375], "CPU:0", 2 * 64 * 10 * 3),
        ([0.5], "GPU:0", 7.0),
        ([1e-4], "CPU:0", 7.0),
        ([500.0], "CPU:0", 7.0),
    ],
)
def test_a_long_product_on_the_host_raises_the_wall(seconds, device, multiplying) -> None:
    with backbay.open(None, "cpu_ref") as backend, backend.new_context() as ctx:
        y = ctx.zeros(DType.F32, 64, 10).mulmat(ctx, ctx.zeros(DType.F32, 64, 3))
        with backend.profiling() as runs:
            ctx.compute(y)
    nodes = runs[0].timings[0].nodes
    run = replace(runs[0], timings=tuple(Timing(nodes, part, device) for part in seconds))
    assert raise_rates(PeakRates(1.0, 7.0), [run], "CPU:0") == PeakRates(1.0, multiplying)
