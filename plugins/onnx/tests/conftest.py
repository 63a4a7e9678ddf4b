"""Fixtures of all tests: sessions with native code, and without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_sources import EMULATED_TILES, compiled

from backbay_onnx.session.native import (
    PURPOSES,
    TILES,
    NativeCode,
    instructions,
    native_code,
    why_not_native,
)


@pytest.fixture
def native() -> NativeCode:
    """The native code that sessions use."""
    code = native_code()
    why_not = [why_not_native(purpose) for purpose in PURPOSES]
    if code is None or any(why_not):
        pytest.skip(f"no native code: {why_not}")
    return code


@pytest.fixture(scope="session")
def library_with_tiles() -> Path:
    """The native code that processors with AMX run, whose instructions are emulated."""
    path = compiled(EMULATED_TILES)
    if not instructions(path, TILES):
        pytest.skip("no code for this processor")
    return path


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ONNX Runtime's code computes."""
    monkeypatch.setattr("backbay_onnx.backend.native_code", lambda: None)


@pytest.fixture(params=["native", "without_native"])
def either(request: pytest.FixtureRequest) -> None:
    """Once with native code, and once without."""
    request.getfixturevalue(request.param)
