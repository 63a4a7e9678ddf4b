"""Long rows, many rows, and indices beyond 32 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from backbay import DType, ops

from ..cases.matrix import product
from ..cases.norm import layer_formula, mean_of, rms_formula, softmax_formula
from ..cases.order import largest, sorted_right
from ..cases.spatial import conv2d_formula
from ..checks.call_check import OpCall, try_calls
from ..draw.data import Bits, ComputedNumbers, DistinctIds, FillContext, Integers, Numbers
from ..draw.draw import Draw
from ..draw.layout import Layout, permuted
from ..draw.operand import Operand
from ..numbers.comparison import must_equal
from ..numbers.encoding import Array
from ..suite.case import Call
from ..suite.lab import Lab, scenario

LENGTHS = (70001, 65536, 131073, 65535, 65537)


def shuffled(making: FillContext, operand: Operand) -> Array:
    size = int(np.prod(operand.shape))
    return np.asarray(making.rng.permutation(size).astype(np.float64) - size // 2)


def calls(draw: Draw) -> list[OpCall]:
    """One call of each op with rows or columns that may exceed the limits of its kernel's grid."""
    n = draw.pick(*LENGTHS)
    row, column = draw.floats((n, 2), dtype=DType.F32), draw.floats((1, n), Numbers(), dtype=DType.F32)
    order = draw.operand(DType.F32, (n,), ComputedNumbers(shuffled))
    w = draw.operand(DType.F32, (n, 2), Numbers(terms=n, most=7))
    x = draw.operand(DType.F32, (n, 1), Numbers(terms=n, partner=w), activated=True)
    tall = draw.operand(DType.F32, (2, n), Numbers(terms=2, most=63), activated=True)
    line = draw.floats((n,), dtype=DType.F32)
    pairs, others = (draw.floats((2, n + 9), dtype=DType.F32) for _ in range(2))
    return [
        (ops.softmax, Call((row,), softmax_formula, exact=False)),
        (ops.sum_rows, Call((row,), lambda x: x.sum(), exact=False)),
        (ops.cumsum, Call((line,), lambda x: x.cumsum(), exact=False)),
        (ops.rms_norm, Call((row, None, 1e-5), rms_formula, exact=False)),
        (ops.rms_norm, Call((pairs, None, 1e-5), rms_formula, exact=False)),
        (ops.softmax, Call((others,), softmax_formula, exact=False)),
        (ops.add, Call((column, column), lambda a, b: a + b)),
        (ops.argsort, Call((order,), verify=sorted_right)),
        (ops.top_k, Call((order, draw.pick(5000, 40)), verify=largest)),
        (ops.mulmat, Call((w, x), product)),
        (ops.mulmat, Call((draw.operand(DType.F32, (2, 3), Numbers(terms=2, most=63)), tall), product)),
    ]


@scenario("core", smoke=1, default=3, nightly=15, structures=0)
def long_rows(lab: Lab, draw: Draw) -> None:
    """Rows and columns past 2^16, the limit of some grids and counters."""
    try_calls(lab, draw, calls(draw))


def many(draw: Draw) -> list[OpCall]:
    """One call of each op with ids, rows or slices that may exceed the range of its kernel's counters."""
    count, n = draw.pick(1400, 257, 5000), draw.pick(65, 64, 100)
    table = draw.operand(DType.F32, (n, count), Bits())
    ids = draw.operand(DType.I32, (draw.pick(600, 300),), Integers(0, count), stays=True)
    state = draw.operand(DType.F32, (n, count), Bits(), stays=True)
    source = draw.operand(DType.F32, (n, 200), Bits())
    where = draw.operand(DType.I32, (200,), DistinctIds(count), stays=True)
    w = draw.operand(DType.F32, (5, 3, draw.pick(17, 1)), Numbers(terms=5, most=63))
    x = draw.operand(DType.F32, (5, 2, 17, draw.pick(16, 33)), Numbers(terms=5, most=63), activated=True)

    return [
        (ops.rows, Call((table, ids), lambda x, ids: x[ids], raw=True)),
        (ops.set_rows, Call((state, source, where), written, raw=True)),
        (ops.mulmat, Call((w, x), product)),
        (ops.mulmat_full_prec, Call((w, x), product)),
    ]


@scenario("core", smoke=1, default=6, nightly=30, structures=0)
def many_rows(lab: Lab, draw: Draw) -> None:
    """Hundreds of ids into tables of more than 2^16 elements, and more slices than an 8-bit index can count."""
    try_calls(lab, draw, many(draw))


def columns(draw: Draw, n: int) -> list[OpCall]:

    def floats(*shape: int, dtype: DType = DType.F32) -> Operand:
        return draw.operand(dtype, shape, Numbers(terms=2, most=63))

    flat, pairs, image, tap = floats(1, n), floats(2, n), floats(n, 1, 1, 1), floats(1, 1, 1, 1)
    table, row, narrow = floats(2, 7), floats(2, 1), floats(2, n, dtype=DType.F16)
    small = draw.operand(DType.F32, (2, 1), Numbers(terms=2, most=63, partner=narrow))
    turned = Layout((permuted(DType.F32, (n, 2), (1, 0)),))
    state = draw.operand(DType.F32, (2, n + 9), Bits(), stays=True)
    ids = draw.operand(DType.I32, (n,), Integers(0, 7), stays=True)
    where = draw.operand(DType.I32, (n,), DistinctIds(n + 9), stays=True)
    still = (1, 1, 0, 0, 1, 1)
    return [
        (ops.mul, Call((flat, floats(1, n)), lambda a, b: a * b)),
        (ops.scale, Call((flat, 2.0), lambda x, s: x * s)),
        (ops.relu, Call((flat, None), lambda x, up: x.clip(0, np.inf))),
        (ops.sum_rows, Call((pairs,), lambda x: x.sum())),
        (ops.mean, Call((pairs,), mean_of)),
        (ops.cumsum, Call((pairs,), lambda x: x.cumsum())),
        (ops.layer_norm, Call((pairs, None, None, 0.5), layer_formula, exact=False)),
        (ops.argsort, Call((pairs,), verify=sorted_right)),
        (ops.top_k, Call((pairs, 1), verify=largest)),
        (ops.rows, Call((table, ids), lambda x, ids: x[ids], raw=True)),
        (ops.set_rows, Call((state, pairs, where), written, raw=True)),
        (ops.mulmat, Call((pairs, row), product)),
        (ops.mulmat, Call((narrow, small), product)),
        (ops.concat, Call((pairs, table, 1), lambda x, t2, dim: np.concatenate([x, t2]), raw=True)),
        (ops.repeat, Call((pairs, 1, 2), lambda x, dim, times: np.concatenate([x, x]), raw=True)),
        (ops.contiguous, Call((replace(floats(n, 2), layout=turned), ()), lambda x, shape: x, raw=True)),
        (ops.cast, Call((flat, DType.F16), lambda x, dtype: x.astype(np.float16), raw=True)),
        (ops.im2col, Call((tap, image, *still), lambda w, x, *still: x.transpose(0, 2, 3, 1), raw=True)),
        (ops.conv2d, Call((tap, image, *still), conv2d_formula)),
    ]


def written(x: Array, src: Array, ids: Array) -> Array:
    y = np.array(x)
    y[ids] = src
    return y


@scenario("core", smoke=1, default=4, nightly=30, structures=0)
def many_columns(lab: Lab, draw: Draw) -> None:
    """More rows, image positions and ids than a grid's second axis may have blocks; half of the calls at a time."""
    try_calls(lab, draw, columns(draw, draw.pick(65537, 70001, 131073))[draw.by_turn(0, 1) :: 2], "exact")


VOCABULARIES = (151936, 128256, 201088, 262144, 129280)
"""The numbers of tokens of Qwen, Llama, gpt-oss, Gemma and DeepSeek; a rest of 384 or 256 in blocks of 1024, or none."""


def likely_at_the_end(making: FillContext, operand: Operand) -> Array:
    """The scores of tokens; in each row the largest is one of the last, which no sum or sort may leave out."""
    size, rows = operand.shape[0], int(np.prod(operand.shape[1:], dtype=np.int64))
    numbers = making.rng.standard_normal((rows, size))
    numbers[np.arange(rows), size - 1 - making.rng.integers(60, size=rows)] = making.rng.uniform(20, 30, rows)
    return np.asarray(numbers)


def of_tokens(draw: Draw, n: int) -> list[OpCall]:
    scores = draw.operand(DType.F32, (n, draw.pick(1, 2)), ComputedNumbers(likely_at_the_end))
    few = draw.operand(DType.F32, (n,), Numbers(terms=n, most=63))
    table = draw.operand(DType.F32, (4, n), Bits())
    weight = draw.operand(DType.F16, (4, n), Numbers(terms=4, most=63))
    fill = Numbers(terms=4, most=63, partner=weight)
    x = draw.operand(DType.F32, (4, draw.pick(1, 2)), fill, activated=True)
    ids = draw.operand(DType.I32, (5,), Integers(0, n), stays=True)
    return [
        (ops.softmax, Call((scores,), softmax_formula, exact=False)),
        (ops.top_k, Call((scores, draw.pick(40, 1, 1000)), verify=largest)),
        (ops.argsort, Call((scores,), verify=sorted_right)),
        (ops.sum_rows, Call((few,), lambda x: x.sum())),
        (ops.cumsum, Call((few,), lambda x: x.cumsum())),
        (ops.rows, Call((table, ids), lambda x, ids: x[ids], raw=True)),
        (ops.mulmat, Call((weight, x), product)),
    ]


@scenario("core", smoke=0, default=len(VOCABULARIES), nightly=15, structures=0)
def vocabularies(lab: Lab, draw: Draw) -> None:
    """Scores, sums and orders of all tokens of a model, and the first and last products of it."""
    try_calls(lab, draw, of_tokens(draw, draw.by_turn(*VOCABULARIES)))


@scenario("large", smoke=1, default=1, nightly=1, timeout=900)
def elements_past_two_to_the_31st(lab: Lab, draw: Draw) -> None:
    """Write the last rows of a tensor of four gigabytes, and read them by rows, slice and view."""
    n, count = 1 << 16, (1 << 15) + 9
    with lab.backend.new_context() as ctx:
        state = ctx.empty(DType.F16, n, count)
        data = np.arange(3 * n, dtype=np.float64).reshape(3, n) % 1001
        ids = np.array([count - 1, (1 << 15) + 1, 5], np.int32)
        ctx.forward(state.set_rows(ctx, ctx.from_floats(data), ctx.from_ints(ids)))
        taken = state.rows(ctx, ctx.from_ints(ids[::-1].copy()))
        tail = state.slice(ctx, 1, count - 1, count).cast(ctx, DType.F32)
        seen = state.view(ctx, (count - 1) * n * 2, (n, 1)).add(ctx, state.view(ctx, 5 * n * 2, (n, 1)))
        ctx.compute(taken, tail, seen)
        wanted = ((taken, data[::-1]), (tail, data[:1]), (seen, data[:1] + data[2:]))
        for tensor, want in wanted:
            must_equal(tensor.numpy(), want, f"{tensor!r} of elements past 2^31", "large")
