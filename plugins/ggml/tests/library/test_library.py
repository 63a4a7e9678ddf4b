"""Opening and checking libggml."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backbay import BackendUnavailableError, DType
from backbay_ggml.library import library
from backbay_ggml.library.abi import ffi, has_type
from backbay_ggml.library.compatibility import NEWEST, OLDEST, check_layout, check_version, refuse_second
from backbay_ggml.library.library import LibraryFunctions, file_of, load_library
from backbay_ggml.library.location import VARIABLE

TOOLS = Path(__file__).parents[2] / "tools"


def in_a_child(code: str, **environment: str) -> str:
    """The output of a Python process of its own: a process loads ggml only once."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_declarations_are_current() -> None:
    made = subprocess.run(
        [sys.executable, TOOLS / "generate_abi.py", "--check"], check=False, capture_output=True
    )
    assert made.returncode == 0


def test_the_library_is_opened_once() -> None:
    assert load_library() is load_library()
    assert load_library().number >= OLDEST
    assert load_library().number[:2] <= NEWEST[:2]


def test_waiting_threads_sleep_soon_unless_the_environment_says_otherwise() -> None:
    code = (
        "import os\nfrom backbay_ggml.library.library import load_library\n"
        "for name in ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY'): os.environ.pop(name, None)\n"
        "os.environ.update(eval(os.environ.pop('GIVEN')))\nload_library()\n"
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    assert in_a_child(code, GIVEN="{}").strip() == library.SPINS
    assert in_a_child(code, GIVEN="{'GOMP_SPINCOUNT': '5'}").strip() == "5"
    assert in_a_child(code, GIVEN="{'OMP_WAIT_POLICY': 'active'}").strip() == "None"


def test_no_package_is_imported() -> None:
    code = "import sys, backbay_ggml.library.library as l; l.load_library(); print('ggml' in sys.modules, 'llama_cpp' in sys.modules)"
    assert in_a_child(code).split() == ["False", "False"]


def test_a_file_that_is_no_library_is_refused(tmp_path) -> None:
    (tmp_path / "libggml.so").write_bytes(b"nothing")
    said = in_a_child("from backbay_ggml import Ggml; Ggml(None)", **{VARIABLE: str(tmp_path)})
    assert "BackendUnavailableError" in said
    assert "cannot be loaded" in said


@pytest.mark.fault(
    "ggml has a version that the plugin does not know", "BackendUnavailableError naming both versions"
)
@pytest.mark.parametrize("version", ["0.9.4", "0.15.2", "0.26.0", "1.0.0", "unknown"])
def test_other_versions_are_refused(version, monkeypatch) -> None:
    class Other:
        @staticmethod
        def ggml_version():
            return ffi.new("char[]", version.encode())

    with pytest.raises(BackendUnavailableError, match=r"supported are 0\.15\.3 to 0\.25\.3"):
        check_version(Other, Path("libggml.so"))


def test_an_unknown_layout_is_refused() -> None:
    class Other:
        ggml_tensor_overhead = staticmethod(lambda: 400)

    with pytest.raises(BackendUnavailableError, match="layout"):
        check_layout(Other, Path("libggml.so"))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the process's maps tell what is loaded")
def test_a_second_library_is_refused(tmp_path) -> None:
    load_library()
    with pytest.raises(BackendUnavailableError, match="beside"):
        refuse_second(tmp_path / "libggml.so")


def test_functions_are_taken_from_every_file_that_is_given() -> None:
    functions = LibraryFunctions(_path_of("libm.so.6"))
    assert "ggml_version" in functions.missing()
    functions.take_from(load_library().path)
    functions.take_from(load_library().cpu_code)
    assert not functions.missing()
    assert functions.ggml_version() == load_library().lib.ggml_version()


def test_the_file_with_the_code_for_this_cpu_is_known() -> None:
    assert load_library().cpu_code.name.startswith("libggml-cpu")
    assert load_library().cpu_code.parent == load_library().path.parent


def test_an_address_outside_of_all_code_is_in_no_file() -> None:
    with pytest.raises(BackendUnavailableError, match="no loaded file"):
        file_of(ffi.NULL, load_library().lib)


def test_types_are_those_of_gguf() -> None:
    known = load_library()
    different = [dtype for dtype in DType if not has_type(known.lib, dtype)]
    assert different == [DType.Q8_1]  # gguf counts its two halves as floats; no file holds it


@pytest.mark.fault(
    "BACKBAY_GGML_LIB names a library that is not ggml",
    "BackendUnavailableError naming the missing functions",
)
def test_a_library_that_is_not_ggml_is_refused_with_the_functions_that_it_lacks() -> None:
    code = (
        "import backbay\n"
        "try: backbay.open(None, 'ggml')\n"
        "except backbay.BackendUnavailableError as error: print(error)"
    )
    said = in_a_child(code, **{VARIABLE: str(_path_of("libm.so.6"))})
    assert "lacks" in said
    assert "of ggml's functions (ggml_add, ggml_add_id, ggml_argsort, ...)" in said
    assert "Traceback" not in said


def _path_of(name: str) -> Path:
    """Where the system found a library of that name."""
    ctypes.CDLL(name)
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if line.endswith(name))
