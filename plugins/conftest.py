"""Fixtures of all plugins: the native code for this processor, and for others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from native_sources import (
    EMULATED_AVX_VNNI,
    EMULATED_TILES,
    SOURCES,
    compiled,
    emulated_products,
    native_library,
)

from backbay.internals import forced_cpu
from backbay_native import ATTENTION, PRODUCTS, RECURRENCE, NativeCode
from backbay_native.native_code import INSTRUCTIONS


def opened(path: Path) -> NativeCode:
    """The native code in a file."""
    found = NativeCode(path)
    if not found.instructions(ATTENTION):
        pytest.skip("no native code for this processor")
    return found


@contextmanager
def limited_to(kind: str) -> Iterator[None]:
    """While files of native code are loaded for a kind of CPU: each loaded copy of a file limits itself once."""
    if forced_cpu():
        pytest.skip(f"all code is for {forced_cpu()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKBAY_CPU", kind)
        yield


def opened_for(kind: str, folder: Path) -> NativeCode:
    """The native code for a kind of CPU."""
    with limited_to(kind):
        found = opened(Path(shutil.copy(native_library(), folder)))
        assert not any(
            map(found.why_not, (ATTENTION, RECURRENCE))
        )  # children of trials see the variable, too
    if found.instructions(PRODUCTS) != INSTRUCTIONS[kind]:
        pytest.skip(f"this processor has less than {kind}")
    return found


@pytest.fixture(scope="session")
def native_code() -> NativeCode:
    """The native code of the sources."""
    return opened(native_library())


@pytest.fixture(scope="session")
def native_code_without_avx512(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The native code that processors without AVX-512 run."""
    return opened_for("avx2", tmp_path_factory.mktemp("avx2"))


@pytest.fixture(scope="session")
def native_code_without_vnni(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The native code that processors with AVX-512, but without VNNI, run."""
    return opened_for("avx512", tmp_path_factory.mktemp("avx512"))


@pytest.fixture(scope="session")
def native_code_with_avx_vnni() -> NativeCode:
    """The products of processors with AVX2 and VNNI, but without AVX-512; VNNI is emulated."""
    with limited_to("avx2-vnni"):
        found = NativeCode(compiled(EMULATED_AVX_VNNI, files=[SOURCES / "products.cpp"]))
    if found.instructions(PRODUCTS) != INSTRUCTIONS["avx2-vnni"]:
        pytest.skip("no AVX2")
    return found


def emulating(kind: str, folder: Path) -> NativeCode:
    """The products for a kind of CPU with AVX-512, on any CPU with AVX2."""
    with limited_to(kind):
        found = NativeCode(Path(shutil.copy(emulated_products(), folder)))
        assert found.instructions(PRODUCTS) == INSTRUCTIONS[kind]
    return found


@pytest.fixture(scope="session")
def emulated_code_without_vnni(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The products of processors with AVX-512, but without VNNI, whose instructions are emulated."""
    return emulating("avx512", tmp_path_factory.mktemp("emulated"))


@pytest.fixture(scope="session")
def emulated_code_with_vnni(tmp_path_factory: pytest.TempPathFactory) -> NativeCode:
    """The products of processors with VNNI, whose instructions are emulated."""
    return emulating("avx512-vnni", tmp_path_factory.mktemp("emulated-vnni"))


@pytest.fixture(scope="session")
def native_code_with_tiles(native_code: NativeCode) -> NativeCode:
    """The native code that processors with AMX run, whose instructions are emulated; it needs VNNI, and a minute to compile."""
    if native_code.instructions(PRODUCTS) != INSTRUCTIONS["amx"]:
        pytest.skip("no VNNI, which the emulation needs")
    return opened(compiled(EMULATED_TILES))
