"""The child process of a trial: it computes small cases by native code, and compares them with NumPy's results.

It exits with 0, and prints what is wrong with one purpose, or as JSON with each; nothing if the results agree.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from backbay import DType
from backbay.internals import Array
from backbay.plugin import decode

from .calls import TensorStruct, multiply, multiply_by_experts, run_op, tensor_of
from .native_code import (
    ATTENTION,
    CONVOLUTION,
    EMULATED,
    EXPERTS,
    GATES,
    PRODUCTS,
    RECURRENCE,
    ROWS,
    TILES,
    NativeCode,
)
from .trial_cases import random_blocks, recurrence_cases

CLOSE = 1e-3
COUNTS = (*range(16, 33), 41, 64)  # of columns: tiles of each size
TIMED = (16, 64)
FASTER = 0.95  # of the time without AMX


def check_attention(code: NativeCode) -> bool:
    """Whether attention of many queries at once, and of each one in parts, to causal histories in f32 and f16 is right."""
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.standard_normal((1, count, heads, 72), np.float32)
        for count, heads in ((65, 4), (199, 1), (199, 1))
    )
    hidden = np.arange(199) > np.arange(65)[:, None] + 134
    scores = np.einsum("bqhd,bkgd->bhqk", q, k) * np.float32(0.1)
    scores[..., hidden] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhqk,bkgd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    mask = np.where(hidden, np.float16(-np.inf), np.float16(0))
    few = np.concatenate([_attended(code, q[:, n : n + 1], k, v, mask[n:], 2) for n in range(65)], axis=1)
    halves = _attended(code, q, k.astype(np.float16), v.astype(np.float16), mask, 1)
    found = (_attended(code, q, k, v, mask, 1), CLOSE), (few, CLOSE), (halves, 10 * CLOSE)
    return all(np.allclose(result, expected, rtol=most, atol=most) for result, most in found)


def _attended(code: NativeCode, q: Array, k: Array, v: Array, mask: Array, parts: int) -> Array:
    """Attention with a scale of 0.1, of tiles of 32 queries."""
    queries, heads, width, history = *q.shape[1:], k.shape[1]
    table = np.zeros((queries, 4 + history), np.int32)
    run_op(code, "visible_cells", table, [mask], queries | 32 << 32)
    [scale] = struct.unpack("=I", struct.pack("=f", 0.1))
    operands = [q, k, v, mask, table]
    result = np.zeros((1, queries, heads, width), np.float32)
    if parts == 1:
        run_op(code, "attention", result, operands, scale)
        return result
    sums = np.zeros((queries, heads, parts, width + 2), np.float32)
    run_op(code, "attention_parts", sums, operands, scale)
    run_op(code, "attention_sum", result, [sums, table], history)
    return result


def check_convolution(code: NativeCode) -> bool:
    rng = np.random.default_rng(1)
    x, kernels = (rng.standard_normal(shape, np.float32) for shape in ((2, 12, 300), (300, 4)))
    result = np.zeros((2, 9, 300), np.float32)
    window = tensor_of(x)
    window.ne, window.nb = (12, 300, 2, 1), (300 * 4, 4, 12 * 300 * 4, 2 * 12 * 300 * 4)
    run_op(code, "convolution", result, [window, kernels])
    expected = sum(x[:, i : i + 9] * kernels[:, i] for i in range(4))
    return bool(np.allclose(result, expected, rtol=CLOSE, atol=CLOSE))


def check_gates(code: NativeCode) -> bool:
    """Whether silu is right, with another factor and without."""
    x, up = np.random.default_rng(3).standard_normal((2, 3000)).astype(np.float32) * np.float32(20)
    expected = x / (1 + np.exp(-x.astype(np.float64)))
    return all(
        np.allclose(_gated(code, x, factor), expected * (1 if factor is None else factor), rtol=CLOSE)
        for factor in (None, up)
    )


def _gated(code: NativeCode, x: Array, up: Array | None) -> Array:
    y = np.zeros_like(x)
    addresses = (ctypes.c_void_p(None if each is None else each.ctypes.data) for each in (x, up, y))
    code.function("gates")(*addresses, ctypes.c_long(0), ctypes.c_long(x.size))
    return y


def check_recurrence(code: NativeCode) -> bool:
    """Whether both delta rules and the selective scan are right for some tokens and sequences."""
    names = {"delta_rule": "delta_rule", "ssm_scan": "selective_scan"}
    for case in recurrence_cases():
        result = np.zeros(case.expected.shape, np.float32)
        run_op(code, names[case.op], result, case.operands)
        if not np.allclose(result, case.expected, rtol=CLOSE, atol=CLOSE):
            return False
    return True


def check_rows(code: NativeCode) -> bool:
    rng = np.random.default_rng(1)
    first, second, table = (rng.standard_normal((n, 3, 40), np.float32) for n in (2, 2, 5))
    joined, side_by_side = np.zeros((2, 6, 40), np.float32), np.zeros((2, 3, 80), np.float32)
    run_op(code, "join", joined, [first, second], 4 * 4 + 1)
    run_op(code, "join", side_by_side, [first, second], 4 * 4)
    matrix, picked, places = table.reshape(5, 120), np.zeros((2, 120), np.float32), np.array([4, 1], np.int32)
    run_op(code, "pick", picked, [matrix, places])
    written = matrix.copy()
    run_op(code, "put", written, [matrix, first.reshape(2, 120), places])
    expected = matrix.copy()
    expected[places] = first.reshape(2, 120)
    return (
        np.array_equal(joined, np.concatenate([first, second], 1))
        and np.array_equal(side_by_side, np.concatenate([first, second], 2))
        and np.array_equal(picked, matrix[places])
        and np.array_equal(written, expected)
    )


def check_products(code: NativeCode) -> bool:
    """Whether products of random weights in the formats of files are right; those of others are tried with ggml."""
    formats = code.untried_formats()
    plain = _dtypes(code)
    return bool(plain) and all(_multiplies(code, dtype, formats[dtype.name]) for dtype in plain)


def _dtypes(code: NativeCode) -> list[DType]:
    return [DType[name] for name in code.untried_formats() if name in DType.__members__]


def _multiplies(code: NativeCode, dtype: DType, format_: int) -> bool:
    rng = np.random.default_rng(2)
    rows, inner = 70, 768
    data, x = random_blocks(dtype, rows * inner, rng), _exact_columns(rng, 9, inner)
    weights, matrix = _decoded(data, dtype, rows, inner), tensor_of(data, dtype, (inner, rows))
    found, alone = (multiply(code, format_, matrix, each) for each in (x, x[:1]))
    return np.array_equal(found[:1], alone) and _is_close(found, x @ weights.T)


def _exact_columns(rng: np.random.Generator, *shape: int) -> Array:
    """Columns that their codes tell exactly."""
    x = rng.integers(-127, 128, shape).astype(np.float32)
    x[..., ::32] = 127
    return x


def _decoded(blocks: Array, dtype: DType, *shape: int) -> Array:
    return decode(blocks.reshape(*shape[:-1], -1, dtype.type_size), dtype).reshape(shape).astype(np.float64)


def _is_close(found: Array, expected: Array) -> bool:
    return bool(np.allclose(found, expected, rtol=CLOSE, atol=CLOSE * np.abs(expected).max()))


def check_experts(code: NativeCode) -> bool:
    """Whether products by experts are right, and those of each column with its expert's weights, bit by bit."""
    ways = (False, True) if code.instructions(TILES) else (False,)
    return all(_multiplies_by_experts(code, *call) for call in product(_dtypes(code), (1, 3), ways))


def _multiplies_by_experts(code: NativeCode, dtype: DType, slots: int, tiles: bool) -> bool:
    rng = np.random.default_rng(slots)
    experts, rows, inner, tokens, used = 5, 70, 512, 20, 3
    blocks, x = random_blocks(dtype, experts * rows * inner, rng), _exact_columns(rng, tokens, slots, inner)
    ids = rng.integers(0, experts - 1, (tokens, used), np.int32)  # one expert has no columns
    ids[:, 0] = 2  # and one has many
    plain, number = (code.untried_formats(tiles=way)[dtype.name] for way in (False, tiles))
    found = multiply_by_experts(code, number, tensor_of(blocks, dtype, (inner, rows, experts)), x, ids)
    columns = np.broadcast_to(x, (tokens, used, inner))
    matrices = [tensor_of(part, dtype, (inner, rows)) for part in blocks.reshape(experts, -1)]
    each = (
        multiply(code, plain, matrices[ids[place]], columns[place][None]) for place in np.ndindex(ids.shape)
    )
    numbers = _decoded(blocks, dtype, experts, rows, inner)
    expected = np.einsum("turi,tui->tur", numbers[ids], columns)
    return np.array_equal(found.reshape(-1, rows), np.concatenate(list(each))) and _is_close(found, expected)


def check_tiles(code: NativeCode) -> str:
    """What keeps products of many columns by AMX from being used: other bits than without it, or more time."""
    ways = [code.untried_formats(tiles=tiles) for tiles in (False, True)]
    for dtype, columns in product(_dtypes(code), COUNTS):
        results = [multiply(code, way[dtype.name], *_operands(dtype, 70, 768, columns)) for way in ways]
        if results[0].tobytes() != results[1].tobytes():
            return f"other results for {dtype}, {columns} columns"
    if code.instructions(TILES) == EMULATED:
        return ""
    for dtype, columns in product(_dtypes(code), TIMED):
        times = [min(_seconds(code, way[dtype.name], dtype, columns) for _ in range(7)) for way in ways]
        if times[1] > FASTER * times[0]:
            took = f"{times[1] * 1e3:.2f} ms in place of {times[0] * 1e3:.2f}"
            return f"no faster for {dtype}, {columns} columns: {took}"
    return ""


def _seconds(code: NativeCode, format_: int, dtype: DType, columns: int) -> float:
    operands = _operands(dtype, 768, 1024, columns)
    begun = time.perf_counter()
    multiply(code, format_, *operands)
    return time.perf_counter() - begun


@cache
def _operands(dtype: DType, rows: int, inner: int, columns: int) -> tuple[TensorStruct, Array]:
    rng = np.random.default_rng(columns)
    blocks = random_blocks(dtype, rows * inner, rng)
    return tensor_of(blocks, dtype, (inner, rows)), rng.standard_normal((columns, inner), np.float32)


TRIALS: dict[str, Callable[[NativeCode], bool | str]] = {
    ATTENTION: check_attention,
    CONVOLUTION: check_convolution,
    EXPERTS: check_experts,
    GATES: check_gates,
    PRODUCTS: check_products,
    RECURRENCE: check_recurrence,
    ROWS: check_rows,
    TILES: check_tiles,
}
"""Each tells whether all is right, or what is not."""


def main(path: str, *purposes: str) -> int:
    """Print what is wrong with the code for a purpose, or as JSON for each that this processor has code for."""
    code = NativeCode(Path(path))
    chosen = purposes or [purpose for purpose in TRIALS if code.instructions(purpose)]
    answers = {purpose: TRIALS[purpose](code) for purpose in chosen}
    found = {
        purpose: answer if isinstance(answer, str) else "" if answer else "wrong results"
        for purpose, answer in answers.items()
    }
    sys.stdout.write(found[purposes[0]] if purposes else json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
