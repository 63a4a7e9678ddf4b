"""Logits of a small model in every dtype of files: as exact as rounded activations allow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf_files import write_gguf

import backbay
from backbay import Backend, BackendParams, DType, Spec, ops
from backbay.internals import Array, decoding_gap, dequantize
from backbay.plugin import decode, encode
from backbay_ggml.library.abi import has_type
from backbay_ggml.library.library import load_library

WIDTH, HIDDEN, LAYERS, VOCAB = 256, 512, 2, 64
NEVER_STORED = (DType.Q8_1, DType.Q8_K)  # only for activations
WEIGHTS = tuple(d for d in DType if (d.is_quantized or d.is_float) and d not in NEVER_STORED)
SCALES = {
    DType.Q2_K: (80, 82), DType.Q3_K: (108,), DType.Q6_K: (208,), DType.TQ1_0: (52,), DType.TQ2_0: (64,),
    DType.Q4_1: (0, 2), DType.Q5_1: (0, 2), DType.Q4_K: (0, 2), DType.Q5_K: (0, 2),
}  # fmt: skip
"""Offsets of a block's f16 scales, if not 0."""
OFFSETS = {DType.Q4_1: -7.5, DType.Q5_1: -15.5, DType.Q2_K: 1.5, DType.Q4_K: 7.5, DType.Q5_K: 15.5}
"""The second scale, relative to the first: with it, weights are about zero on average."""
UNIT = {DType.F32: 2.0**-24, DType.F16: 2.0**-11}
AS_LARGE = 2.0  # two equally large errors of different signs are so far apart
LENGTHS = (1, 3, 9)  # tokens: products of one column, of a few, and of many take different code


# -- weights of random codes -----------------------------------------------------------------------------


def blocks(rng: np.random.Generator, dtype: DType, rows: int, columns: int) -> Array:
    """Rows of blocks with random codes, and scales that keep products about as large as their operands."""
    count = rows * columns // dtype.block_size
    raw = rng.integers(0, 256, (count, dtype.type_size), dtype=np.uint8)
    spread = np.exp(rng.uniform(-1, 1, count)) * rng.choice([-1, 1], count)
    scaled(raw, dtype, spread)
    deviation = np.std(dequantize(raw, dtype))
    scaled(raw, dtype, spread / (deviation * columns**0.5))
    return raw.reshape(rows, -1)


def scaled(raw: Array, dtype: DType, scales: Array) -> None:
    """Write the scales into blocks."""
    if dtype is DType.MXFP4:  # a power of two
        raw[:, 0] = np.clip(127 + np.round(np.log2(np.abs(scales))), 0, 255)
    elif dtype is DType.NVFP4:  # four of 8 bits, of which three are the significand
        raw[:, :4] = np.clip(56 + np.round(8 * np.log2(np.abs(scales))), 1, 126)[:, None]
    elif dtype is DType.IQ1_M:  # its four digits stand on top of four words
        words, bits = raw[:, 48:].view(np.uint16), scales.astype(np.float16).view(np.uint16)
        words[...] = (words & 0x0FFF) | (bits[:, None] >> np.array([0, 4, 8, 12], np.uint16)) << 12
    else:
        places = SCALES.get(dtype, (0,))
        for at, factor in zip(places, (1.0, OFFSETS.get(dtype)), strict=False):
            assert factor is not None
            raw[:, at : at + 2] = (factor * scales).astype(np.float16).view(np.uint8).reshape(-1, 2)


def write_model(path: Path, dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    tensors = []
    matrices = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH)}
    for n in range(LAYERS):
        matrices |= {f"blk.{n}.ffn_up": (HIDDEN, WIDTH), f"blk.{n}.ffn_down": (WIDTH, HIDDEN)}
    for name, (rows, columns) in matrices.items():
        if dtype.is_quantized:
            data = blocks(rng, dtype, rows, columns)
        else:
            numbers = (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)
            data = encode(numbers, dtype).reshape(rows, -1).view(np.uint8)
        tensors.append((f"{name}.weight", data, GGMLQuantizationType(int(dtype))))
    write_gguf(path, LAYERS, tensors)


# -- the model, on a backend and by hand -----------------------------------------------------------------


def logits(backend: Backend, tokens: list[int]) -> Array:
    with backend.new_context() as ctx:
        x = backend.get("token_embd.weight").rows(ctx, ctx.from_ints(tokens))
        for n in range(LAYERS):
            up = backend.get(f"blk.{n}.ffn_up.weight").mulmat(ctx, x.rms_norm(ctx, eps=1e-6))
            x = x.add(ctx, backend.get(f"blk.{n}.ffn_down.weight").mulmat(ctx, up.silu(ctx)))
        y = backend.get("output.weight").mulmat(ctx, x.rms_norm(ctx, eps=1e-6))
        ctx.compute(y)
        return y.numpy()


def by_hand(weights: dict[str, Array], tokens: list[int], rounded: Callable[[Array], Array]) -> Array:
    """The logits in float64; only activations are rounded, before they meet a weight."""

    def product(name: str, x: Array) -> Array:
        return np.asarray(rounded(x) @ weights[f"{name}.weight"].T)

    def norm(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6))

    x = weights["token_embd.weight"][tokens]
    for n in range(LAYERS):
        up = product(f"blk.{n}.ffn_up", norm(x))
        x = x + product(f"blk.{n}.ffn_down", up / (1 + np.exp(-up)))
    return product("output", norm(x))


def rounding(dtype: DType) -> Callable[[Array], Array]:
    """A function that rounds activations to a dtype, as ggml's formats are defined."""
    if dtype.is_float:
        return lambda x: decode(encode(x.astype(np.float32), dtype), dtype).astype(np.float64)

    def eight_bit(x: Array) -> Array:
        parts = x.reshape(-1, dtype.block_size)
        step = np.abs(parts).max(1, keepdims=True) / 127 + 1e-30
        kept = step if dtype is DType.Q8_K else step.astype(np.float16).astype(np.float64)
        return np.asarray(np.round(parts / step) * kept).reshape(x.shape)

    return eight_bit


def nmse(found: Array, right: Array) -> float:
    return float(np.square(found - right).sum() / np.square(right).sum())


# -- the comparison --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=WEIGHTS, ids=str)
def dtype(request) -> DType:
    if not has_type(load_library().lib, request.param):
        pytest.skip(f"this ggml does not know {request.param}")
    if decoding_gap(request.param):
        pytest.skip(decoding_gap(request.param))
    return request.param


@pytest.fixture(scope="module")
def path(dtype, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("types") / f"{dtype}.gguf"
    write_model(made, dtype)
    return made


@pytest.fixture(scope="module")
def truths(path) -> tuple[dict[str, Array], dict[int, Array]]:
    """The weights of a file as numbers, and its logits, both from the reference backend."""
    with backbay.open(path, backend="cpu_ref") as backend:
        backend.load()
        weights = {name: backend.get(name).numpy().astype(np.float64) for name in backend.model.tensors}
        return weights, {count: logits(backend, tokens(count)) for count in LENGTHS}


def tokens(count: int) -> list[int]:
    return [7 * n % VOCAB for n in range(count)]


def allowed(backend: Backend, dtype: DType, weights: dict[str, Array], count: int, right: Array) -> float:
    """The error of rounded activations, plus the error of rounded sums as long as the longest row."""
    told = backend.precision(ops.mulmat, [Spec(dtype, (WIDTH, HIDDEN)), Spec(DType.F32, (WIDTH, count))])
    sums = (2 * LAYERS + 1) * HIDDEN * UNIT[told.accumulate] ** 2
    return AS_LARGE * nmse(by_hand(weights, tokens(count), rounding(told.activation)), right) + sums


@pytest.mark.parametrize("placed", ["mapped", "auto"])
@pytest.mark.few(6)
def test_logits_of_every_type_are_as_exact_as_rounded_activations(placed, dtype, path, truths) -> None:
    weights, right = truths
    params = BackendParams(num_threads=2, options={"weights": placed})
    with backbay.open(path, backend="ggml", params=params) as backend:
        backend.load()
        for count in LENGTHS:
            assert nmse(by_hand(weights, tokens(count), lambda x: x), right[count]) < 1e-12
            limit = allowed(backend, dtype, weights, count, right[count])
            assert limit < 1e-2  # or it would let wrong kernels pass
            assert nmse(logits(backend, tokens(count)), right[count]) <= limit
