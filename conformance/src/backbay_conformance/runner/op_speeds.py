"""The time of the ops of a Llama of 1B on a backend, beside the reference's in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from typing import Any

import numpy as np

import backbay
from backbay import Backend, Context, Debug, DType, Tensor, UnsupportedOpError

from ..checks.witness import REFERENCE
from ..report.report import OpSpeed
from ..suite.lab import PLAIN, OpenSettings, lab_with

TOKENS = 1, 16, 128  # a step of one sequence, of sixteen, and a short prompt
WIDTH, HEADS, KV_HEADS, HEAD, PAST = 2048, 32, 8, 64, 512
LEAST = 0.02  # seconds of each measurement
Made = Callable[[Context, int], Tensor]


def speeds(name: str, opening: OpenSettings) -> list[OpSpeed]:
    """The speeds of a backend that computes right; none where the reference is not installed, or is asked for."""
    if name == REFERENCE or REFERENCE not in backbay.backends():
        return []
    with _opened(name, opening) as backend, _opened(REFERENCE, PLAIN) as reference:
        return list(_measured(backend, reference))


def _opened(name: str, opening: OpenSettings) -> Backend:
    return lab_with(name, opening).fresh(num_threads=None, debug=Debug())


def _measured(backend: Backend, reference: Backend) -> Iterator[OpSpeed]:
    for (op, dtype), made in CALLS.items():
        for tokens in TOKENS:
            with backend.new_context() as ctx, reference.new_context() as other:
                try:
                    own, theirs = _runs(ctx, made, tokens), _runs(other, made, tokens)
                except UnsupportedOpError:
                    continue
                best = [inf, inf]
                for _ in range(3):  # by turns, since the machine's speed drifts
                    best = [min(least, _seconds(run)) for least, run in zip(best, (own, theirs), strict=True)]
                yield OpSpeed(op, dtype, tokens, float(f"{best[0]:.3g}"), float(f"{best[1] / best[0]:.3g}"))


def _runs(ctx: Context, made: Made, tokens: int) -> Callable[[], object]:
    result = made(ctx.layer(0), tokens)
    ctx.compute(result)  # compiles

    def run() -> object:
        ctx.compute(result)
        return result.bytes()  # a device has then computed it

    return run


def _seconds(run: Callable[[], object]) -> float:
    begun, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - begun < LEAST:
        run()
        count += 1
    return (time.perf_counter() - begun) / count


def _numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape[::-1], np.float32)


def _product(dtype: DType) -> Made:
    def product(ctx: Context, tokens: int) -> Tensor:
        weight = ctx.from_bytes(dtype, _blocks(dtype), WIDTH, WIDTH)
        return weight.mulmat(ctx, ctx.from_floats(_numbers(WIDTH, tokens)))

    return product


@cache
def _blocks(dtype: DType) -> bytes:
    from gguf import GGMLQuantizationType, quants

    return bytes(quants.quantize(_numbers(WIDTH, WIDTH), GGMLQuantizationType(dtype.value)).data)


def _attention(ctx: Context, tokens: int) -> Tensor:
    query = ctx.from_floats(_numbers(HEAD, HEADS, tokens))
    key, value = (ctx.from_floats(_numbers(HEAD, KV_HEADS, PAST)) for _ in range(2))
    return query.scaled_dot_product_attention(ctx, key, value, scale=HEAD**-0.5)


def _rope(ctx: Context, tokens: int) -> Tensor:
    heads, positions = ctx.from_floats(_numbers(HEAD, HEADS, tokens)), ctx.from_ints(np.arange(tokens))
    return heads.rope(ctx, positions, HEAD, 10000.0)


def _rows(ctx: Context, tokens: int) -> Tensor:
    return ctx.from_floats(_numbers(WIDTH, tokens))


CALLS: dict[tuple[str, str], Made] = {
    **{("mulmat", dtype.name.lower()): _product(dtype) for dtype in (DType.F16, DType.Q8_0, DType.Q4_0)},
    ("scaled_dot_product_attention", "f32"): _attention,
    ("rope", "f32"): _rope,
    ("rms_norm", "f32"): lambda ctx, tokens: _rows(ctx, tokens).rms_norm(
        ctx, ctx.from_floats(_numbers(WIDTH))
    ),
    ("softmax", "f32"): lambda ctx, tokens: _rows(ctx, tokens).softmax(ctx),
    ("silu", "f32"): lambda ctx, tokens: _rows(ctx, tokens).silu(ctx, _rows(ctx, tokens)),
    ("add", "f32"): lambda ctx, tokens: _rows(ctx, tokens).add(ctx, _rows(ctx, tokens)),
}
"""What is measured, by op and dtype of the weights."""
