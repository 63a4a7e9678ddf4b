"""What the verdicts on a device change: copies, ops left to the CPU, other ops, and declared precision.

The device is a server's, whose verdict a test may choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from rpc_servers import Server, serving

from backbay import BackendParams, Context, DType, GPULayers, GPULayersList, Precision, Spec, Tensor, ops
from backbay_ggml import Ggml
from backbay_ggml.device_trial_child import DeviceTrial
from backbay_ggml.devices.device_trial import DeviceVerdict
from backbay_ggml.devices.known_faults import (
    KNOWN_FAULTS,
    LARGE_MEAN,
    LONG_COPIES,
    PRODUCT_NAN,
    QUERIES_BETWEEN_VECTORS,
    REPEATED_IDS,
    SLICES_APART,
)
from backbay_ggml.devices.trial_cases import CASES, TrialLeafMaker
from backbay_ggml.library.abi import FULL_PRECISION, NULL
from backbay_ggml.library.library import load_library

ON_CPU = BackendParams(gpu_layers=GPULayersList([]), num_threads=2)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if load_library().lib.ggml_backend_reg_by_name(b"RPC") == NULL:
        pytest.skip("this library has no RPC")
    with serving(devices=1) as made:
        yield made


@pytest.fixture
def judged(server):
    """A backend with everything on a device that computes all cases rightly but some."""
    opened: list[Ggml] = []

    def make(*wrong: str, measured: Mapping[str, tuple[str, str]] = {}) -> Ggml:
        placed = GPULayersList([GPULayers("RPC:0", range(1))])
        made = Ggml(None, BackendParams(gpu_layers=placed, options={"rpc": server.endpoint}, num_threads=1))
        opened.append(made)
        made.all_devices[1].verdict = DeviceVerdict("", dict.fromkeys(wrong, "0"), measured, tuple(CASES))
        return made

    yield make
    for each in opened:
        each.close()


def run_case(backend: Ggml, name: str) -> tuple[np.ndarray, list[str]]:
    """The result of a case, and the ops that ran, with their devices."""
    with backend.new_context() as ctx, Ggml(None, ON_CPU) as cpu:
        made = CASES[name](TrialLeafMaker(ctx, DeviceTrial(backend, cpu).quantized))
        ctx.compute(made)
        return made.numpy(), ctx.recording._plan.report()


def test_a_view_that_a_device_reads_rightly_is_not_copied(judged) -> None:
    _, ran = run_case(judged(), "GET_ROWS i32")
    assert [each.partition("(")[0] for each in ran] == ["RPC:0 get_rows"]


def test_a_view_that_a_device_reads_wrongly_is_copied_there_first(judged) -> None:
    expected, _ = run_case(judged(), "GET_ROWS i32")
    found, ran = run_case(judged("GET_ROWS i32"), "GET_ROWS i32")
    assert [each.partition("(")[0] for each in ran] == ["RPC:0 cont", "RPC:0 get_rows"]
    np.testing.assert_array_equal(found, expected)


def test_an_op_goes_to_the_cpu_if_the_device_cannot_copy_its_view(judged) -> None:
    expected, _ = run_case(judged(), "GET_ROWS i32")
    found, ran = run_case(judged("GET_ROWS i32", "CONT i32"), "GET_ROWS i32")
    assert [each.partition("(")[0] for each in ran] == ["CPU:0 get_rows"]
    np.testing.assert_array_equal(found, expected)


def test_a_write_into_the_wrong_place_goes_through_a_copy_on_the_cpu(judged) -> None:
    expected, _ = run_case(judged(), "into CPY")
    found, ran = run_case(judged("into CPY"), "into CPY")
    assert [each.partition("(")[0] for each in ran] == ["CPU:0 cont", "CPU:0 cpy", "RPC:0 cpy"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", ["into SET_ROWS q4_0", "into SET_ROWS q5_0"])
def test_rows_of_blocks_written_through_the_cpu_leave_the_rest_of_the_leaf(judged, case) -> None:
    expected, _ = run_case(judged(), case)
    found, ran = run_case(judged(case), case)
    assert [each.partition("(")[0] for each in ran] == ["CPU:0 cont", "CPU:0 set_rows", "RPC:0 cpy"]
    np.testing.assert_array_equal(found, expected)


def test_an_i64_leaf_is_written_and_read_on_a_device_that_copies_none(judged) -> None:
    with judged(LONG_COPIES).new_context() as ctx:
        leaf = ctx.layer(0).empty(DType.I64, 5).from_ints(np.arange(5) << 40)
        made = ctx.layer(0).empty(DType.I64, 2).from_ints([-1, 7]).copy(ctx, leaf.slice(ctx, 0, 1, 3))
        ctx.compute(made, leaf.contiguous(ctx))
        assert made.numpy().tolist() == [-1, 7]
        assert leaf.numpy().tolist() == [0, -1, 7, 3 << 40, 4 << 40]


def test_blocks_move_as_words_on_a_device_that_misplaces_them(judged) -> None:
    expected, plain = run_case(judged(), "into CPY q5_0")
    found, ran = run_case(judged("into CPY q5_0", "CPY q5_0", "CONT q5_0"), "into CPY q5_0")
    assert [each.partition("(")[0] for each in plain] == ["RPC:0 cpy"]
    assert [each.partition("(")[0] for each in ran] == ["RPC:0 cont", "RPC:0 cpy"]
    np.testing.assert_array_equal(found, expected)


def test_cells_are_copied_within_a_cache_whose_blocks_a_device_misplaces(judged) -> None:
    caches = []
    for wrong in ((), ("into CPY q8_0", "CPY q8_0", "CONT q8_0")):
        with judged(*wrong).new_context() as ctx:
            held = np.random.default_rng(2).integers(0, 256, 34 * 9, np.uint8)
            cache = ctx.layer(0).empty(DType.Q8_0, 32 * 9).from_bytes(held)
            cells = [cache.view(ctx, 34 * n, (32, 4)) for n in (1, 2, 5)]
            ctx.compute(cells[0].copy(ctx, cells[1]).copy(ctx, cells[2]))
            caches.append(cache.bytes())
    assert caches[0] == caches[1]


@pytest.mark.parametrize("dtype", ["f32", "q4_0"])
def test_floats_become_blocks_in_a_cache_whose_blocks_a_device_misplaces(judged, dtype) -> None:
    caches = []
    for wrong in ((), ("into CPY q4_0",)):
        with judged(*wrong).new_context() as ctx:
            cache = ctx.layer(0).zeros(DType.Q4_0, 32 * 9)
            x = ctx.layer(0).from_floats(np.random.default_rng(3).standard_normal((2, 64)))
            source = x if dtype == "f32" else x.cast(ctx, DType.Q4_0)
            ctx.compute(source.copy(ctx, cache.view(ctx, 18, (32, 4))))
            caches.append(cache.bytes())
    assert caches[0] == caches[1]


@pytest.mark.parametrize("case", [fault.case for fault in KNOWN_FAULTS])
def test_an_op_that_a_device_computes_wrongly_goes_to_the_cpu(judged, case) -> None:
    expected, there = run_case(judged(), case)
    found, here = run_case(judged(case), case)
    assert any(each.startswith("CPU:0") for each in here)
    assert all(each.startswith("RPC:0") for each in there)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("wrong", "gap", "copied"),
    [((QUERIES_BETWEEN_VECTORS,), 2, True), ((QUERIES_BETWEEN_VECTORS,), 4, False), ((), 2, False)],
)
def test_queries_on_a_device_begin_at_whole_vectors_if_it_needs_it(judged, wrong, gap, copied) -> None:
    rng = np.random.default_rng(5)
    with judged(*wrong).new_context() as ctx:
        held = ctx.layer(0).from_floats(rng.standard_normal(3 * 2 * (64 + gap)))
        step = 4 * (64 + gap)
        query = held.view(ctx, 0, (64, 2, 3), (step, 2 * step))
        key, value = (ctx.layer(0).from_floats(rng.standard_normal((40, 1, 64))) for _ in range(2))
        made = query.scaled_dot_product_attention(ctx, key, value, None, scale=0.125)
        ctx.compute(made)
        ran = [each.partition("(")[0] for each in ctx.recording._plan.report()]
    assert "RPC:0 flash_attn_ext" in ran
    assert ("RPC:0 cont" in ran) is copied


def test_numbers_are_centred_for_a_device_whose_norm_needs_it(judged) -> None:
    expected, _ = run_case(judged(), LARGE_MEAN)
    found, ran = run_case(judged(LARGE_MEAN), LARGE_MEAN)
    assert [each.partition("(")[0] for each in ran] == ["RPC:0 mean", "RPC:0 sub", "RPC:0 norm"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_precision_is_that_of_the_device(judged) -> None:
    backend = judged(
        measured={
            "product f32": ("f16", "f32"),
            "product f32 in full precision": ("f32", "f32"),
            "product q8_0": ("f16", "f16"),
            "product f16": ("f16", "f16"),
            "product f16 in full precision": ("f16", "f32"),
            "attention f16": ("f16", "f16"),
        }
    )
    x = Spec(DType.F32, (64, 9))
    weights = {dtype: [Spec(dtype, (64, 8)), x] for dtype in (DType.F32, DType.Q8_0, DType.Q5_K)}
    on = backend.precision_on
    halves = Precision(DType.F16, DType.F32, weight=DType.F16)
    assert on("RPC:0", ops.mulmat, weights[DType.F32]) == halves
    assert on("RPC:0", ops.mulmat_full_prec, weights[DType.F32]) == Precision(DType.F32, DType.F32)
    assert on("RPC:0", ops.mulmat, weights[DType.Q5_K]) == Precision(DType.F16, DType.F16, weight=DType.F16)
    assert on("CPU:0", ops.mulmat, weights[DType.F32]) == Precision(DType.F32, DType.F32)
    assert backend.precision(ops.mulmat, weights[DType.F32]) == halves
    cache = Spec(DType.F16, (64, 2, 32))
    attention = [Spec(DType.F32, (64, 4, 1)), cache, cache, None, None, None]
    assert on("RPC:0", ops.scaled_dot_product_attention, attention) == Precision(
        DType.F16, DType.F16, weight=DType.F16
    )


def test_what_was_not_measured_counts_as_coarse(judged) -> None:
    specs = [Spec(DType.F32, (64, 8)), Spec(DType.F32, (64, 9))]
    declared = judged().precision_on("RPC:0", ops.mulmat, specs)
    assert (declared.activation, declared.accumulate) == (DType.Q8_0, DType.F16)


def product(ctx: Context) -> Tensor:
    weight = ctx.from_floats(np.ones((32, 64))).cast(ctx, DType.F16)
    return weight.mulmat(ctx, ctx.from_floats(np.ones((3, 64))))


def product_with_experts(ctx: Context) -> Tensor:
    weight = ctx.from_floats(np.ones((2, 32, 64))).cast(ctx, DType.F16)
    ids = ctx.from_ints(np.array([[0], [1], [0]], np.int32))
    return weight.mulmat_id(ctx, ctx.from_floats(np.ones((3, 1, 64))), ids)


def convolution(ctx: Context) -> Tensor:
    return ctx.from_floats(np.ones((2, 1, 3, 3))).conv2d(ctx, ctx.from_floats(np.ones((1, 5, 5))))


@pytest.mark.parametrize("made", [product, product_with_experts, convolution])
def test_products_add_in_f32_where_sums_in_f16_lose_nan(judged, made) -> None:
    def precision_asked(backend: Ggml) -> int:
        with backend.new_context() as ctx:
            ctx.compute(made(ctx.layer(0)))
            placed = [tensor for tensor, _ in ctx.recording._plan.placed_ops]
            (product,) = (each for each in placed if backend.library.describe(each).startswith("mul_mat"))
            return int(product.op_params[0])

    assert precision_asked(judged()) == 0
    assert precision_asked(judged(PRODUCT_NAN)) == FULL_PRECISION


@pytest.mark.parametrize("columns", [1, 3], ids=["shared", "each"])
def test_each_id_gets_a_token_where_repeated_ids_are_lost(judged, columns) -> None:
    def product(backend: Ggml) -> tuple[np.ndarray, list[int]]:
        rng = np.random.default_rng(0)
        with backend.new_context() as ctx:
            own = ctx.layer(0)
            weight, x = (own.from_floats(rng.standard_normal(s)) for s in ((2, 8, 64), (5, columns, 64)))
            ids = own.from_ints(rng.integers(0, 2, (5, 3)).astype(np.int32))
            made = weight.mulmat_id(own, x, ids)
            ctx.compute(made)
            placed = [tensor for tensor, _ in ctx.recording._plan.placed_ops]
            (op,) = (each for each in placed if backend.library.describe(each).startswith("mul_mat_id"))
            return made.numpy(), list(op.ne)

    expected, whole = product(judged())
    found, singly = product(judged(REPEATED_IDS))
    assert (whole, singly) == ([8, 3, 5, 1], [8, 1, 15, 1])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("operand", ["weight", "columns"])
def test_slices_that_do_not_adjoin_are_copied_where_products_read_them_wrongly(
    judged, operand, elsewhere
) -> None:
    def product(backend: Ggml) -> tuple[np.ndarray, list[str]]:
        rng = np.random.default_rng(0)
        with backend.new_context() as ctx:
            own = ctx.layer(0)
            homes = (own, ctx.input() if elsewhere else own)
            weight, x = (
                home.from_floats(rng.standard_normal((3, rows, 64)))
                for home, rows in zip(homes, (8, 6), strict=True)
            )
            if operand == "weight":
                weight = weight.slice(own, 1, 0, 4)
            else:
                x = x.slice(own, 1, 0, 4)
            made = weight.mulmat(own, x)
            ctx.compute(made)
            return made.numpy(), [each.partition("(")[0] for each in ctx.recording._plan.report()]

    expected, plain = product(judged())
    found, copied = product(judged(SLICES_APART))
    copier = "CPU:0" if elsewhere and operand == "columns" else "RPC:0"
    assert (plain, copied) == (["RPC:0 mul_mat"], [f"{copier} cont", "RPC:0 mul_mat"])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_sums_in_f32_are_declared_where_sums_in_f16_lose_nan(judged) -> None:
    backend = judged(
        PRODUCT_NAN,
        measured={
            "product q8_0": ("f16", "f16"),
            "product q8_0 in full precision": ("f16", "f32"),
            "product q8_0 of experts": ("f16", "f16"),
        },
    )
    specs = [Spec(DType.Q8_0, (64, 8)), Spec(DType.F32, (64, 9))]
    assert backend.precision_on("RPC:0", ops.mulmat, specs).accumulate is DType.F32
    assert backend.precision_on("RPC:0", ops.mulmat_id, specs).accumulate is DType.F16
