"""Trials of devices: what they find, what dies in them, and what doctor says of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from patience import wait_until

from backbay import BackendParams, DType, GPULayersList, Precision, Spec, Tensor, ops
from backbay_ggml import Ggml, doctor
from backbay_ggml.device_trial_child import (
    ATTENDED,
    MEASURED,
    DeviceTrial,
    expert_product,
    step_outcome,
    trial_steps,
)
from backbay_ggml.devices import device, device_trial
from backbay_ggml.devices.device_trial import DeviceVerdict, run_trial
from backbay_ggml.devices.trial_cases import CASES, PLAIN
from backbay_ggml.library.library import load_library
from backbay_ggml.lowering.support import op_precision

ON_CPU = BackendParams(gpu_layers=GPULayersList([]), num_threads=2)
BLOCKS = (DType.Q8_1, DType.Q8_K)


@pytest.fixture
def trial(without_native) -> Iterator[DeviceTrial]:
    """The CPU in place of a device."""
    with Ggml(None, ON_CPU) as made, Ggml(None, ON_CPU) as cpu:
        yield DeviceTrial(made, cpu)


def test_the_cpu_passes_its_own_trial(trial) -> None:
    found = {name: step_outcome(step) for name, step in trial_steps(trial) if name in CASES}
    assert found == {name: {"result": ""} for name in CASES}


@pytest.mark.parametrize("dtype", MEASURED)
def test_measured_products_are_as_exact_as_the_cpu_declares(trial, dtype) -> None:
    declared = op_precision(load_library(), ops.mulmat, [Spec(dtype, (512, 8)), None], flash=True)
    assert trial.product(dtype, Tensor.mulmat) == in_codes(declared)
    assert trial.product(dtype, expert_product) == in_codes(declared)


@pytest.mark.parametrize("dtype", ATTENDED)
def test_measured_attention_is_as_exact_as_the_cpu_declares(trial, dtype) -> None:
    cache = Spec(dtype, (64, 2, 512))
    specs = [Spec(DType.F32, (64, 4, 1)), cache, cache, None, None, None]
    declared = op_precision(load_library(), ops.scaled_dot_product_attention, specs, flash=True)
    assert trial.attention(dtype) == in_codes(declared)


def in_codes(declared: Precision) -> tuple[DType, DType]:
    """All codes of 8 bits look alike."""
    return DType.Q8_0 if declared.activation in BLOCKS else declared.activation, declared.accumulate


def test_a_wrong_result_is_told(trial, monkeypatch) -> None:
    monkeypatch.setitem(
        CASES, "odd", lambda b: b.leaf(b.numbers(4)).scale(b.ctx, 1.0 + (b.ctx.backend is trial._device))
    )
    assert "in place of" in trial.wrong("odd")


def test_an_error_is_the_result_of_a_step() -> None:
    assert step_outcome(lambda: 1 / 0) == {"error": "ZeroDivisionError: division by zero"}


# -- the child ---------------------------------------------------------------------------------------------


def dying_at(*deaths: int, of: int = 4) -> str:
    """A child that runs some steps, and dies at those with these numbers; the first is the plain product."""
    return f"""
import json, os, sys
for number in range(int(sys.argv[1]), {of}):
    print(json.dumps({{"begun": "{PLAIN}" if number == 0 else f"case {{number}}", "number": number, "of": {of}}}), flush=True)
    if number in {deaths}:
        print("GGML_ASSERT failed", file=sys.stderr, flush=True)
        os.abort()
    print(json.dumps({{"result": ["f16", "f32"] if number == 3 else ""}}), flush=True)
"""


@pytest.fixture
def child(monkeypatch):
    def be(source: str) -> None:
        monkeypatch.setattr(
            device_trial, "_command", lambda device, first: [sys.executable, "-c", source, str(first)]
        )

    return be


def test_a_child_that_dies_is_started_again_at_the_next_case(child) -> None:
    child(dying_at(1, 2))
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert lasts
    assert verdict.wrong == dict.fromkeys(["case 1", "case 2"], "SIGABRT: GGML_ASSERT failed")
    assert verdict.takes(PLAIN)
    assert not verdict.takes("case 1")
    assert not verdict.takes("never tried")
    assert verdict.measured("case {}", 3) == Precision(DType.F16, DType.F32)


def test_what_a_kernel_prints_is_no_part_of_a_trials_report(child) -> None:
    child(f"""
import os
from backbay.plugin import reporter
tell = reporter()
for number, case in enumerate(["{PLAIN}", "noisy"]):
    tell(begun=case, number=number, of=2)
    os.write(1, b"ERROR: this kernel has no code for the device\\n")
    tell(result="")
""")
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert (verdict.wrong, verdict.tried, lasts) == ({}, (PLAIN, "noisy"), True)


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGBUS"])
def test_a_trial_that_was_killed_from_outside_is_not_remembered(child, signal) -> None:
    child(dying_at(1).replace("os.abort()", f"os.kill(os.getpid(), __import__('signal').{signal})"))
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.wrong == {"case 1": f"{signal}: GGML_ASSERT failed"}
    assert not lasts


@pytest.mark.parametrize("said", ["std::bad_alloc", "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"])
def test_a_trial_that_got_no_memory_is_not_remembered(child, said) -> None:
    child(dying_at(1).replace("GGML_ASSERT failed", said))
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.wrong == {"case 1": f"SIGABRT: {said}"}
    assert not lasts


def test_a_case_that_raised_for_want_of_memory_is_not_remembered(child) -> None:
    child(
        dying_at(of=4).replace(
            '{"result": ["f16", "f32"] if number == 3 else ""}',
            '{"error": "NoMemoryError: full"} if number == 1 else {"result": ""}',
        )
    )
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.wrong == {"case 1": "NoMemoryError: full"}
    assert not lasts


def test_a_device_without_a_product_is_refused_and_tried_again_by_the_next_process(child) -> None:
    child(dying_at(0))
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.why_not == "a product on it fails: SIGABRT: GGML_ASSERT failed"
    assert not lasts


def test_a_child_that_says_nothing_is_a_reason(child) -> None:
    child("import sys; sys.exit('no driver')")
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.why_not == "a product on it fails: exit status 1: no driver"
    assert not lasts


def test_a_verdict_is_kept_for_later_processes(child, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device_trial, "_known", {})
    library = load_library()
    assert not device_trial.is_known(library, "FAST card")
    child(dying_at(1))
    first = device_trial.verdict_of(library, "FAST:0", "FAST card")
    device_trial._known.clear()
    child("raise SystemExit('tried again')")
    assert device_trial.is_known(library, "FAST card")
    assert device_trial.verdict_of(library, "FAST:0", "FAST card") == first


def test_who_comes_while_a_device_is_tried_waits_for_the_verdict(
    child, monkeypatch, tmp_path, caplog
) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device_trial, "_known", {})
    monkeypatch.setattr(device_trial, "NEWS", 0.1)
    tries, go_on = tmp_path / "tries", tmp_path / "go on"
    child(
        f"import os, time; open({str(tries)!r}, 'a').write('|')\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n{dying_at()}"
    )
    library = load_library()
    with ThreadPoolExecutor(2) as both:
        tried = [both.submit(device_trial.verdict_of, library, "FAST:0", "FAST card") for _ in range(2)]
        wait_until(lambda: "waiting for another process that tries FAST:0, for" in caplog.text)
        go_on.touch()
        first, second = (each.result() for each in tried)
    assert first == second
    assert tries.read_text() == "|"


def test_a_verdict_in_which_a_case_was_late_is_kept_for_a_day(child, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    library, ahead, now = load_library(), [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead[0])
    for description, ending in (("late", "'Timeout (0:05:00)!'"), ("crashed", "'GGML_ASSERT failed'")):
        monkeypatch.setattr(device_trial, "_known", {})
        child(dying_at(1).replace('"GGML_ASSERT failed"', ending))
        device_trial.verdict_of(library, "FAST:0", description)
    device_trial._known.clear()
    assert device_trial.is_known(library, "late")
    ahead[0] = 86500
    assert not device_trial.is_known(library, "late")
    assert device_trial.is_known(library, "crashed")


def test_a_refused_device_is_left_out_and_doctor_says_why(monkeypatch, caplog) -> None:
    library = load_library()
    refused = DeviceVerdict("a product on it fails: SIGSEGV")
    for module in (device, doctor):
        monkeypatch.setattr(module, "tried_gpus", lambda library: [("FAST:0", library.cpu, refused)])
    for _ in range(2):  # the log tells it once
        assert [each.id for each in device.find_devices(library, ())] == ["CPU:0"]
    assert caplog.messages == ["FAST:0 is not used: a product on it fails: SIGSEGV"]
    assert doctor.why_no_gpu(library) == "FAST:0 fails its trial: a product on it fails: SIGSEGV"


# -- doctor ------------------------------------------------------------------------------------------------


def test_doctor_tells_why_there_is_no_gpu(monkeypatch) -> None:
    library, reported = load_library(), {}
    monkeypatch.setattr(doctor, "tried_gpus", lambda library: [])
    monkeypatch.setattr(doctor, "_kinds", lambda library: {"Vulkan": None})
    monkeypatch.setattr(
        doctor, "_reported", lambda library, added={}, without={}: reported.get((*added, *without), "")
    )
    monkeypatch.setattr(doctor, "DRIVERS", {})
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES", raising=False)
    assert "no driver reports a device" in doctor.why_no_gpu(library)
    reported["GGML_VK_VISIBLE_DEVICES",] = "a card"
    assert "ggml passes over a card, a CPU" in doctor.why_no_gpu(library)
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "7")
    assert doctor.why_no_gpu(library) == "Vulkan: a card is hidden by GGML_VK_VISIBLE_DEVICES=7"


def test_doctor_tells_a_missing_driver_from_another_missing_library(monkeypatch, tmp_path) -> None:
    library, path = load_library(), tmp_path / "libggml-cuda.so"
    path.write_bytes(b"no library")
    monkeypatch.setattr(doctor, "tried_gpus", lambda library: [])
    monkeypatch.setattr(doctor, "_kinds", lambda library: {"CUDA": path})
    monkeypatch.setattr(doctor, "DRIVERS", {"CUDA": "libno-driver.so.1"})
    told = doctor.why_no_gpu(library)
    assert told.startswith("CUDA: its driver is not installed: libno-driver.so.1")
    monkeypatch.setattr(doctor, "DRIVERS", {"CUDA": str(library.path)})  # some library that can be loaded
    told = doctor.why_no_gpu(library)
    assert told.startswith(f"CUDA: the code for it cannot be loaded: {path}")
    assert "LD_LIBRARY_PATH" in told
