"""Quantized weights stay quantized, and give the numbers of the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_file import quantized, write_model

import backbay
from backbay import BackendParams, DType
from backbay.internals import dequantize
from backbay.plugin import encode
from backbay_onnx.weights.packing import ENCODINGS, PackedWeight

K, N, EXPERTS, TOKENS = 512, 24, 4, 5
KINDS = sorted(ENCODINGS)
FAST_ERROR = 1.5e-2  # of the largest result: activations are rounded to int8 in blocks


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_packed_codes_and_scales_are_the_weight_exactly(dtype: DType) -> None:
    raw = quantized(np.random.default_rng(1), dtype, K, N)
    packed, encoding = PackedWeight(dtype, raw.reshape(-1).view(np.uint8), K * N), ENCODINGS[dtype]
    codes = packed.codes
    if encoding.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    numbers = (codes.astype(np.float32) - encoding.zero) * packed.scales[:, None]
    numbers = numbers if packed.mins is None else numbers - packed.mins[:, None]
    np.testing.assert_array_equal(numbers.reshape(N, K), dequantize(raw, dtype).reshape(N, K))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[DType, Path]:
    """A file for each type: a matrix, experts, and its numbers as float32 for the reference."""
    folder, rng, made = tmp_path_factory.mktemp("models"), np.random.default_rng(2), {}
    for dtype in [*KINDS, DType.IQ4_XS, DType.F16, DType.BF16, DType.F32]:
        if dtype is DType.IQ4_XS:
            raw = rng.integers(0, 256, (N * K // 256, 136), np.uint8)
            raw[:, :2] = np.full((len(raw), 1), 0.01, np.float16).view(np.uint8)
            weights = {
                "blk.0.w": (dtype, raw.reshape(N, -1)),
                "blk.0.e": (dtype, np.stack([raw.reshape(N, -1)] * EXPERTS)),
            }
        elif dtype.is_quantized:
            weights = {
                "blk.0.w": (dtype, quantized(rng, dtype, K, N)),
                "blk.0.e": (dtype, quantized(rng, dtype, K, N, EXPERTS)),
            }
        else:
            weights = {
                "blk.0.w": (dtype, stored(rng, (N, K), dtype)),
                "blk.0.e": (dtype, stored(rng, (EXPERTS, N, K), dtype)),
            }
        made[dtype] = write_model(folder / f"{dtype}.gguf", weights, block_count=1)
    return made


def stored(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Any:
    raw = encode(rng.standard_normal(shape).astype(np.float32), dtype)
    return raw.view(np.uint8) if dtype is DType.BF16 else raw


def use(name: str, path: Path, **options: Any) -> list[Any]:
    """Products, rows and expert products of the weights of one file."""
    with backbay.open(path, backend=name, params=BackendParams(options=options)) as backend:
        backend.load()
        rng = np.random.default_rng(3)
        with backend.new_context() as ctx:
            w, e = backend.get("blk.0.w"), backend.get("blk.0.e")
            assert w is not None and e is not None
            x = ctx.from_floats(rng.standard_normal((TOKENS, K)).astype(np.float32))
            x3 = ctx.from_floats(rng.standard_normal((TOKENS, 1, K)).astype(np.float32))
            ids = ctx.from_ints(rng.integers(0, EXPERTS - 1, (TOKENS, 2)))  # one expert has no token
            rows = w.rows(ctx, ctx.from_ints([[0, 3, N - 1], [1, 1, 2]]))
            made = [rows, w.mulmat(ctx, x), w.mulmat(ctx, x.slice(ctx, 1, 0, 1)), e.mulmat_id(ctx, x3, ids)]
            ctx.compute(*made)
            return [tensor.numpy() for tensor in made]


@pytest.mark.parametrize("dtype", [*KINDS, DType.IQ4_XS, DType.F16, DType.BF16, DType.F32], ids=str)
@pytest.mark.few(10)
def test_weights_give_the_results_of_the_reference(
    dtype: DType, models: dict[DType, Path], either: None
) -> None:
    expected = use("cpu_ref", models[dtype])
    for options, error in (({"precision": "exact"}, 1e-5), ({"precision": "fast"}, FAST_ERROR)):
        ours = use("onnx", models[dtype], **options)
        np.testing.assert_array_equal(ours[0], expected[0])
        for mine, theirs in zip(ours[1:], expected[1:], strict=True):
            assert np.abs(mine - theirs).max() <= error * np.abs(theirs).max()


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.few(8)
def test_a_fast_product_loses_no_more_than_rounded_activations_lose(
    dtype: DType, models: dict[DType, Path], either: None
) -> None:
    x = np.random.default_rng(9).standard_normal((64, K)).astype(np.float32)
    made = []
    for name in ("onnx", "cpu_ref"):
        with backbay.open(models[dtype], backend=name) as backend, backend.new_context() as ctx:
            backend.load()
            w = backend.get("blk.0.w")
            assert w is not None
            y = w.mulmat(ctx, ctx.from_floats(x))
            ctx.compute(y)
            made.append(y.numpy().astype(np.float64))
    ours, truth = made
    assert ((ours - truth) ** 2).sum() <= 6e-5 * (truth**2).sum()  # 1 / (127 * sqrt(12)) of the largest of 32


def test_the_declared_precision_follows_the_option(models: dict[DType, Path]) -> None:
    with backbay.open(models[DType.Q4_0], backend="onnx") as backend:
        w = backend.get("blk.0.w")
        assert w is not None
        assert backend.precision(backbay.ops.mulmat, [w, w]).activation is DType.Q8_0
    with pytest.raises(backbay.OptionError, match="fast or exact"):
        backbay.open(models[DType.Q4_0], backend="onnx", params=BackendParams(options={"precision": "quick"}))


def test_a_packed_weight_is_reported_before_and_after_loading(
    models: dict[DType, Path], without_native: None
) -> None:
    packed = K * N * (EXPERTS + 1) * 5 // 8  # 4 bits, and a float32 for each 32
    with backbay.open(
        models[DType.Q4_0], backend="onnx", params=BackendParams(alloc_memory=False)
    ) as backend:
        assert backend.memory().total() == packed
    with backbay.open(models[DType.Q4_0], backend="onnx") as backend:
        backend.load()
        assert backend.memory().allocated() == packed


def test_loading_tells_how_far_it_is_and_can_be_cancelled(models: dict[DType, Path]) -> None:
    import threading

    with backbay.open(models[DType.Q6_K], backend="onnx") as backend:
        cancel, seen = threading.Event(), []
        cancel.set()
        with pytest.raises(backbay.CancelledError):
            backend.load(cancel=cancel)
        backend.load(progress=seen.append)
        assert seen == sorted(seen) and seen[0] == 0.0 and seen[-1] == 1.0


def test_one_structure_with_other_weights_gets_its_own_session(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    weights = {f"blk.{n}.w": (DType.Q4_0, quantized(rng, DType.Q4_0, 64, 8)) for n in range(2)}
    path = write_model(tmp_path / "two.gguf", weights, block_count=2)
    with backbay.open(path, backend="onnx") as backend:
        backend.load()
        results = []
        for n in range(2):
            with backend.new_context() as ctx:
                w = backend.get(f"blk.{n}.w")
                assert w is not None
                y = w.mulmat(ctx, ctx.from_floats(np.ones((1, 64), np.float32)))
                ctx.compute(y)
                results.append(y.numpy())
        assert not np.array_equal(*results)


def test_a_type_that_nothing_decodes_is_declared_unsupported() -> None:
    """supports() says no, and the error comes before anything runs."""
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        x, ids = ctx.zeros(DType.Q1_0, 128, 2), ctx.from_ints([1])
        assert not backend.supports(backbay.ops.rows, [x, ids])
        y = x.rows(ctx, ids)
        with pytest.raises(backbay.UnsupportedOpError, match="rows"):
            ctx.compute(y)
