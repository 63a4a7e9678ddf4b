"""Native code: found, tried in a process of its own, and turned off."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import backbay
from backbay import BackendUnavailableError, DType
from backbay_onnx.session import native as module
from backbay_onnx.session import native_trial
from backbay_onnx.session.doctor import diagnose
from backbay_onnx.session.native import (
    ATTENTION,
    FORMATS,
    OFF,
    PRODUCTS,
    PURPOSES,
    STEM,
    TILES,
    VARIABLE,
    WITH_TILES,
    NativeCode,
    instructions,
    native_code,
    why_not_native,
)

FAULTY = """
#include <csignal>
extern "C" const char *backbay_products_instructions() { return "none"; }
extern "C" const char *backbay_attention_instructions() { return nullptr; }
extern "C" const char *backbay_gates_instructions() { return nullptr; }
extern "C" const char *backbay_recurrence_instructions() { return nullptr; }
extern "C" int backbay_products_takes(int) { return 1; }
extern "C" void *RegisterCustomOps(void *, void *) { FAULT; return nullptr; }
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What was found is forgotten before a test and after it."""
    monkeypatch.setenv("BACKBAY_NO_CACHE", "1")
    native_code.cache_clear()
    why_not_native.cache_clear()
    yield
    native_code.cache_clear()
    why_not_native.cache_clear()


@pytest.fixture
def any_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kind of CPU is forced."""
    monkeypatch.delenv("BACKBAY_CPU", raising=False)


def faulty(folder: Path, fault: str) -> Path:
    """A library whose custom ops do not work."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (folder / "faulty.cpp").write_text(FAULTY.replace("FAULT", fault))
    target = folder / f"{STEM}.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "faulty.cpp"), "-o", str(target)], check=True)
    return target


@pytest.mark.usefixtures("any_cpu")
@pytest.mark.fault(
    "native code that crashes on this processor, in the onnx backend", "ONNX Runtime's own code computes"
)
def test_only_the_child_process_dies_of_code_that_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(faulty(tmp_path, "raise(SIGILL)")))
    assert "SIGILL" in why_not_native(PRODUCTS)
    assert native_code() is None
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        y = ctx.from_floats([1.0, 2.0], 2).neg(ctx)
        ctx.compute(y)
        np.testing.assert_array_equal(y.floats(), [-1, -2])


@pytest.mark.usefixtures("any_cpu")
def test_code_without_the_ops_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(faulty(tmp_path, "")))
    assert why_not_native(PRODUCTS).startswith("the faster native code ended")
    assert native_code() is None


@pytest.mark.fault(
    "native code that computes wrongly on this processor, in the onnx backend",
    "ONNX Runtime's own code computes",
)
@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.few(2)
def test_a_trial_tells_wrong_results(
    purpose: str, native: NativeCode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert native_trial.main(str(native.path), purpose) == 0
    assert capsys.readouterr().out == ""
    right = native_trial.run

    def wrong(*given):
        return [
            np.where(np.arange(found.size).reshape(found.shape) == 5, 9, found) for found in right(*given)
        ]

    monkeypatch.setattr(native_trial, "run", wrong)
    assert native_trial.main(str(native.path), purpose) == 0
    assert capsys.readouterr().out == "wrong results"


@pytest.mark.fault(
    "a damaged library of native code for the onnx backend", "ONNX Runtime's own code computes"
)
def test_a_damaged_library_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / f"{STEM}.so"
    damaged.write_bytes(b"no library")
    monkeypatch.setenv(VARIABLE, str(damaged))
    assert "cannot be loaded" in why_not_native(PRODUCTS)
    assert native_code() is None


def test_the_environment_turns_native_code_off_and_doctor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, OFF)
    assert native_code() is None
    told = diagnose([])
    for line in ("products of quantized weights", "attention", "gates", "recurrences"):
        assert told[line] == f"by ONNX Runtime: {VARIABLE}=0 turns it off"


def test_a_file_that_is_missing_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(module, "DISTRIBUTION", "no-such-distribution")
    assert "pip install" in why_not_native(PRODUCTS)
    assert native_code() is None


def test_a_named_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "typo.so"))
    assert why_not_native(PRODUCTS) == f"{VARIABLE} names {tmp_path / 'typo.so'}, and there is no such file"


def test_code_that_does_not_heed_the_kind_of_cpu_that_is_asked_for_is_refused(
    native: NativeCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded code has read the variable before."""
    loaded = instructions(native.path, PRODUCTS)
    monkeypatch.setenv("BACKBAY_CPU", "avx512" if loaded == "AVX2" else "avx2")
    why_not_native.cache_clear()
    with pytest.raises(BackendUnavailableError, match=f"takes {loaded}: .* too old to heed BACKBAY_CPU"):
        why_not_native(ATTENTION)


def test_a_name_without_a_folder_is_a_file_of_this_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine.so").write_bytes(b"no library")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "mine.so")
    assert str(tmp_path / "mine.so") in why_not_native(PRODUCTS)


def test_a_trial_is_remembered_for_its_file(
    native: NativeCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE")
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    why_not_native.cache_clear()
    assert why_not_native(PRODUCTS) == ""
    why_not_native.cache_clear()
    monkeypatch.setattr(
        "backbay.backend.library_trials.run_helper", lambda *_, **__: pytest.fail("it was tried again")
    )
    assert why_not_native(PRODUCTS) == ""
    assert native.path.is_file()


def test_tiles_that_take_more_time_are_not_used_unless_they_are_emulated(
    library_with_tiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native_trial.tiles(library_with_tiles) == ""
    monkeypatch.setattr(native_trial, "EMULATED", "something else")
    monkeypatch.setattr(native_trial, "FASTER", 0.0)
    assert native_trial.tiles(library_with_tiles).startswith("no faster for q4_0, 16 columns: ")


@pytest.mark.thorough
def test_tiles_with_other_results_are_not_used(
    library_with_tiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(native_trial.Multiplication):
        def __init__(self, path: Path, dtype: DType, format_: int, rows: int, inner: int) -> None:
            super().__init__(path, dtype, format_, rows, inner)
            self.wrong = format_ >= WITH_TILES and dtype == DType.Q8_0

        def product(self, columns: int) -> np.ndarray:
            return super().product(columns) + np.float32(self.wrong and columns == 31)

    monkeypatch.setattr(native_trial, "Multiplication", Faulty)
    assert native_trial.tiles(library_with_tiles) == "other results for q8_0, 31 columns"


@pytest.mark.parametrize("why_not", ["", "no faster"])
@pytest.mark.few(1)
def test_many_columns_take_tiles_after_their_trial_and_doctor_says_so(
    library_with_tiles: Path, monkeypatch: pytest.MonkeyPatch, why_not: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(library_with_tiles))
    tried = module.why_not_native
    monkeypatch.setattr(
        module, "why_not_native", lambda purpose: why_not if purpose == TILES else tried(purpose)
    )
    monkeypatch.setattr("backbay_onnx.session.doctor.why_not_native", module.why_not_native)
    code = native_code()
    assert code is not None
    assert code.products == {dtype: n + WITH_TILES * (not why_not) for dtype, n in FORMATS.items()}
    told = diagnose([])["products of quantized weights"]
    assert told.endswith("without AMX: no faster" if why_not else "AMX multiplies where columns are many")
