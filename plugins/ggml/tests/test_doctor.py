"""The lines of `backbay doctor` about ggml."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from backbay_ggml import Ggml, doctor
from backbay_ggml.devices.device import Device, find_devices
from backbay_ggml.library.library import Library, load_library


def test_no_line_is_empty() -> None:
    told = Ggml.diagnose()
    assert all(told.values())
    assert told["devices"].startswith("CPU:0 ")


def test_a_library_without_code_for_gpus_tells_how_to_build_one(monkeypatch) -> None:
    library = load_library()
    if len(find_devices(library, ())) > 1:
        pytest.skip("this library has found a GPU")
    monkeypatch.setattr(doctor, "_kinds", lambda library: {})
    assert "-DGGML_CUDA=ON" in Ggml.diagnose()["gpus"]


def test_gpus_that_are_used_are_listed() -> None:
    library = load_library()
    devices = [Device(library, "CPU:0", library.cpu), Device(library, "CUDA:0", library.cpu)]
    devices[1].is_cpu = False
    assert doctor._gpus(library, devices) == "CUDA:0"


@pytest.mark.parametrize(
    ("mode", "says"), [("always madvise [never]", "off in"), ("always [madvise] never", "used")]
)
def test_huge_pages_are_reported(mode, says, tmp_path, monkeypatch) -> None:
    path = tmp_path / "enabled"
    path.write_text(mode)
    monkeypatch.setattr(doctor, "HUGE_PAGES", path)
    assert doctor._huge_pages().startswith(says)


GCC = b"\x7fELF\0GNU C++17 12.2.0 -O2\0GNU C11 12.2.0 -mavx2 -mtune=generic -O3 %s\0"


def library_built(folder, recorded: bytes, *variants: str) -> SimpleNamespace:
    """A library of these files, the first of which has the code for this CPU."""
    names = [f"libggml-cpu{variant}.so" for variant in variants]
    for name in names:
        (folder / name).write_bytes(recorded)
    made = SimpleNamespace(cpu_code=folder / names[0])
    made.compiler_flags = Library.compiler_flags.__get__(made)
    return made


@pytest.mark.parametrize(("flag", "says"), [(doctor.PREFETCH, "yes"), ("-O3", "not")])
def test_the_prefetch_flag_is_found_in_the_code_of_this_cpu(flag, says, tmp_path) -> None:
    library = library_built(tmp_path, GCC % flag.encode(), "-zen4")
    (tmp_path / "libggml-cpu-x64.so").write_bytes(GCC % doctor.PREFETCH.encode())
    assert doctor._prefetch(library).startswith(says)


def test_compiler_and_flags_are_those_of_the_code_of_this_cpu(tmp_path) -> None:
    assert doctor._compiler(library_built(tmp_path, GCC % b"-fno-dse", "-zen4")) == (
        "GNU C11 12.2.0 -mtune=generic -O3 -fno-dse"
    )
    assert doctor._compiler(library_built(tmp_path, b"clang", "-zen4")).startswith("unknown")


def test_the_kind_of_cpu_is_told_beside_the_others(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("BACKBAY_CPU", raising=False)
    assert doctor._cpu_code(library_built(tmp_path, b"", "-zen4", "-haswell", "-x64")) == (
        "zen4, of haswell, x64, zen4"
    )


def test_a_library_for_one_kind_of_cpu_says_so(tmp_path) -> None:
    assert doctor._cpu_code(library_built(tmp_path, b"", "")) == "libggml-cpu.so, for one kind of CPU"


@pytest.mark.parametrize(("half", "says"), [(True, "in f16: "), (False, "in f32")])
def test_the_dtype_of_sums_is_reported(half, says, monkeypatch) -> None:
    monkeypatch.setattr(load_library(), "sums_in_half", half)
    assert Ggml.diagnose()["sums of f16"].startswith(says)
