"""Fixtures of all tests."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_sources import compiled

from backbay import Backend, BackendParams
from backbay_ggml import Ggml
from backbay_ggml.library.library import load_library
from backbay_ggml.library.native import ENDING, STEM, TILES, NativeCode
from backbay_ggml.library.native_trial import TRIALS

# Spinning threads are slow beside busy neighbours. libgomp reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture
def backend() -> Iterator[Backend]:
    """A new backend, so that a test may count its memory."""
    with Ggml(None, BackendParams(num_threads=2)) as made:
        yield made


def opened(folder: Path) -> NativeCode:
    """The native code in a folder."""
    path = folder / f"{STEM}{ENDING}"
    found = NativeCode(path, ctypes.CDLL(str(path)))
    if found.instructions("attention") is None:
        pytest.skip("no native code for this processor")
    return found


@pytest.fixture(scope="session")
def native_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the native code of the sources."""
    return compiled(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def native_code(native_folder: Path) -> NativeCode:
    """The native code of the sources."""
    return opened(native_folder)


@pytest.fixture(scope="session")
def native_code_without_avx512(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The native code that processors without AVX-512 run."""
    return opened(compiled(tmp_path_factory.mktemp("older"), "-DBACKBAY_WITHOUT_AVX512"))


@pytest.fixture(scope="session")
def native_code_without_vnni(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The native code that processors with AVX-512, but without VNNI, run."""
    return opened(compiled(tmp_path_factory.mktemp("without_vnni"), "-DBACKBAY_WITHOUT_VNNI"))


@pytest.fixture(scope="session")
def native_code_with_tiles(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The native code that processors with AMX run, whose instructions are emulated."""
    made = opened(compiled(tmp_path_factory.mktemp("tiles"), "-DBACKBAY_EMULATED_TILES"))
    if made.instructions(TILES) is None:
        pytest.skip("no code for this processor")
    return made


@pytest.fixture(scope="module")
def without_native() -> Iterator[None]:
    """Only ggml's code computes."""
    with pytest.MonkeyPatch.context() as patch:
        for purpose in {*TRIALS} - {TILES}:
            patch.setattr(load_library(), purpose, None)
        yield
