"""Products by experts by native code: the bits of plain products, one table of pairs, columns encoded once."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf_files import write_gguf

import backbay
from backbay import BackendParams, DType, ops
from backbay_ggml.avoided_calls import avoided_calls
from backbay_ggml.library.library import NATIVE, load_library
from backbay_native import EXPERTS, PRODUCTS

IN, OUT, COUNT = 256, 136, 5
NAMES = ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight")


@pytest.fixture(autouse=True)
def native(native_code, monkeypatch):
    """The code of the sources, in this process and in the trials of its children."""
    if not native_code.has(EXPERTS) or not native_code.has(PRODUCTS):
        pytest.skip("no native products for this processor")
    monkeypatch.setenv(NATIVE, str(native_code.path))
    monkeypatch.setattr(load_library(), "native", native_code)
    return native_code


@pytest.fixture(params=["Q4_0", "Q8_0"])
def backend(request, tmp_path):
    """A file with two mixtures."""
    kind, rng = GGMLQuantizationType[request.param], np.random.default_rng(3)
    tensors = [
        (name, quants.quantize(rng.standard_normal((COUNT, OUT, IN), np.float32), kind), kind)
        for name in NAMES
    ]
    path = write_gguf(tmp_path / "model.gguf", 1, tensors)
    with backbay.open(path, backend="ggml", params=BackendParams(num_threads=2)) as opened:
        opened.load()
        yield opened


def drawn(tokens: int, slots: int):
    rng = np.random.default_rng(tokens)
    ids = rng.integers(0, COUNT - 1, (tokens, 3), np.int32)  # they repeat, and one expert has no columns
    return rng.standard_normal((tokens, slots, IN), np.float32), ids


@pytest.mark.parametrize(("tokens", "slots"), [(1, 1), (1, 3), (8, 1), (70, 3)])
def test_results_are_those_of_plain_products(backend, tokens, slots) -> None:
    data, ids = drawn(tokens, slots)
    weight = backend.get(NAMES[0])
    with backend.new_context() as ctx:
        found = weight.mulmat_id(ctx, ctx.from_floats(data), ctx.from_ints(ids))
        matrices = [
            weight.view(ctx, n * weight.stride(2), (IN, OUT), (weight.stride(1),)) for n in range(COUNT)
        ]
        products = [matrix.mulmat(ctx, ctx.from_floats(data.reshape(-1, IN))) for matrix in matrices]
        ctx.compute(found, *products)
        each = np.stack([product.numpy().reshape(tokens, slots, OUT) for product in products])
        right = np.stack([[each[ids[t, u], t, u % slots] for u in range(3)] for t in range(tokens)])
        np.testing.assert_array_equal(found.numpy(), right)


def test_pairs_are_tabulated_once_and_columns_encoded_once_for_all_weights_that_they_meet(backend) -> None:
    data, ids = drawn(6, 1)
    with backend.new_context() as ctx:
        x, chosen = ctx.from_floats(data), ctx.from_ints(ids)
        made = [backend.get(name).mulmat_id(ctx, x, chosen) for name in NAMES]
        ctx.compute(*made)
        assert " ".join(ctx.recording._plan.report()).count("custom") == 4
        others = ctx.from_ints((ids + 1) % COUNT)
        ctx.compute(*made, backend.get(NAMES[0]).mulmat_id(ctx, x, others))
        assert " ".join(ctx.recording._plan.report()).count("custom") == 7


def test_ids_and_columns_that_lie_apart_are_taken(backend) -> None:
    data, _ = drawn(6, 3)
    scores = np.random.default_rng(1).standard_normal((6, COUNT)).astype(np.float32)
    weight = backend.get(NAMES[0])
    with backend.new_context() as ctx:
        ids = ctx.from_floats(scores).top_k(ctx, 2)  # ggml's is a view of all ids in order
        part = ctx.from_floats(data).slice(ctx, 1, 0, 2)
        found = weight.mulmat_id(ctx, part, ids)
        ctx.compute(found, ids)
        apart, adjoining = found.numpy(), (ctx.from_floats(data[:, :2]), ctx.from_ints(ids.numpy()))
        again = weight.mulmat_id(ctx, *adjoining)
        ctx.compute(again)
        np.testing.assert_array_equal(apart, again.numpy())


def test_the_promise_holds_for_each_format_and_no_other_dtype(backend, native) -> None:
    for name in ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "Q5_K", "F16", "MXFP4"):
        specs = backbay.Spec(DType[name], (IN, OUT, COUNT)), None, None
        assert backend.batch_invariant(ops.mulmat_id, specs) == (name in native.formats)
        assert (f"mulmat_id {DType[name]}" in avoided_calls(load_library(), ())) == (name in native.formats)


def test_ggml_computes_where_the_trial_fails(backend, native, monkeypatch) -> None:
    monkeypatch.setitem(native._faults, EXPERTS, "wrong results")
    monkeypatch.delitem(native.__dict__, "formats_of_experts", raising=False)
    data, ids = drawn(4, 1)
    with backend.new_context() as ctx:
        ctx.compute(backend.get(NAMES[0]).mulmat_id(ctx, ctx.from_floats(data), ctx.from_ints(ids)))
        assert "mul_mat_id" in " ".join(ctx.recording._plan.report())
    monkeypatch.delitem(native.__dict__, "formats_of_experts", raising=False)


def test_a_dry_run_counts_the_same_memory(backend) -> None:
    told = []
    for holds in (True, False):
        params = BackendParams(num_threads=2, alloc_memory=holds)
        with (
            backbay.open(backend.model.path, backend="ggml", params=params) as opened,
            opened.new_context() as ctx,
        ):
            x, ids = ctx.input().empty(DType.F32, IN, 1, 9), ctx.input().empty(DType.I32, 2, 9)
            ctx.forward(*(opened.get(name).mulmat_id(ctx, x, ids).neg(ctx) for name in NAMES))
            ctx.reserve()
            told.append([row[3].size for row in opened.memory().rows()])
    assert told[0] == told[1]
