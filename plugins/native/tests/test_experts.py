"""Native products by experts have the bits of each column's product with its expert's matrix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from backbay import DType
from backbay_native import multiply, multiply_by_experts, tensor_of
from backbay_native.calls import custom_op, encode_for_experts, tabulate_pairs
from backbay_native.trial_cases import SCALES, random_blocks

EXPERTS, ROWS, INNER = 6, 104, 768


@pytest.fixture(params=SCALES, ids=str)
def dtype(request):
    return request.param


def weights_of(dtype: DType):
    """A tensor of all experts' matrices, and one of each."""
    blocks = random_blocks(dtype, EXPERTS * ROWS * INNER, np.random.default_rng(1)).reshape(EXPERTS, -1)
    return tensor_of(blocks, dtype, (INNER, ROWS, EXPERTS)), [
        tensor_of(w, dtype, (INNER, ROWS)) for w in blocks
    ]


def columns_of(tokens: int, slots: int):
    x = np.random.default_rng(tokens).standard_normal((tokens, slots, INNER), np.float32)
    x[tokens // 2, -1, 100] = np.nan
    return x


def chosen(tokens: int, used: int, skew: float = 1.0):
    """Ids of which some repeat; with a skew, most name the first expert, and the last one has none."""
    drawn = np.random.default_rng(tokens).random((tokens, used)) ** skew
    return (drawn * (EXPERTS - 1)).astype(np.int32)


def one_by_one(native, dtype, matrices, x, ids):
    code, plain = native[0], native[0].untried_formats()  # without AMX
    columns = np.broadcast_to(x, (*ids.shape, INNER))
    each = [
        multiply(code, plain[dtype.name], matrices[ids[place]], columns[place][None])
        for place in np.ndindex(ids.shape)
    ]
    return np.concatenate(each).reshape(*ids.shape, ROWS)


@pytest.mark.parametrize(
    ("tokens", "used", "slots", "skew"),
    [(1, 1, 1, 1), (1, 4, 1, 1), (7, 3, 3, 1), (90, 2, 1, 4), (40, 5, 5, 1)],
)
@pytest.mark.few(24)
def test_each_column_meets_its_expert_as_if_it_were_alone(native, dtype, tokens, used, slots, skew) -> None:
    code, formats = native
    experts, matrices = weights_of(dtype)
    x, ids = columns_of(tokens, slots), chosen(tokens, used, skew)
    found = multiply_by_experts(code, formats[dtype.name], experts, x, ids)
    np.testing.assert_array_equal(found, one_by_one(native, dtype, matrices, x, ids))


def test_columns_ids_and_experts_may_lie_apart(native, dtype) -> None:
    code, formats = native
    experts, matrices = weights_of(dtype)
    every_second = tensor_of(experts.array, dtype, (INNER, ROWS, EXPERTS // 2))
    every_second.nb[2] *= 2
    x, ids = columns_of(9, 4), chosen(9, 5) // 2
    part, some = tensor_of(x), tensor_of(ids)
    part.ne[1], some.ne[0] = 3, 3
    found = multiply_by_experts(code, formats[dtype.name], every_second, part, some)
    right = one_by_one(native, dtype, matrices[::2], x[:, :3], ids[:, :3])
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("tokens", [1, 30])
def test_threads_in_any_order_at_once_and_one_by_one_leave_the_same_result(native, dtype, tokens) -> None:
    code, formats = native
    number, (experts, _) = formats[dtype.name], weights_of(dtype)
    x, ids = columns_of(tokens, 1), chosen(tokens, 3)
    right = multiply_by_experts(code, number, experts, x, ids)
    table = tabulate_pairs(code, EXPERTS, ids)
    found = np.zeros_like(right)
    result = tensor_of(found)
    operands = [experts, encode_for_experts(code, number, x, table, ids.size), table]
    op = custom_op(code, "expert_products", result, operands, number)
    with ThreadPoolExecutor(3) as pool:
        for order in ([0, 1, 2], [2, 0, 1], [0], *[[-1] * 3] * 5, *[list(range(3))] * 20):
            found[:] = -1
            list(pool.map(op, order, [len(order)] * len(order)))
            np.testing.assert_array_equal(found, right)
            assert -1 in order or not any(result.op_params[8:16])
            result.op_params[8:16] = [0] * 8


def test_the_first_thread_alone_makes_the_table_of_pairs(native_code) -> None:
    """ggml calls each thread, whatever number of tasks is asked for."""
    ids = chosen(8, 3)
    table = np.full(EXPERTS + 1 + 3 * ids.size, -7, np.int32)
    op = custom_op(native_code, "pairs", table, [ids], EXPERTS)
    op(1, 2)
    assert (table == -7).all()
    op(0, 2)
    starts, (ordered, expert, place) = table[: EXPERTS + 1], table[EXPERTS + 1 :].reshape(3, -1)
    np.testing.assert_array_equal(starts, np.searchsorted(np.sort(ids.ravel()), range(EXPERTS + 1)))
    np.testing.assert_array_equal(ordered, np.argsort(ids.ravel(), kind="stable"))
    np.testing.assert_array_equal(expert, ids.ravel())
    np.testing.assert_array_equal(ordered[place], range(ids.size))


def test_ids_of_no_expert_write_to_no_other_memory(native_code) -> None:
    """Core refuses them."""
    ids = np.array([[3, -1], [1 << 30, 2]], np.int32)
    np.testing.assert_array_equal(tabulate_pairs(native_code, EXPERTS, ids)[-8:-4], [3, 5, 5, 2])
