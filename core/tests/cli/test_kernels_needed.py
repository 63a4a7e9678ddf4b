"""A backend with only the kernels that the reference of the ops lists does run a Llama, and rightly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbay
from backbay import Backend, Context, DType, KernelTable, Tensor, UnsupportedOpError, ops
from backbay.cli.scaffold.kernels_needed import HISTORY, TOKENS, VOCABULARY, kernels_needed, trace_llama

INPUTS = {
    "tokens": np.array([3, 39, 0, 7, 7]),
    "positions": np.arange(TOKENS),
    "locations": np.arange(TOKENS) + 2,
    "outputs": np.array([TOKENS - 1]),
}


def mask() -> np.ndarray[Any, Any]:
    """Token t sees the cells from 2 to 2 + t."""
    cell, token = np.arange(HISTORY), np.arange(TOKENS)[:, None]
    return np.where((cell >= 2) & (cell <= 2 + token), 0.0, -np.inf)


def filled(ctx: Context, name: str, dtype: DType, *shape: int) -> Tensor:
    leaf = ctx.empty(dtype, *shape)
    if name in INPUTS:
        return leaf.from_ints(INPUTS[name])
    if "cache" in name:
        return leaf.from_floats(np.zeros(shape[::-1]))
    if name == "mask":
        return leaf.from_floats(mask())
    random = np.random.default_rng(sum(name.encode()))
    return leaf.from_floats(random.standard_normal(shape[::-1]))


def with_only(reference: Any, ops: set[Any]) -> Any:
    """The reference, its table cut down to these kernels."""
    kernels = {op: kernel for op, kernel in reference.kernels.items() if op in ops}
    return type("CutDown", (reference,), {"kernels": kernels})


def logits(kind: type[Backend]) -> np.ndarray[Any, Any]:
    with backbay.open(backend=kind) as backend, backend.new_context() as ctx:
        y = trace_llama(ctx, filled)
        ctx.compute(y)
        return y.floats()


def test_the_listed_kernels_suffice_and_compute_the_same() -> None:
    reference: Any = backbay.backends()["cpu_ref"].load()
    needed = set(kernels_needed(trace_llama).kernels)
    assert 0 < len(needed) <= 30

    smallest = with_only(reference, needed)
    assert smallest.kernels.keys() == needed
    whole = logits(reference)
    assert whole.shape == (VOCABULARY,)
    assert np.abs(whole).max() > 0.1
    np.testing.assert_allclose(logits(smallest), whole, rtol=1e-4, atol=1e-4 * np.abs(whole).max())


def test_none_of_the_listed_kernels_can_be_left_out() -> None:
    reference: Any = backbay.backends()["cpu_ref"].load()
    needed = set(kernels_needed(trace_llama).kernels)
    for missing in needed:
        with pytest.raises(UnsupportedOpError, match=rf"(run {missing.name}:|needs {missing.name}, which)"):
            logits(with_only(reference, needed - {missing}))


def test_a_composite_is_opened_down_to_kernels() -> None:
    def trace(ctx: Context) -> Tensor:
        return ctx.empty(DType.F32, 8, 2).stddev(ctx)

    needed = kernels_needed(trace)
    assert set(needed.kernels) == {ops.sqrt, ops.mean, ops.sub, ops.mul}
    assert set(needed.composites) == {ops.stddev, ops.variance, ops.sqr}


def test_an_empty_table_runs_nothing() -> None:
    class Empty(backbay.KernelBackend):
        contract_version = 1
        kernels = KernelTable()

    with pytest.raises(UnsupportedOpError, match="'Empty' cannot run mulmat"):
        logits(Empty)
