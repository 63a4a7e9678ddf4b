"""Native code in ONNX Runtime: turned off, or without custom ops."""

from __future__ import annotations

import _ctypes
from collections.abc import Iterator

import numpy as np
import pytest

import backbay
from backbay_native import OFF
from backbay_onnx.session.doctor import diagnose
from backbay_onnx.session.native import VARIABLE, native_code


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was found is forgotten before a test and after it."""
    native_code.cache_clear()
    yield
    native_code.cache_clear()


def test_the_environment_turns_native_code_off_and_doctor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, OFF)
    told = diagnose([])
    for line in ("products of quantized weights", "attention", "gates", "recurrences"):
        assert told[line] == f"by ONNX Runtime: {VARIABLE}=0 turns it off"


@pytest.mark.fault("a library of native code without custom ops", "ONNX Runtime's own code computes")
def test_a_library_without_custom_ops_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKBAY_CPU", raising=False)
    monkeypatch.setenv(VARIABLE, _ctypes.__file__)
    assert "failed while registering native code" in diagnose([])["gates"]
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        y = ctx.from_floats([1.0, 2.0], 2).silu(ctx)
        ctx.compute(y)
        np.testing.assert_allclose(y.floats(), [0.7310586, 1.7615942], rtol=1e-6)
