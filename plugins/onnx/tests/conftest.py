"""Fixtures of all tests: sessions with native code, and without it."""

from __future__ import annotations

import pytest

from backbay_native import ATTENTION, GATES, PRODUCTS, RECURRENCE, NativeCode
from backbay_onnx.session.native import NO_NATIVE, native_code


@pytest.fixture
def native() -> NativeCode:
    """The native code that sessions use."""
    code = native_code()
    why_not = [code.why_not(purpose) for purpose in (ATTENTION, GATES, PRODUCTS, RECURRENCE)]
    if any(why_not):
        pytest.skip(f"no native code: {why_not}")
    return code


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ONNX Runtime's code computes."""
    monkeypatch.setattr("backbay_onnx.backend.native_code", lambda: NO_NATIVE)


@pytest.fixture(params=["native", "without_native"])
def either(request: pytest.FixtureRequest) -> None:
    """Once with native code, and once without."""
    request.getfixturevalue(request.param)
