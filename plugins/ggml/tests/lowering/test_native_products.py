"""Products of a model's weights by native code: plain and repacked weights, and columns that several weights share."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf_files import write_gguf

import backbay
from backbay import BackendParams, DType
from backbay_ggml.library.abi import NULL
from backbay_ggml.library.library import NATIVE, load_library
from backbay_ggml.lowering.builder import NEXT_WEIGHTS
from backbay_ggml.weights.arrangements import REPACK
from backbay_native import PRODUCTS

IN, OUT = 512, 264
NAMES = ("blk.0.attn_q.weight", "blk.0.attn_k.weight")
ERROR = 3e-2  # of the rounding of columns


@pytest.fixture(autouse=True)
def native(native_code, monkeypatch):
    """The code of the sources, in this process and in the trials of its children."""
    library = load_library()
    if not native_code.has(PRODUCTS):
        pytest.skip("no native products for this processor")
    monkeypatch.setenv(NATIVE, str(native_code.path))
    monkeypatch.setattr(library, "native", native_code)
    return native_code


@pytest.fixture(params=["auto", "mapped"])
def weights(request):
    return request.param


@pytest.fixture(params=["Q4_0", "Q8_0"])
def format_(request):
    return request.param


@pytest.fixture
def model(format_, tmp_path):
    """A file with two matrices, and their numbers."""
    kind, rng = GGMLQuantizationType[format_], np.random.default_rng(3)
    held, tensors = {}, []
    for name in NAMES:
        data = quants.quantize(rng.standard_normal((OUT, IN)).astype(np.float32), kind)
        held[name] = quants.dequantize(data, kind)
        tensors.append((name, data, kind))
    return write_gguf(tmp_path / "model.gguf", 1, tensors), held


def opened(path, weights, **params):
    options = {"weights": weights}
    return backbay.open(path, backend="ggml", params=BackendParams(num_threads=2, options=options, **params))


def test_columns_are_encoded_once_for_all_weights_that_they_meet(native, format_, model, weights) -> None:
    """ggml, which multiplies what native code has no format for, encodes them in each product."""
    path, held = model
    with opened(path, weights) as backend, backend.new_context() as ctx:
        backend.load()
        data = np.random.default_rng(4).standard_normal((5, IN)).astype(np.float32)
        x = ctx.from_floats(data)
        made = [backend.get(name).mulmat(ctx, x) for name in NAMES]
        ctx.compute(*made)
        for name, product in zip(NAMES, made, strict=True):
            right = data @ held[name].T
            assert np.square(product.numpy() - right).sum() < ERROR**2 * np.square(right).sum()
        names = " ".join(ctx.recording._plan.report())
        counts = names.count("custom"), names.count("mul_mat")
        assert counts == ((3, 0) if format_ in native.formats else (0, 2)), names


def test_a_native_product_knows_the_weights_of_the_next_one(native, format_, model, weights) -> None:
    """So that it fetches them from memory while it ends."""
    path, _held = model
    with opened(path, weights) as backend, backend.new_context() as ctx:
        backend.load()
        x = ctx.from_floats(np.ones((1, IN), np.float32))
        ctx.compute(*(backend.get(name).mulmat(ctx, x) for name in NAMES))
        first, last = (op for op in ctx.recording._plan._ops if op.src[0] != NULL and op.src[0].ne[1] == OUT)
        assert first.src[0] != last.src[0]
        assert first.src[NEXT_WEIGHTS] == (last.src[0] if format_ in native.formats else NULL)
        assert last.src[NEXT_WEIGHTS] == NULL


def test_repacked_weights_give_the_same_bits_as_plain_ones(model) -> None:
    path, _held = model
    data, found = np.random.default_rng(5).standard_normal((3, IN)).astype(np.float32), {}
    for weights in ("auto", "mapped"):
        with opened(path, weights) as backend, backend.new_context() as ctx:
            backend.load()
            y = backend.get(NAMES[0]).mulmat(ctx, ctx.from_floats(data))
            ctx.compute(y)
            arrangement = backend.weights.on_cpu.arrangement(backend.model.tensors[NAMES[0]])
            found[arrangement and arrangement.name] = y.numpy()
    if REPACK in found:
        np.testing.assert_array_equal(found[REPACK], found[None])


@pytest.mark.parametrize("count", [1, 4, 33])
def test_a_column_has_the_same_result_in_a_context_of_its_own(model, weights, count) -> None:
    path, _held = model
    data = np.random.default_rng(6).standard_normal((40, IN)).astype(np.float32)
    with opened(path, weights) as backend, backend.new_context() as ctx, backend.new_context() as other:
        backend.load()
        whole = backend.get(NAMES[0]).mulmat(ctx, ctx.from_floats(data))
        part = backend.get(NAMES[0]).mulmat(other, other.from_floats(data[:count]))
        ctx.compute(whole)
        other.compute(part)
        np.testing.assert_array_equal(whole.numpy()[:count], part.numpy())


def test_columns_of_several_matrices_and_scattered_ones_are_taken(model, weights) -> None:
    path, held = model
    data = np.random.default_rng(7).standard_normal((3, 2, 4, IN)).astype(np.float32)
    with opened(path, weights) as backend, backend.new_context() as ctx:
        backend.load()
        w, x = backend.get(NAMES[0]), ctx.from_floats(data)
        swapped = x.permute(ctx, 0, 2, 1, 3)
        made = [w.mulmat(ctx, x), w.mulmat(ctx, swapped)]
        ctx.compute(*made)
        right = data @ held[NAMES[0]].T
        for product, wanted in zip(made, (right, right.swapaxes(1, 2)), strict=True):
            assert product.numpy().shape == wanted.shape
            assert np.square(product.numpy() - wanted).sum() < ERROR**2 * np.square(wanted).sum()


def test_a_dry_run_counts_the_same_memory(model, weights) -> None:
    path, _held = model
    told = []
    for holds in (True, False):
        with opened(path, weights, alloc_memory=holds) as backend, backend.new_context() as ctx:
            x = ctx.input().empty(DType.F32, IN, 9)
            ctx.forward(*(backend.get(name).mulmat(ctx, x).neg(ctx) for name in NAMES))
            ctx.reserve()
            told.append([row[3].size for row in backend.memory().rows()])
    assert told[0] == told[1]
