"""Fixtures of all tests: sessions with native code, and without it."""

from __future__ import annotations

import pytest

from backbay_onnx.session.native import ATTENTION, PRODUCTS, NativeCode, native_code, why_not_native


@pytest.fixture
def native() -> NativeCode:
    """The native code that sessions use."""
    code = native_code()
    if code is None or not (code.dtypes and code.attends):
        pytest.skip(f"no native code: {why_not_native(PRODUCTS) or why_not_native(ATTENTION)}")
    return code


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ONNX Runtime's code computes."""
    monkeypatch.setattr("backbay_onnx.backend.native_code", lambda: None)


@pytest.fixture(params=["native", "without_native"])
def either(request: pytest.FixtureRequest) -> None:
    """Once with native code, and once without."""
    request.getfixturevalue(request.param)
