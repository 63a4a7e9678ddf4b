"""What is written into its own storage is read first: a tensor as a whole, reshaped, or in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backbay
from backbay import Context, DType, KernelBackend, KernelTable, Tensor, ops

Array = np.ndarray[Any, Any]
ROWS, WIDTH = 700, 64  # enough for several threads
ORDER = np.random.default_rng(3).permutation(ROWS)


def scattered(data: Array) -> Array:
    """Row i where the order says."""
    result = data.copy()
    result[ORDER] = data
    return result


def shifted(data: Array) -> Array:
    result = data.copy()
    result[ORDER[1:]] = data[:-1]
    return result


WRITES: dict[str, tuple[Callable[[Context, Tensor, Tensor], Tensor], Callable[[Array], Array]]] = {
    "set_rows of itself": (lambda ctx, x, ids: x.set_rows(ctx, x, ids), scattered),
    "set_rows of a reshape": (
        lambda ctx, x, ids: x.set_rows(ctx, x.reshape(ctx, WIDTH, ROWS), ids),
        scattered,
    ),
    "set_rows of a view": (
        lambda ctx, x, ids: (view := x.view(ctx, 0, (WIDTH, ROWS))).set_rows(ctx, view, ids),
        scattered,
    ),
    "set_rows of a part": (
        lambda ctx, x, ids: x.set_rows(ctx, x.slice(ctx, 1, 0, ROWS - 1), ids.slice(ctx, 0, 1, ROWS)),
        shifted,
    ),
    "copy of itself": (lambda ctx, x, ids: x.copy(ctx, x), lambda data: data),
    "copy of its transpose": (
        lambda ctx, x, ids: x.permute(ctx, 1, 0).copy(ctx, x),
        lambda data: data.T.reshape(data.shape),
    ),
    "copy of a part": (
        lambda ctx, x, ids: x.slice(ctx, 1, 0, ROWS - 1).copy(ctx, x.slice(ctx, 1, 1, ROWS)),
        lambda data: np.concatenate([data[:1], data[:-1]]),
    ),
}


@pytest.fixture(scope="module", params=sorted({"cpu_ref", "ggml", "onnx"} & set(backbay.backends())))
def any_backend(request: pytest.FixtureRequest) -> Any:
    with backbay.open(None, request.param) as opened:
        yield opened


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I32], ids=str)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.few(21)
def test_the_source_is_read_before_the_target_is_written(
    any_backend: backbay.Backend, write: str, dtype: DType
) -> None:
    trace, expected = WRITES[write]
    data = np.random.default_rng(1).integers(-99, 99, (ROWS, WIDTH))
    with any_backend.new_context() as ctx:
        x = ctx.empty(dtype, WIDTH, ROWS).from_ints(data)
        ctx.compute(trace(ctx, x, ctx.from_ints(ORDER)))
        np.testing.assert_array_equal(x.numpy(), expected(data))


@pytest.mark.parametrize("write", WRITES)
def test_a_kernel_gets_a_source_that_is_not_its_target(write: str) -> None:
    kernel, apart = KernelTable(), []

    @kernel(ops.set_rows)
    def set_rows(x: Array, src: Array, ids: Array) -> None:
        apart.append(not np.shares_memory(x, src))

    @kernel(ops.copy)
    def copy(x: Array, dst: Array) -> None:
        apart.append(not np.shares_memory(x, dst))

    kind = type("Plain", (KernelBackend,), {"contract_version": 1, "kernels": kernel})
    with kind() as backend, backend.new_context() as ctx:
        x = ctx.zeros(DType.F32, WIDTH, ROWS)
        ctx.compute(WRITES[write][0](ctx, x, ctx.from_ints(ORDER)))
    assert apart == [True]


def test_a_kernel_writes_into_the_leaf_itself() -> None:
    kernel = KernelTable()

    @kernel(ops.set_rows)
    def set_rows(x: Array, src: Array, ids: Array) -> None:
        for row, place in zip(src, ids, strict=True):  # wrong if the two share memory
            x[place] = row

    kind = type("Plain", (KernelBackend,), {"contract_version": 1, "kernels": kernel})
    with kind() as backend, backend.new_context() as ctx:
        x = ctx.from_floats([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        ctx.compute(x.set_rows(ctx, x, ctx.from_ints([1, 2, 0])))
        assert x.numpy().tolist() == [[5.0, 6.0], [1.0, 2.0], [3.0, 4.0]]
