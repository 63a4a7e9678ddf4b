"""Runs a case on this backend and on the reference, and compares the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from model_file import quantized

import backbay
from backbay import Backend, BackendParams, DType

Numbers = np.ndarray[Any, Any]


class Scene:
    """A context with random leaves, which are the same on every backend."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend, self.ctx = backend, backend.new_context()
        self.rng = np.random.default_rng(seed)

    def floats(self, *shape: int, dtype: DType = DType.F32, scale: float = 1.0) -> Any:
        numbers = self.rng.standard_normal(shape[::-1]) * scale
        return self.ctx.empty(dtype, *shape).from_floats(numbers.astype(np.float32))

    def ints(self, *shape: int, below: int = 8, dtype: DType = DType.I32) -> Any:
        return self.ctx.empty(dtype, *shape).from_ints(self.rng.integers(0, below, shape[::-1]))

    def quantized(self, dtype: DType, *shape: int) -> Any:
        """A leaf of random blocks."""
        raw = quantized(self.rng, dtype, *shape)
        return self.ctx.from_bytes(dtype, np.ascontiguousarray(raw).reshape(-1).view(np.uint8), *shape)


Case = Callable[[Scene], Any]
BOUNDS = {DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


def run(name: str, case: Case, seed: int, **options: Any) -> list[tuple[Any, Numbers]]:
    """Dtypes, shapes and numbers of the tensors that a case returns; leaves are read after the run."""
    with backbay.open(None, backend=name, params=BackendParams(options=options)) as backend:
        scene = Scene(backend, seed)
        made = case(scene)
        outputs = made if isinstance(made, (list, tuple)) else [made]
        scene.ctx.compute(*outputs)
        return [((t.dtype, t.shape), t.numpy()) for t in outputs]


def check(case: Case, *, seed: int = 1, sums: int = 64, onnx: dict[str, Any] | None = None) -> None:
    """Both backends give the same, within a bound for sums of `sums` float32 terms, rounded once to the dtype."""
    for (spec, ours), (expected_spec, expected) in zip(
        run("onnx", case, seed, **(onnx or {})), run("cpu_ref", case, seed), strict=True
    ):
        assert spec == expected_spec
        if spec[0].is_integer:
            np.testing.assert_array_equal(ours, expected)
            continue
        unit = BOUNDS[spec[0]]
        finite = expected[np.isfinite(expected)].astype(np.float64)
        size = float(np.max(np.abs(finite), initial=0.0))
        np.testing.assert_allclose(
            ours.astype(np.float64), expected.astype(np.float64),
            rtol=2 * unit + 8 * 2.0**-23, atol=sums * 2.0**-23 * size, equal_nan=True,
        )  # fmt: skip
