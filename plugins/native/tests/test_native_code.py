"""Native code: found, turned off, refused, and described."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from native_sources import native_library

from backbay import BackendUnavailableError
from backbay_native import ATTENTION, OFF, PRODUCTS, RECURRENCE, NativeCode, find_native
from backbay_native.native_code import FORMATS, INSTRUCTIONS, TILES, WITH_TILES

VARIABLE = "BACKBAY_TEST_NATIVE"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library that the environment names, with code for any CPU."""
    monkeypatch.delenv("BACKBAY_CPU", raising=False)
    path = Path(shutil.copy(native_library(), tmp_path))
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_the_environment_names_a_file_or_turns_native_code_off(file: Path, monkeypatch) -> None:
    assert find_native(VARIABLE).path == file
    monkeypatch.setenv(VARIABLE, OFF)
    code = find_native(VARIABLE)
    assert code.path is None
    assert code.describe(ATTENTION, "ggml") == f"by ggml: {VARIABLE}=0 turns it off"
    assert code.formats == {}


def test_a_name_without_a_folder_is_a_file_of_this_folder(file: Path, monkeypatch) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv(VARIABLE, file.name)
    assert find_native(VARIABLE).path == file


def test_a_named_file_that_is_missing_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "typo.so"))
    assert find_native(VARIABLE).why_not(PRODUCTS) == (
        f"{VARIABLE} names {tmp_path / 'typo.so'}, and there is no such file"
    )


def test_a_package_that_is_missing_is_named_with_a_remedy(monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("backbay_native.native_code.DISTRIBUTION", "no-such-distribution")
    assert "pip install ./plugins/native" in find_native(VARIABLE).why_not(PRODUCTS)


@pytest.mark.fault("a damaged library of native code", "ggml's or ONNX Runtime's own code computes")
def test_a_damaged_library_is_not_used(file: Path) -> None:
    file.write_bytes(b"no library")
    code = find_native(VARIABLE)
    assert "cannot be loaded" in code.why_not(PRODUCTS)
    assert not code.has(PRODUCTS)


@pytest.mark.parametrize("kind", INSTRUCTIONS)
def test_code_that_does_not_heed_the_kind_of_cpu_that_is_asked_for_is_refused(
    kind: str, file: Path, monkeypatch
) -> None:
    """Loaded code has read the variable before."""
    instructions = NativeCode(file).instructions(PRODUCTS)
    monkeypatch.setenv("BACKBAY_CPU", kind)
    if instructions == INSTRUCTIONS[kind]:
        assert find_native(VARIABLE).path == file
    else:
        with pytest.raises(
            BackendUnavailableError, match=r"takes .*: this CPU .* too old to heed BACKBAY_CPU"
        ):
            find_native(VARIABLE)


@pytest.mark.parametrize("why_not", ["", "no faster"])
@pytest.mark.few(1)
def test_many_columns_take_tiles_after_their_trial_and_doctor_says_so(
    native_code_with_tiles: NativeCode, why_not: str
) -> None:
    code = NativeCode(native_code_with_tiles.path)
    code._faults[TILES] = why_not
    assert code.formats == {name: n + WITH_TILES * (not why_not) for n, name in enumerate(FORMATS)}
    told = code.describe(PRODUCTS, "ggml")
    assert told.endswith("without AMX: no faster" if why_not else "for AMX where columns are many")
    assert "AMX" not in code.describe(RECURRENCE, "ggml")
