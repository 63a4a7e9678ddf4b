"""The precision of a provider: declared by an option, or measured by products and sums of numbers near 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx.parser

from backbay import BackbayError, DType, Precision
from backbay.internals import Array

from .provider import Provider

MEASURED = "measured"
MANTISSAS = {23: DType.F32, 10: DType.F16, 7: DType.BF16}  # bits
PRODUCT = """<ir_version: 10, opset_import: ["": 20]> product (float[24, 8] x, float[8, 24] w) => (float[24, 24] y)
{ y = MatMul(x, w) }"""
SCALED = """<ir_version: 10, opset_import: ["": 20]> scaled (float[24, 8] x, float[24, 8] w) => (float[24, 8] y)
{ y = Mul(x, w) }"""


def parse_precision(value: Any) -> Precision | str:
    """MEASURED, or the precision with these activations and weights, and these sums: f16/f32."""
    if value == MEASURED:
        return MEASURED
    named = {str(dtype): dtype for dtype in MANTISSAS.values()}
    first, _, last = str(value).partition("/")
    if not {first, last or first} <= named.keys():
        raise ValueError(f"it must be {MEASURED}, {', '.join(named)}, or two of these, such as f16/f32")
    return Precision(named[first], named[last or first], weight=named[first])


@cache
def measured_precision(provider: Provider) -> Precision:
    """The precision that small models show; BackbayError if the provider runs none of them."""
    near_one = (1 + 2.0 ** -np.arange(24)).astype(np.float32)
    first = np.zeros((24, 8), np.float32)
    first[:, 0] = 1
    numbers = first * near_one[:, None]
    sums = first.copy()
    sums[:, 1] = near_one - 1
    product = _model(provider, PRODUCT)
    activation = _mantissa(product(numbers, first.T.copy())[:, 0] == near_one)
    weight = _mantissa(product(first, numbers.T.copy())[0] == near_one)
    accumulate = _mantissa(product(sums, np.ones((8, 24), np.float32))[:, 0] == near_one)
    tiny = np.full((24, 8), 2.0**-140, np.float32)
    flushes = not _model(provider, SCALED)(tiny, np.full((24, 8), 2, np.float32)).any()
    return Precision(activation, accumulate, flushes, weight)


def _mantissa(right: Array) -> DType:
    """The type whose numbers near 1 all come through."""
    bits = int(right.argmin()) - 1 if not right.all() else 23
    return next((dtype for most, dtype in MANTISSAS.items() if bits >= most), DType.BF16)


def _model(provider: Provider, text: str) -> Callable[[Array, Array], Array]:
    session = provider.session(onnx.parser.parse_model(text).SerializeToString(), 1)
    return lambda x, w: session.run(None, {"x": x, "w": w})[0]


def precision_of(option: Precision | str, provider: Provider) -> tuple[Precision, str]:
    """The precision of a provider, and how it is known."""
    if isinstance(option, Precision):
        return option, "declared"
    try:
        return measured_precision(provider), MEASURED
    except BackbayError as error:
        return Precision(DType.F32, DType.F32), f"assumed, as nothing could be measured: {error}"
