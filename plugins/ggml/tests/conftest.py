"""Fixtures of all tests."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_sources import EMULATED_TILES, compiled, native_library

from backbay import Backend, BackendParams
from backbay.internals import forced_cpu
from backbay.types import cpu
from backbay_ggml import Ggml
from backbay_ggml.library.library import load_library
from backbay_ggml.library.native import ATTENTION, PRODUCTS, RECURRENCE, TILES, NativeCode

# Spinning threads are slow beside busy neighbours. libgomp reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture
def backend() -> Iterator[Backend]:
    """A new backend, so that a test may count its memory."""
    with Ggml(None, BackendParams(num_threads=2)) as made:
        yield made


def opened(path: Path) -> NativeCode:
    """The native code in a file."""
    found = NativeCode(path, ctypes.CDLL(str(path)))
    if found.instructions(ATTENTION) is None:
        pytest.skip("no native code for this processor")
    return found


def opened_for(kind: str, folder: Path) -> NativeCode:
    """The native code for a kind of CPU: each loaded copy of the file limits itself once."""
    if forced_cpu():
        pytest.skip(f"all code is for {forced_cpu()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cpu.VARIABLE, kind)
        found = opened(Path(shutil.copy(native_library(), folder)))
        assert not any(
            map(found.why_not, (ATTENTION, RECURRENCE))
        )  # children of trials see the variable, too
    if found.instructions(PRODUCTS) != cpu.KINDS[kind]:
        pytest.skip(f"this processor has less than {kind}")
    return found


@pytest.fixture(scope="session")
def native_file() -> Path:
    """The file with the native code of the sources."""
    return native_library()


@pytest.fixture(scope="session")
def native_code(native_file: Path) -> NativeCode:
    """The native code of the sources."""
    return opened(native_file)


@pytest.fixture(scope="session")
def native_code_without_avx512(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The native code that processors without AVX-512 run."""
    return opened_for("avx2", tmp_path_factory.mktemp("avx2"))


@pytest.fixture(scope="session")
def native_code_without_vnni(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The native code that processors with AVX-512, but without VNNI, run."""
    return opened_for("avx512", tmp_path_factory.mktemp("avx512"))


@pytest.fixture(scope="session")
def native_code_with_tiles() -> NativeCode:
    """The native code that processors with AMX run, whose instructions are emulated."""
    made = opened(compiled(EMULATED_TILES))
    if made.instructions(TILES) is None:
        pytest.skip("no code for this processor")
    return made


@pytest.fixture(scope="module")
def without_native() -> Iterator[None]:
    """Only ggml's code computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_library(), "native", NativeCode(None, None))
        yield
