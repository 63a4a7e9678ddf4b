"""The code for a kind of CPU, which the environment names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backbay import BackendUnavailableError
from backbay.types.cpu import KINDS, VARIABLE
from backbay_ggml import doctor
from backbay_ggml.devices import device_trial
from backbay_ggml.library.abi import NULL
from backbay_ggml.library.library import CODE, ENDING, NAMES, Library, load_cpu_code, load_library
from backbay_ggml.weights import arrangements
from backbay_native.native_code import INSTRUCTIONS

LOAD = """
from backbay_ggml.library.library import Library, load_library
from backbay_native import PRODUCTS
library = load_library()
types = [library.lib.ggml_backend_dev_type(device) for device in library.devices()]
native = "nothing" if library.native.path is None else library.native.instructions(PRODUCTS)
print(library.cpu_code.name, types.count(0), library.lib.ggml_backend_reg_count(), native, sep=",")
"""


@pytest.fixture
def library() -> Library:
    """The library of this process, which is loaded before a test names a kind."""
    return load_library()


class Refusing:
    """A libggml whose code for CPUs does not run here."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ggml_backend_load(self, path: bytes) -> object:
        self.asked.append(Path(os.fsdecode(path)).name)
        return NULL


def loaded(**environment: str) -> list[str]:
    """The file with the CPU's code, the CPUs, the kinds of devices, and native code's instructions, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
    )
    lacking = "this CPU cannot run", "this CPU has no others", "make cpus", "built in"
    if any(reason in done.stderr for reason in lacking):
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split(",")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(2)
def test_each_kind_has_its_code_and_other_devices_stay(kind: str) -> None:
    file, cpus, registered, native = loaded(**{VARIABLE: kind})
    assert file in [f"{CODE}{name}{ENDING}" for name in NAMES[kind]]
    assert (cpus, registered) == ("1", loaded(**{VARIABLE: ""})[2])
    assert native in {INSTRUCTIONS[kind], "nothing"}


@pytest.mark.fault(
    "BACKBAY_CPU asks for a kind of CPU whose code was not built",
    "BackendUnavailableError naming the files that are there, and the remedy",
)
def test_code_that_was_not_built_is_missed(tmp_path: Path) -> None:
    for name in ("x64", "haswell"):
        (tmp_path / f"{CODE}{name}{ENDING}").touch()
    with pytest.raises(BackendUnavailableError) as raised:
        load_cpu_code(Refusing(), tmp_path, "avx512-vnni")
    assert str(raised.value) == (
        f"{VARIABLE}=avx512-vnni needs {CODE}zen4{ENDING} or {CODE}cascadelake{ENDING}, and {tmp_path} has "
        f"{CODE}haswell{ENDING}, {CODE}x64{ENDING}; remedy: `make cpus` in a clone builds the code for all kinds"
    )


@pytest.mark.fault(
    "BACKBAY_CPU asks for a kind of CPU whose code this CPU cannot run",
    "BackendUnavailableError naming the code",
)
def test_code_that_this_cpu_cannot_run_is_refused(tmp_path: Path) -> None:
    names = [f"{CODE}{name}{ENDING}" for name in NAMES["amx"]]
    for name in names:
        (tmp_path / name).touch()
    refusing = Refusing()
    with pytest.raises(
        BackendUnavailableError, match=f"{VARIABLE}=amx: this CPU cannot run {', '.join(names)}"
    ):
        load_cpu_code(refusing, tmp_path, "amx")
    assert refusing.asked == names


def test_a_library_with_code_for_one_kind_built_in_is_refused(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "avx2")  # ggml has loaded the code for CPUs before
    with pytest.raises(BackendUnavailableError, match=r"libggml\.\w+ has the code for one kind built in"):
        library._find_cpu()


def test_trials_for_each_kind_are_kept_apart(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    places = set()
    for kind in ("", *KINDS):
        monkeypatch.setenv(VARIABLE, kind)
        places |= {
            arrangements._kept(library, "REPACK").path,
            device_trial._kept(library, "GPU").path,
        }
    assert len(places) == 2 * (1 + len(KINDS))


def test_doctor_tells_the_kind_that_was_asked_for(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    if library.cpu_code.name == f"libggml-cpu{ENDING}":
        pytest.skip("this library has code for one kind of CPU")
    monkeypatch.setenv(VARIABLE, "avx2")
    assert doctor._cpu_code(library).endswith(", as BACKBAY_CPU=avx2 asks")
