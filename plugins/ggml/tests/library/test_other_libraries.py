"""Libraries that somebody names: other files and versions, and files that are none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backbay import BackendParams, BackendUnavailableError, OptionError
from backbay.cli.program import main
from backbay_ggml import Ggml
from backbay_ggml.library.compatibility import SUPPORTED
from backbay_ggml.library.library import load_library
from backbay_ggml.library.library_trial import try_library
from backbay_ggml.library.location import locate_library

OPEN = """
import sys
import backbay
try:
    options = {"library": sys.argv[1], "avoid": "nothing"}
    with backbay.open(None, "ggml", backbay.BackendParams(options=options)) as backend, backend.new_context() as ctx:
        y = ctx.input().from_floats([1, -2]).neg(ctx)
        ctx.compute(y)
        print(backend.library.version, backend.library.path.name, y.floats())
except backbay.BackendUnavailableError as error:
    print("refused:", error)
"""
VERSION = 'const char * ggml_version(void) { return "9.8.7"; }'
ABORT = "#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { abort(); }"
EXIT = "#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { exit(0); }"
NODE = "void napi_create_promise(void); void unused(void) { napi_create_promise(); }"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the installed library's folder."""
    return shutil.copytree(locate_library().parent, tmp_path / "copy")


def opened(named: Path) -> str:
    """The output of a process that opens a library and computes with it."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(named)], check=False, capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def wrapper(folder: Path, code: str) -> Path:
    """A library that is ggml and some C code, beside the files of ggml."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    source, target = folder / "wrapper.c", folder / "wrapper.so"
    source.write_text(code)
    name = locate_library().name
    links = ["-Wl,--no-as-needed", "-Wl,-z,lazy", f"-L{folder}", f"-l:{name}", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([compiler, "-shared", "-fPIC", str(source), *links, "-o", str(target)], check=True)
    return target


def test_a_folder_whose_library_has_its_version_in_its_name_is_taken(folder: Path) -> None:
    for file in folder.glob("libggml.*"):
        file.unlink()
    shutil.copy(locate_library(), folder / "libggml.v0.5.0.so")
    assert " libggml.v0.5.0.so [-1.  2.]" in opened(folder)


def test_a_link_to_a_library_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link.so").symlink_to(folder / locate_library().name)
    assert f" {locate_library().name} [-1.  2.]" in opened(tmp_path / "link.so")


def test_a_folder_without_a_library_names_the_files_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "module.abi3.so").touch()
    assert f"refused: {tmp_path}: no such library; name its file, such as module.abi3.so" in opened(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="linked as on Linux")
def test_another_version_is_taken_with_a_warning_and_tried_once(folder: Path) -> None:
    path = wrapper(folder, VERSION)
    said = opened(path)
    assert "9.8.7 wrapper.so [-1.  2.]" in said
    assert f"ggml 9.8.7, outside of what is tested: {SUPPORTED}" in said
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backbay_ggml.library.library_trial.run_helper", None)
        try_library(path)


@pytest.mark.skipif(sys.platform != "linux", reason="linked as on Linux")
def test_functions_of_another_program_may_be_missing(folder: Path) -> None:
    assert "[-1.  2.]" in opened(wrapper(folder, NODE))


@pytest.mark.fault(
    "a library that somebody names ends the process that loads it",
    "BackendUnavailableError with the signal: a child process loads it first",
)
@pytest.mark.skipif(sys.platform != "linux", reason="linked as on Linux")
@pytest.mark.parametrize(("code", "why"), [(ABORT, "SIGABRT"), (EXIT, "exit status 0")])
def test_a_library_that_ends_its_process_is_refused(folder: Path, code: str, why: str) -> None:
    path = wrapper(folder, code)
    said = opened(path)
    assert f"refused: {path} ends the process that loads it" in said
    assert why in said


@pytest.mark.parametrize("damage", ["cut", "another machine", "text"])
def test_a_damaged_library_is_refused(folder: Path, damage: str) -> None:
    path = folder / locate_library().name
    data = bytearray(path.read_bytes())
    if damage == "another machine":
        data[18:20] = b"\xff\x7f"  # of ELF's header
    path.write_bytes(data[:4096] if damage == "cut" else b"text" if damage == "text" else data)
    said = opened(path)
    assert f"refused: {path}" in said
    assert (
        "cannot be loaded" in said or "ends the process that loads it" in said
    )  # SIGBUS, behind the file's end


def test_a_process_holds_one_library(folder: Path) -> None:
    assert load_library(str(load_library().path)) is load_library()
    with pytest.raises(BackendUnavailableError, match="cannot be loaded beside"):
        load_library(str(folder))


def test_the_library_as_it_is_has_no_native_code_and_avoids_nothing() -> None:
    with Ggml(None, BackendParams(options={"avoid": "nothing"})) as plain, Ggml(None) as usual:
        assert not plain.library.native.formats
        assert plain.avoidances() == {}
        assert "size of a block" in usual.avoidances()["concat q4_0"]
    with pytest.raises(OptionError, match="not one of known, nothing"):
        Ggml(None, BackendParams(options={"avoid": "all"}))


def test_the_suite_reports_what_is_avoided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, told = tmp_path / "report.json", []
    for choice in ("known", "nothing"):
        words = ["--avoid", choice, f"--library={load_library().path}"]
        assert main(["conform", "ggml", *words, "--op", "neg", "--size", "tiny", "--json", str(report)]) == 0
        told.append(json.loads(report.read_text())["facts"].get("avoidances", {}))
        assert ("avoided: add_id f32: it may write" in capsys.readouterr().out) is (choice == "known")
    assert "add_id f32" in told[0]
    assert told[1] == {}
