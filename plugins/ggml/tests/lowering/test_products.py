"""Products of large weights, which are computed with added columns or rows."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf_files import write_gguf

import backbay
from backbay import BackendParams
from backbay_ggml.ops import matrix
from backbay_ggml.weights.arrangement_trial_child import COLUMN_TYPES
from backbay_ggml.weights.arrangements import EXTRA_ROWS, REPACK, TYPES

RNG = np.random.default_rng(3)
IN, OUT = 1024, 2048
WEIGHT = "blk.0.attn_q.weight"
ACTIVATIONS = {"Q4_0": 3e-2, "Q8_0": 2e-2, "F16": 2e-3, "BF16": 2e-2, "F32": 1e-5}  # error of their rounding


@pytest.fixture(scope="module", params=ACTIVATIONS)
def model(request, tmp_path_factory):
    """A file with two matrices, their numbers, and their dtype."""
    kind = GGMLQuantizationType[request.param]
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    tensors, held = [], {}
    for name in (WEIGHT, "blk.0.attn_k.weight"):
        data = quants.quantize(RNG.standard_normal((OUT, IN)).astype(np.float32), kind)
        held[name] = quants.dequantize(data, kind)
        tensors.append((name, data, kind))
    return write_gguf(path, 1, tensors), held, request.param


@pytest.fixture(params=["plain", "other"])
def pays(request, monkeypatch):
    """The dtypes whose products of one column take the other form, whatever pays on this machine."""
    types = frozenset(COLUMN_TYPES) if request.param == "other" else frozenset()
    monkeypatch.setattr(matrix, "faster_in_llamafile", lambda _: types)
    return types


def opened(path):
    backend = backbay.open(path, backend="ggml", params=BackendParams(num_threads=1))
    backend.load()
    return backend


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 6, 7, 33])
@pytest.mark.few(16)
def test_products_are_right_and_added_columns_are_dropped(model, batch, full, pays) -> None:
    path, held, dtype = model
    with opened(path) as backend, backend.new_context() as ctx:
        x = ctx.input().empty(backbay.DType.F32, IN, batch)
        multiply = "mulmat_full_prec" if full else "mulmat"
        products = [getattr(backend.get(name), multiply)(ctx, x) for name in held]
        total = products[0].add(ctx, products[1])
        for _ in range(2):  # the memory of the first run serves the second
            data = RNG.standard_normal((batch, IN)).astype(np.float32)
            x.from_floats(data)
            ctx.compute(*products, total)
            wanted = [data @ weight.T for weight in held.values()]
            for got, right in zip((*products, total), (*wanted, sum(wanted)), strict=True):
                assert got.numpy().shape == (batch, OUT)
                error = np.square(got.numpy() - right).sum() / np.square(right).sum()
                assert error < ACTIVATIONS[dtype] ** 2


def columns_computed(model, batch):
    """The number of columns of a batch's product, from the plan's report, and the weights' arrangement."""
    with opened(model[0]) as backend, backend.new_context() as ctx:
        y = backend.get(WEIGHT).mulmat(ctx, ctx.from_floats(np.ones((batch, IN), np.float32)))
        ctx.compute(y)
        (line,) = [line for line in ctx.recording._plan.report() if "mul_mat" in line]
        arrangement = backend.weights.on_cpu.arrangement(backend.model.tensors[WEIGHT])
        return int(line.split("[")[-1].split(",")[1]), arrangement and arrangement.name


@pytest.mark.usefixtures("without_native")
def test_products_take_the_fastest_form(model, pays) -> None:
    for batch in (1, 2, 3, 4, 5, 6, 7, 33):
        count, arrangement = columns_computed(model, batch)
        if arrangement == REPACK:
            assert count == {2: 4, 3: 4, 6: 8, 7: 8}.get(batch, batch)
        elif batch == 1 and pays and arrangement is None:
            assert count == {"F16": 2, "BF16": 2, "Q8_0": OUT}.get(model[2], 1)
        else:
            assert count == batch


@pytest.mark.usefixtures("without_native")
@pytest.mark.parametrize("batch", [8, 9, 40])
def test_added_rows_change_no_result(model, batch, monkeypatch) -> None:
    """The added rows lie behind a weight; behind the last weight, memory is kept free for them."""
    results, rows = [], []
    for spaced in (False, True):
        with opened(model[0]) as backend, backend.new_context() as ctx:
            for arrangement in backend.weights.on_cpu._arrangements:
                monkeypatch.setattr(arrangement, "spaced", TYPES if spaced else ())
            x = ctx.from_floats(np.random.default_rng(batch).standard_normal((batch, IN)).astype(np.float32))
            made = [backend.get(name).mulmat(ctx, x) for name in model[1]]
            ctx.compute(*made)
            results.append([product.numpy() for product in made])
            told = [line for line in ctx.recording._plan.report() if "mul_mat" in line]
            rows.append({int(line.split("[")[1].split(",")[1]) for line in told})
            arranged = backend.weights.on_cpu.arrangement(backend.model.tensors[WEIGHT]) is not None
    np.testing.assert_array_equal(results[0], results[1])
    assert rows == [{OUT}, {OUT + EXTRA_ROWS if arranged and batch > matrix.SET_COLUMNS else OUT}]


@pytest.mark.parametrize("batch", [1, 2, 33])
def test_a_dry_run_counts_added_columns(model, batch, pays) -> None:
    told = []
    for holds in (True, False):
        params = BackendParams(num_threads=1, alloc_memory=holds)
        with backbay.open(model[0], backend="ggml", params=params) as backend, backend.new_context() as ctx:
            x = ctx.input().empty(backbay.DType.F32, IN, batch)
            ctx.forward(backend.get(WEIGHT).mulmat(ctx, x).neg(ctx))
            ctx.reserve()
            told.append([row[3].size for row in backend.memory().rows()])
    assert told[0] == told[1]


def test_weights_with_the_lowest_code_are_multiplied_correctly(tmp_path) -> None:
    """Quantizers make no -128, but a file may hold it, and ggml cannot negate it."""
    data = RNG.integers(0, 256, (OUT, IN // 32, 34), np.uint8)
    data[:, :, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    data[:, :, 2] = 128
    kind = GGMLQuantizationType.Q8_0
    path = write_gguf(tmp_path / "lowest.gguf", 1, [(WEIGHT, data.reshape(OUT, -1), kind)])
    x = RNG.integers(-127, 128, IN).astype(np.float32)
    x[::32] = -127
    with opened(path) as backend, backend.new_context() as ctx:
        y = backend.get(WEIGHT).mulmat(ctx, ctx.from_floats(x))
        ctx.compute(y)
        right = quants.dequantize(data.reshape(OUT, -1), kind) @ x
        assert np.abs(y.numpy() - right).max() < 1e-3 * np.abs(right).max()
