"""`bound`: expected values and allowed errors for other harnesses."""

from __future__ import annotations

from math import erf

import kernels_to_check as kernels
import numpy as np
import pytest

from backbay import BackbayError, DType, Precision
from backbay_conformance import bound

X = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
NORM = {"x": X, "weight": X[0], "eps": 0.5}


def test_a_right_result_is_within_and_a_wrong_one_is_not() -> None:
    expected, error = bound("rms_norm", NORM)
    assert expected.dtype == np.float64
    assert (np.abs(kernels.right(**NORM) - expected) <= error).all()
    assert (np.abs(kernels.eps_outside(**NORM) - expected) > error).any()
    assert (error < 1e-4).all()


def test_a_coarser_precision_and_a_narrower_result_allow_more() -> None:
    fine, coarse = (bound("rms_norm", NORM, precision).error for precision in ("f64", "f16"))
    assert (fine < coarse).all()
    half = {**NORM, "x": X.astype(np.float16)}
    assert (bound("rms_norm", half).error >= np.abs(bound("rms_norm", half).expected) * 2.0**-11).all()
    flushing = Precision(DType.F32, DType.F32, flushes_subnormals=True)
    tiny = {"x": np.float32([1e-40]), "t2": np.float32([1e30])}
    assert bound("mul", tiny, flushing).error[0] > 9e-11 > bound("mul", tiny).error[0]


def test_a_sum_with_1_may_lose_what_lies_below_its_last_place_as_the_documentation_of_the_op_says() -> None:
    x, one = np.linspace(-20, -1, 500, dtype=np.float32), np.float32(1)
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3)
    sums = {
        "softplus": np.log(one + np.exp(x)),
        "gelu": x / 2 * (one + np.tanh(inner)),
        "gelu_erf": x / 2 * (one + np.float32([erf(value / 2**0.5) for value in x])),
    }
    for op, got in sums.items():
        expected, error = bound(op, {"x": x})
        assert got[0] == 0
        assert (np.abs(got - expected) <= error).all()
        assert (error < 2e-6 * np.abs(x)).all()
    expected, error = bound("silu", {"x": x})  # has no such sum
    assert (error < 1e-4 * np.abs(expected)).all()


def test_elements_that_numpy_lacks_come_with_their_dtype() -> None:
    bits = (X.view(np.uint32) >> 16).astype(np.uint16)
    expected, _ = bound("neg", {"x": ("bf16", bits)})
    assert (expected == bits ^ 0x8000).all()
    blocks = np.zeros((2, DType.Q4_0.type_size), np.uint8)
    assert bound("mulmat", {"w": ("q4_0", blocks), "x": X[:, :32]}).expected.shape == (3, 2)


def test_mistakes_are_named() -> None:
    with pytest.raises(BackbayError, match="rms_norm has no parameter 'epsilon'; nearest: 'eps'"):
        bound("rms_norm", {"x": X, "epsilon": 1})
    with pytest.raises(BackbayError, match="mulmat needs x"):
        bound("mulmat", {"w": X})
    with pytest.raises(BackbayError, match="no tensor has elements of float64; there are float32"):
        bound("neg", {"x": X.astype(np.float64)})
    with pytest.raises(BackbayError, match="top_k has no bounds: more than one result is right"):
        bound("top_k", {"x": X, "k": 2})
    with pytest.raises(BackbayError, match="weight must have shape"):
        bound("rms_norm", {"x": X, "weight": X[0, :3]})
