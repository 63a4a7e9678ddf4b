"""The wheel of ggml's code for a kind of GPU beside backbay-ggml-lib; `make dist-vulkan` and `make dist-cuda` build it and run this."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from gpus_program import PROGRAM

WHEEL = Path(os.environ.get("BACKBAY_GPU_WHEEL", "/nowhere"))
TINY_MODEL = Path(__file__).parents[4] / "lab" / "devices" / "tiny_model.py"
NAME = WHEEL.name.partition("-")[0]
KIND, DRIVER = {
    "backbay_ggml_vulkan": ("Vulkan", "libvulkan.so.1"),
    "backbay_ggml_cuda": ("CUDA", "libcuda.so.1"),
}.get(NAME, ("", ""))
# `make dist-vulkan` runs python-vulkan, which has a driver.
PLAIN = str(Path(sys.executable).with_name("python"))

pytestmark = pytest.mark.skipif(
    not WHEEL.is_file(), reason="BACKBAY_GPU_WHEEL names no wheel of `make dist-vulkan` or `make dist-cuda`"
)


def run(python: str, *words: object, **environment: str) -> str:
    """What Python prints, which must succeed."""
    done = subprocess.run(
        [python, *map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def loads(library: str) -> bool:
    """Whether the system finds a library, without the driver that is made of software."""
    code = f"import ctypes; ctypes.CDLL({library!r})"
    return subprocess.run([PLAIN, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.fixture
def wheel() -> Iterator[None]:
    """The wheel is installed in the environment of this Python, until the test ends."""
    run(PLAIN, "-m", "pip", "install", "--no-deps", WHEEL)
    yield
    run(PLAIN, "-m", "pip", "uninstall", "--yes", NAME)


def test_the_wheel_brings_one_library_and_no_file_of_the_package_beside_it() -> None:
    with zipfile.ZipFile(WHEEL) as archive:
        files = {each.filename for each in archive.infolist() if not each.is_dir()}
        files = {name for name in files if ".dist-info/" not in name}
    kind = KIND.lower()
    assert files == {f"backbay_ggml_lib/libggml-{kind}.so", f"backbay_ggml_lib/LICENSE.ggml-{kind}"}
    assert files.isdisjoint(map(str, distribution("backbay-ggml-lib").files or ()))


@pytest.mark.usefixtures("wheel")
def test_a_model_answers_on_the_gpu() -> None:
    if KIND == "CUDA" and not loads(DRIVER):
        pytest.skip("this machine has no driver of CUDA")
    told = run(sys.executable, "-c", PROGRAM)
    assert told.startswith(f"{KIND}:0")
    run(sys.executable, TINY_MODEL, "ggml", f"{KIND}:0")


@pytest.mark.usefixtures("wheel")
@pytest.mark.fault(
    "ggml's code for a GPU is installed, and no driver", "doctor names the driver; the CPU goes on computing"
)
def test_without_a_driver_the_cpu_computes_and_doctor_says_why() -> None:
    if loads(DRIVER):
        pytest.skip(f"this machine has {DRIVER}")
    told, computed = run(PLAIN, "-c", PROGRAM).splitlines()
    assert told.startswith(f"{KIND}: its driver is not installed: {DRIVER}")
    assert computed == "['CPU:0'] [3.0, 3.0]"


@pytest.mark.usefixtures("wheel")
def test_a_loader_without_a_driver_says_so() -> None:
    if KIND != "Vulkan":
        pytest.skip("Vulkan alone has a loader")
    told, computed = run(
        sys.executable, "-c", PROGRAM, VK_DRIVER_FILES="/nowhere", VK_ICD_FILENAMES="/nowhere"
    ).splitlines()
    assert told.startswith("Vulkan: no driver reports a device")
    assert computed == "['CPU:0'] [3.0, 3.0]"


def test_once_the_wheel_is_uninstalled_the_library_is_as_before() -> None:
    run(PLAIN, "-m", "pip", "install", "--no-deps", WHEEL)
    run(PLAIN, "-m", "pip", "uninstall", "--yes", NAME)
    told, computed = run(sys.executable, "-c", PROGRAM).splitlines()
    assert told.startswith("none: the library has no code for GPUs")
    assert computed == "['CPU:0'] [3.0, 3.0]"
