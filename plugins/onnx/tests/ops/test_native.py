"""Products of a model's weights and attention by native code, in sessions of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from custom_ops import node, run
from model_file import quantized, write_model

import backbay
from backbay import BackendParams, DType
from backbay_native import FORMATS, NativeCode
from backbay_native.native_code import WITH_TILES
from backbay_native.trial_cases import random_blocks
from backbay_onnx.lowering.graph_lowering import name_following_weights
from backbay_onnx.session.native import DOMAIN

IN, OUT, ROWS = 512, 264, 70
DTYPES = (DType.Q4_0, DType.Q8_0, DType.Q4_K, DType.Q6_K)
NAMES = ("blk.0.q", "blk.0.k")


@pytest.fixture(params=DTYPES, ids=str)
def path(request: pytest.FixtureRequest, native: NativeCode, tmp_path: Path) -> Path:
    """A file with two matrices, and one of three experts."""
    if request.param.name not in native.formats:
        pytest.skip("no native code for this type on this processor")
    rng = np.random.default_rng(3)
    weights = {name: (request.param, quantized(rng, request.param, IN, OUT)) for name in NAMES}
    weights["blk.0.experts"] = request.param, quantized(rng, request.param, IN, 40, 3)
    return write_model(tmp_path / "model.gguf", weights, block_count=1)


def opened(path: Path, threads: int = 2, **options: Any) -> Any:
    return backbay.open(path, backend="onnx", params=BackendParams(num_threads=threads, options=options))


def nodes(backend: Any) -> Iterator[Any]:
    for known in backend.sessions._compiled.values():
        for compiled in known:
            yield from compiled.lowered.model.graph.node


def test_weights_are_multiplied_as_they_lie_in_the_file(path: Path) -> None:
    with opened(path) as backend, backend.new_context() as ctx:
        backend.load()
        loaded = backend.memory().total()
        x = ctx.from_floats(np.ones((3, IN), np.float32))
        ctx.compute(*(backend.get(name).mulmat(ctx, x) for name in NAMES))
        ops = [node.op_type for node in nodes(backend) if node.domain == DOMAIN]
        assert ops.count("Products") == 2
        assert ops.count("Columns") == 1  # for both
        weights = sum(info.nbytes for info in backend.model.tensors.values())
        assert loaded == weights
        assert backend.memory().cpu.weights[0].size == weights


def test_a_product_names_the_weights_of_the_next_one(path: Path) -> None:
    with opened(path) as backend, backend.new_context() as ctx:
        backend.load()
        x = ctx.from_floats(np.ones((3, IN), np.float32))
        ctx.compute(*(backend.get(name).mulmat(ctx, x) for name in NAMES))
        first, second = (list(node.input) for node in nodes(backend) if node.op_type == "Products")
        assert len(first) == 3 and len(second) == 2
        assert first[2] == second[0]


def test_no_product_names_weights_that_another_node_makes() -> None:
    made = [
        node("Products", ["w", "codes"], "y"),
        node("Identity", ["w"], "v"),
        node("Products", ["v", "codes"], "z"),
    ]
    graph = onnx.helper.make_graph(made, "graph", [], [])
    name_following_weights(graph)
    assert [len(each.input) for each in graph.node] == [2, 1, 2]


def test_a_column_has_the_same_result_alone_among_others_and_on_any_number_of_threads(path: Path) -> None:
    data = np.random.default_rng(6).standard_normal((300, IN)).astype(np.float32)
    made = {}
    for threads, count in ((1, 300), (2, 300), (3, 33), (2, 4), (2, 1)):
        with opened(path, threads) as backend, backend.new_context() as ctx:
            backend.load()
            y = backend.get(NAMES[0]).mulmat(ctx, ctx.from_floats(data[:count]))
            ctx.compute(y)
            made[threads, count] = y.numpy()
    for (_, count), found in made.items():
        np.testing.assert_array_equal(found, made[1, 300][:count])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [15, 16, 41, 300])
@pytest.mark.few(4)
def test_a_session_gives_the_same_products_with_tiles(
    native_code_with_tiles: NativeCode, native: NativeCode, dtype: DType, columns: int
) -> None:
    rng, number = np.random.default_rng(columns), FORMATS.index(dtype.name)
    weights = random_blocks(dtype, ROWS * IN, rng).reshape(ROWS, -1)
    given = {"w": weights, "x": rng.standard_normal((columns, IN), np.float32)}
    found = [
        run(
            code.path,
            [
                node("Columns", ["x"], "codes", format=format_, inner=0),
                node("Products", ["w", "codes"], "y", format=format_, first=0, rows=ROWS),
            ],
            given,
            "y",
        )
        for code, format_ in ((native, number), (native_code_with_tiles, number + WITH_TILES))
    ]
    np.testing.assert_array_equal(*found)


def test_products_of_experts_and_rows_are_right(path: Path) -> None:
    rng = np.random.default_rng(7)
    x, ids = rng.standard_normal((9, 1, IN)).astype(np.float32), rng.integers(0, 2, (9, 2)).astype(np.int32)
    found = {}
    for name in ("onnx", "cpu_ref"):
        with backbay.open(path, backend=name) as backend, backend.new_context() as ctx:
            backend.load()
            experts = backend.get("blk.0.experts").mulmat_id(ctx, ctx.from_floats(x), ctx.from_ints(ids))
            rows = backend.get(NAMES[1]).rows(ctx, ctx.from_ints([OUT - 1, 0, 7]))
            ctx.compute(experts, rows)
            found[name] = experts.numpy(), rows.numpy()
    np.testing.assert_array_equal(found["onnx"][1], found["cpu_ref"][1])
    right = found["cpu_ref"][0]
    assert np.square(found["onnx"][0] - right).sum() < 1e-4 * np.square(right).sum()


@pytest.mark.fault("rows by a number outside of a weight reach native code", "an error; nothing is read")
@pytest.mark.parametrize("number", [-1, ROWS, 2**40])
def test_a_row_outside_of_a_weight_is_an_error(native: NativeCode, number: int) -> None:
    data, ids = np.zeros((ROWS, 18), np.uint8), np.array([0, number])
    rows = node("Rows", ["w", "ids"], "rows", format=FORMATS.index("Q4_0"))
    with pytest.raises(Exception, match="out of range"):
        run(native.path, [rows], {"w": data, "ids": ids}, "rows")


def test_no_columns_give_no_products(path: Path) -> None:
    with opened(path) as backend, backend.new_context() as ctx:
        backend.load()
        y = backend.get(NAMES[0]).mulmat(ctx, ctx.empty(DType.F32, IN, 0))
        ctx.compute(y)
        assert y.numpy().shape == (0, OUT)


def test_exports_hold_no_op_of_ours_and_give_the_same_results(path: Path, tmp_path: Path) -> None:
    with opened(path) as backend, backend.new_context() as ctx:
        backend.load()
        before = backend.memory().total()
        x = ctx.from_floats(np.ones((3, IN), np.float32))
        y = backend.get(NAMES[0]).mulmat(ctx, x)
        ctx.forward(y).export(tmp_path / "out", names={"x": x, "y": y})
        assert backend.memory().total() > before  # the weight was packed for the file
    model = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    assert DOMAIN not in {node.domain for node in model.graph.node}
    assert DOMAIN not in {opset.domain for opset in model.opset_import}


def test_exact_products_are_those_of_the_runtime(path: Path) -> None:
    with opened(path, precision="exact") as backend, backend.new_context() as ctx:
        backend.load()
        ctx.compute(backend.get(NAMES[0]).mulmat(ctx, ctx.from_floats(np.ones((3, IN), np.float32))))
        assert DOMAIN not in {node.domain for node in nodes(backend)}


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 65])
def test_attention_reads_keys_and_values_as_they_are_stored(
    native: NativeCode, dtype: DType, tokens: int
) -> None:
    rng = np.random.default_rng(8)
    history = 700
    query, key, value = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((tokens, 8, 72), (history, 2, 72), (history, 2, 40))
    )
    seen = np.arange(history) <= np.arange(tokens)[:, None] + history - tokens
    mask = np.where(seen, 0, -np.inf).astype(np.float32)
    found = {}
    for name in ("onnx", "cpu_ref"):
        with backbay.open(None, backend=name) as backend, backend.new_context() as ctx:
            k, v = (ctx.empty(dtype, *each.shape[::-1]).from_floats(each) for each in (key, value))
            y = ctx.from_floats(query).scaled_dot_product_attention(
                ctx, k, v, ctx.from_floats(mask), scale=0.1, softcap=20.0,
                sinks=ctx.from_floats(np.ones(8, np.float32)),
            )  # fmt: skip
            ctx.compute(y)
            found[name] = y.numpy()
            if name == "onnx":
                ops = [node.op_type for node in nodes(backend)]
                assert ops.count("Attention") == ops.count("Cells") == 1
                assert "Cast" not in ops
    np.testing.assert_allclose(found["onnx"], found["cpu_ref"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scalar", ["query", "key"])
def test_attention_takes_a_number_that_was_given_a_shape(native: NativeCode, scalar: str) -> None:
    found = {}
    for name in ("onnx", "cpu_ref"):
        with backbay.open(None, backend=name) as backend, backend.new_context() as ctx:
            number = ctx.empty(DType.F32).from_floats(np.float32(0.5)).tanh(ctx)
            cells = 1 if scalar == "key" else 5
            query = (
                number.reshape(ctx, 1, 1, 1) if scalar == "query" else ctx.from_floats(np.float32([[[2.0]]]))
            )
            key = (
                number.reshape(ctx, 1, 1, 1)
                if scalar == "key"
                else ctx.from_floats(np.arange(5.0).reshape(5, 1, 1))
            )
            y = query.scaled_dot_product_attention(ctx, key, key, ctx.zeros(DType.F32, cells, 1), scale=1.0)
            ctx.compute(y)
            found[name] = y.floats()
    np.testing.assert_allclose(found["onnx"], found["cpu_ref"], rtol=1e-6)


def test_layers_share_the_table_of_a_mask(native: NativeCode) -> None:
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        mask, y = ctx.zeros(DType.F32, 64, 5), ctx.zeros(DType.F32, 16, 4, 5)
        for _ in range(3):
            key = ctx.zeros(DType.F32, 16, 2, 64)
            y = y.scaled_dot_product_attention(ctx, key, key, mask, scale=0.1)
        ctx.compute(y)
        ops = [node.op_type for node in nodes(backend)]
        assert (ops.count("Attention"), ops.count("Cells")) == (3, 1)


@pytest.mark.parametrize("gated", [False, True])
def test_gates_are_right_from_the_smallest_numbers_to_the_largest(native: NativeCode, gated: bool) -> None:
    data = np.concatenate([np.linspace(-100, 100, 70_001), [1e30, np.inf, -1e-30, 0]]).astype(np.float32)
    factor = np.float32(1.5) if gated else np.float32(1)
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        x = ctx.from_floats(data)
        up = ctx.from_floats(np.full_like(data, factor)) if gated else None
        y = x.silu(ctx, up)
        ctx.compute(y)
        assert [node.op_type for node in nodes(backend)].count("Silu") == 1
        wide = data.astype(np.float64)
        expected = np.where(wide < 0, wide * np.exp(np.minimum(wide, 0)), wide) / (1 + np.exp(-np.abs(wide)))
        np.testing.assert_allclose(y.floats(), expected * factor, rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("form", ["gated", "removing", "scan"])
@pytest.mark.parametrize("keys", [64, 40, 300])
def test_states_recur_by_native_code_if_it_takes_their_rows(native: NativeCode, form: str, keys: int) -> None:
    rng = np.random.default_rng(keys)
    s, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 17, keys), (2, 9, 3, 17)))
    q, k = ((rng.uniform(-1, 1, (2, 9, 3, keys)) / keys**0.5).astype(np.float32) for _ in range(2))
    decay, share = rng.uniform(-1, 0, (2, 9, 3, keys)), rng.uniform(0, 1, (2, 9, 3, 1))
    found = {}
    for name in ("onnx", "cpu_ref"):
        with backbay.open(None, backend=name) as backend, backend.new_context() as ctx:
            state, query, key, value = (ctx.from_floats(x) for x in (s, q, k, v))
            if form == "scan":
                step, a = ctx.from_floats(decay[..., 0]), ctx.from_floats([[-0.5], [-1.0], [-0.1]])
                y = state.ssm_scan(ctx, value, step, a, key, query, ctx.from_ints([1, 0]))
            else:
                controls = ctx.from_floats(decay), ctx.from_floats(share)
                y = state.delta_rule(ctx, query, key, value, *controls, key if form == "removing" else None)
            ctx.compute(y)
            found[name] = y.numpy()
            if name == "onnx":
                ops = {node.op_type for node in nodes(backend)}
                assert bool(ops & {"DeltaRule", "SelectiveScan"}) == (keys < 300)
    np.testing.assert_allclose(found["onnx"], found["cpu_ref"], rtol=1e-4, atol=1e-4)
