"""Cases of ops, each traced on two backends through the public API, and compared."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backbay import Backend, Context, DType, Tensor
from backbay.plugin import encode
from backbay_ggml import Ggml

SINGLE = 2e-5  # f32 inside, of the largest magnitude
TABLE = 2e-3  # gelu of ggml's CPU code looks up f16
HALF = 2e-3  # activations in f16
EIGHT_BIT = 2e-2  # activations in 8 bits

Trace = Callable[..., Any]


def case(
    cases: list[Any], name: str, specs: str, trace: Trace, tolerance: float = SINGLE, **data: Any
) -> None:
    """`specs` are leaves, as `f32[4,3]`; `data` are arrays for some of them, by their position: `d0`, `d1`..."""
    cases.append(pytest.param(specs, trace, tolerance, data, id=name))


def leaves(ctx: Context, specs: str, data: dict[str, Any], seed: int) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    made = []
    for position, (kind, extents) in enumerate(re.findall(r"(\w+)\[([\d,]*)\]", specs)):
        dtype, shape = DType[kind.upper()], tuple(int(n) for n in extents.split(",") if n)
        numbers = data.get(f"d{position}")
        leaf = ctx.empty(dtype, *shape)
        if dtype.is_integer:
            leaf.from_ints(rng.integers(0, 3, shape[::-1]) if numbers is None else numbers)
        else:
            values = rng.standard_normal(shape[::-1]).astype(np.float32) if numbers is None else numbers
            leaf.from_bytes(
                quantized(values, dtype) if dtype.is_quantized else encode(np.asarray(values), dtype)
            )
        made.append(leaf)
    return made


def quantized(values: Any, dtype: DType) -> bytes:
    """Blocks of a type, made by ggml, which knows more of them than gguf."""
    with Ggml() as backend, backend.new_context() as ctx:
        blocks = ctx.from_floats(values, *values.shape[::-1]).cast(ctx, dtype)
        ctx.compute(blocks)
        return blocks.bytes()


def results(backend: Backend, specs: str, trace: Trace, data: dict[str, Any]) -> list[Any]:
    with backend.new_context() as ctx:
        made = trace(ctx, *leaves(ctx, specs, data, zlib.crc32(specs.encode())))
        outputs = list(made) if isinstance(made, (list, tuple)) else [made]
        ctx.compute(*outputs)
        return [(t.shape, t.dtype, t.numpy()) for t in outputs]


def agree(backend, reference, specs, trace, tolerance, data) -> None:
    ours, theirs = (results(b, specs, trace, data) for b in (backend, reference))
    assert len(ours) == len(theirs)
    for (shape, dtype, got), (wanted_shape, wanted_dtype, wanted) in zip(ours, theirs, strict=True):
        assert (shape, dtype) == (wanted_shape, wanted_dtype)
        if dtype.is_integer:
            np.testing.assert_array_equal(got, wanted)
        else:
            close(got.astype(np.float64), wanted.astype(np.float64), tolerance)


def close(got, wanted, tolerance) -> None:
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    scale = np.abs(wanted[finite]).max(initial=1e-30)
    np.testing.assert_allclose(got[finite], wanted[finite], atol=tolerance * scale, rtol=tolerance)
