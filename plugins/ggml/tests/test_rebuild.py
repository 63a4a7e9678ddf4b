"""Building libggml for speed, and how doctor tells whether a library was built so."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from backbay_ggml import doctor, rebuild
from backbay_ggml.library.compiler_flags import ANY_COMPILER, GCC_ONLY, OPTIONS, PREFETCH
from backbay_ggml.library.library import Library, load_library

REQUIREMENTS = Path(__file__).parents[1] / "requirements.txt"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    def named(version: str) -> None:
        path = tmp_path / "c++"
        path.write_text(f"#!/bin/sh\necho '{version}'\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return named


def test_requirements_build_what_rebuild_builds() -> None:
    line = next(line for line in REQUIREMENTS.read_text().splitlines() if '== "linux"' in line)
    arguments = shlex.split(line)[-1].partition("cmake.args=")[2].split(";")
    told = " ".join(ANY_COMPILER + GCC_ONLY)
    assert arguments == [*OPTIONS, f"-DCMAKE_C_FLAGS={told}", f"-DCMAKE_CXX_FLAGS={told}"]


def test_settings_of_the_environment_are_kept_and_come_last(compiler, monkeypatch) -> None:
    compiler("c++ (Debian 12.2.0) 12.2.0")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("CFLAGS", "-g")
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_RPC=OFF")
    monkeypatch.delenv("CXXFLAGS", raising=False)
    added = rebuild.settings(["-DGGML_CUDA=ON"])
    assert added["CFLAGS"].split() == [*ANY_COMPILER, *GCC_ONLY, "-g"]
    assert added["CXXFLAGS"].split() == [*ANY_COMPILER, *GCC_ONLY]
    assert added["CMAKE_ARGS"].split() == [*OPTIONS, "-DGGML_CUDA=ON", "-DGGML_RPC=OFF"]


def test_clang_gets_no_flags_of_gcc(compiler, monkeypatch) -> None:
    compiler("Debian clang version 16.0.6")
    monkeypatch.setattr("sys.platform", "linux")
    assert rebuild.flags() == ANY_COMPILER


def test_a_missing_compiler_is_an_error(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit, match=r"no C\+\+ compiler: no-such-compiler"):
        rebuild.flags()


def test_show_prints_the_command_and_runs_nothing(compiler, capsys, monkeypatch) -> None:
    compiler("c++ (Debian 12.2.0) 12.2.0")
    monkeypatch.setattr("subprocess.call", lambda *_, **__: pytest.fail("it ran"))
    assert rebuild.main(["--show", "-DGGML_CUDA=ON"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert "-DGGML_CUDA=ON" in next(word for word in words if word.startswith("CMAKE_ARGS="))
    assert words[-1].startswith("ggml-python")


def test_pip_gets_the_settings_and_its_exit_status_is_returned(compiler, capsys, monkeypatch) -> None:
    compiler("c++ (Debian 12.2.0) 12.2.0")
    called = []
    monkeypatch.setattr("subprocess.call", lambda command, env: called.append((command, env)) or 7)
    assert rebuild.main([]) == 7
    (command, environment), *none = called
    assert not none
    assert "--no-cache-dir" in command
    assert environment["CMAKE_ARGS"].startswith(" ".join(OPTIONS))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("GGML_CUDA=ON", "unrecognized arguments: GGML_CUDA=ON"),
        ("--sho", "unrecognized arguments: --sho"),
        ("-D", "argument -D: expected one argument"),
    ],
)
def test_unknown_arguments_are_refused(given, says, capsys, monkeypatch) -> None:
    monkeypatch.setattr("subprocess.call", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as ended:
        rebuild.main([given])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_help_shows_an_option_for_cmake(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        rebuild.main(["--help"])
    assert ended.value.code == 0
    assert "-DGGML_CUDA=ON" in capsys.readouterr().out


@pytest.mark.parametrize(("told", "says"), [(f"-O3 {PREFETCH}", "yes"), ("-O3", "not")])
def test_doctor_finds_the_prefetch_flag(told, says, tmp_path) -> None:
    (tmp_path / "libggml-cpu.so").write_bytes(b"\0" + told.encode() + b"\0")
    library = SimpleNamespace(path=tmp_path / "libggml.so")
    library.was_built_with = Library.was_built_with.__get__(library)
    assert doctor._prefetch(library).startswith(says)


@pytest.mark.parametrize(("half", "says"), [(True, "in f16: "), (False, "in f32")])
def test_doctor_reports_the_dtype_of_sums(half, says, monkeypatch) -> None:
    library = load_library()
    monkeypatch.setattr(library, "sums_in_half", half)
    assert doctor._sums(library).startswith(says)
