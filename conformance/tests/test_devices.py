"""Runs with options and on devices: both are part of reports, replay files and programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import conform

from backbay import DType, OptionError, Spec, ops
from backbay_conformance import lab_for, run
from backbay_conformance.checks.traced_call import precision_of

TWO_DEVICES = "broken_backends:TwoDevices"
FAR = ("broken_backends:OnlyFar", "--size", "smoke", "--op", "tanh")


def test_everything_is_placed_on_the_device() -> None:
    with lab_for(TWO_DEVICES, device="Far:0").fresh() as backend:
        assert [str(gpu) for gpu in backend.params.gpu_layers or ()] == ["ID:Far:0 Layers:1(0..0)"]
    with lab_for(TWO_DEVICES, device="CPU:0").fresh() as backend:
        assert backend.params.gpu_layers == []
    with pytest.raises(OptionError, match=r"no device 'Near:0'.*CPU:0, Far:0"):
        lab_for(TWO_DEVICES, device="Near:0").fresh()


def test_the_leaves_of_a_call_lie_on_the_device() -> None:
    """Leaves of no layer lie on the host, and ops run where their operands lie."""
    for device, layer in (("Far:0", 0), ("CPU:0", None)):
        with lab_for(TWO_DEVICES, device=device).fresh() as backend, backend.new_context() as ctx:
            leaf = ctx.zeros(DType.F32, 4).leaf
            assert leaf is not None
            assert leaf.placement.layer == layer
            assert ctx.layer(1).placement.layer == 1
            assert ctx.input().placement.layer is None


def test_a_call_is_judged_by_the_precision_of_its_device() -> None:
    x = Spec(DType.F32, (4,))
    for device, activation in (("CPU:0", DType.F32), ("Far:0", DType.F16)):
        with lab_for(TWO_DEVICES, device=device).fresh() as backend:
            assert precision_of(backend, ops.mul, [x, x]).activation is activation
            assert precision_of(backend, ops.add, [x, x]).activation is DType.F32


def test_a_failure_carries_the_options_and_the_device(tmp_path: Path) -> None:
    assert conform(*FAR) == 0
    assert conform(*FAR, "--device", "Far:0") == 0
    wrong = (*FAR, "--device", "Far:0", "--option", "speed=2", "--failures", str(tmp_path))
    assert conform(*wrong) == 1
    one = next(path for path in tmp_path.iterdir() if json.loads(path.read_text())["check"] == "bound")
    assert conform("--trust", "--repro", str(one)) == 1
    assert conform(FAR[0], "--repro", str(one), "--option", "speed=1") == 0
    assert conform("--trust", "--repro", str(one), "--device", "CPU:0") == 0


def test_the_program_of_a_failure_opens_the_backend_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(
        FAR[0],
        ops=["tanh"],
        size="smoke",
        in_process=False,
        options={"speed": 2},
        device="Far:0",
        stop_after=1,
    )
    program = report.failures[0].script
    assert "options={'speed': 2}" in program
    assert "backbay.GPULayers('Far:0', [0])" in program
    assert ".new_context().layer(0)" in program
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    got, expected = done.stdout.split("expected")
    assert got.strip() != expected.strip()
    assert report.title == "broken_backends:OnlyFar (speed=2, on Far:0)"


def test_each_device_has_a_run_and_a_report(tmp_path: Path) -> None:
    words = ("--devices", "--option", "speed=2", "--json", str(tmp_path / "report.json"))
    assert conform(*FAR, *words) == 1
    reports = {path.stem: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert {name: report["ok"] for name, report in reports.items()} == {
        "report-CPU0": True,
        "report-Far0": False,
    }
    assert reports["report-Far0"]["opening"] == {"options": {"speed": "2"}, "device": "Far:0"}


def test_a_certificate_names_the_device(tmp_path: Path) -> None:
    words = ("broken_backends:TwoDevices", "--profile", "core", "--op", "add", "--device", "Far:0")
    assert conform(*words, "--json", str(tmp_path / "report.json")) == 0
    assert json.loads((tmp_path / "report.json").read_text())["facts"]["device"] == "Far:0"
