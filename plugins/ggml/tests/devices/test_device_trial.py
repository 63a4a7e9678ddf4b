"""Trials of devices: what they find, what dies in them, and what the plugin does with their verdicts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rpc_servers import Server, serving

from backbay import BackendParams, Context, DType, GPULayers, GPULayersList, Precision, Spec, Tensor, ops
from backbay_ggml import Ggml
from backbay_ggml.device_trial import ATTENDED, MEASURED, Trial, of_experts, outcome, plain, steps
from backbay_ggml.devices import device, device_verdict, missing_gpus, trial_cases
from backbay_ggml.devices.device_verdict import DeviceVerdict, run_trial
from backbay_ggml.devices.known_faults import KNOWN_FAULTS
from backbay_ggml.devices.trial_cases import (
    CASES,
    LARGE_MEAN,
    LOOSE_QUERIES,
    PLAIN,
    PRODUCT_NAN,
    REPEATED_IDS,
    SLICES_APART,
)
from backbay_ggml.library.abi import FULL_PRECISION, NULL
from backbay_ggml.library.library import load_library
from backbay_ggml.lowering.precision import precision

ON_CPU = BackendParams(gpu_layers=GPULayersList([]), num_threads=2)
BLOCKS = (DType.Q8_1, DType.Q8_K)


@pytest.fixture
def trial(without_native) -> Iterator[Trial]:
    """The CPU in place of a device."""
    with Ggml(None, ON_CPU) as made, Ggml(None, ON_CPU) as cpu:
        yield Trial(made, cpu)


def test_the_cpu_passes_its_own_trial(trial) -> None:
    found = {name: outcome(step) for name, step in steps(trial) if name in CASES}
    assert found == {name: {"result": ""} for name in CASES}


@pytest.mark.parametrize("dtype", MEASURED)
def test_measured_products_are_as_exact_as_the_cpu_declares(trial, dtype) -> None:
    declared = precision(load_library(), ops.mulmat, [Spec(dtype, (512, 8)), None], flash=True)
    assert trial.product(dtype, plain) == in_codes(declared)
    assert trial.product(dtype, of_experts) == in_codes(declared)


@pytest.mark.parametrize("dtype", ATTENDED)
def test_measured_attention_is_as_exact_as_the_cpu_declares(trial, dtype) -> None:
    cache = Spec(dtype, (64, 2, 512))
    specs = [Spec(DType.F32, (64, 4, 1)), cache, cache, None, None, None]
    declared = precision(load_library(), ops.scaled_dot_product_attention, specs, flash=True)
    assert trial.attention(dtype) == in_codes(declared)


def in_codes(declared: Precision) -> tuple[DType, DType]:
    """All codes of 8 bits look alike."""
    return DType.Q8_0 if declared.activation in BLOCKS else declared.activation, declared.accumulate


def test_a_wrong_result_is_told(trial, monkeypatch) -> None:
    monkeypatch.setitem(
        CASES, "odd", lambda b: b.leaf(b.numbers(4)).scale(b.ctx, 1.0 + (b.ctx.backend is trial._device))
    )
    assert "in place of" in trial.wrong("odd")


def test_an_error_is_the_result_of_a_step() -> None:
    assert outcome(lambda: 1 / 0) == {"error": "ZeroDivisionError: division by zero"}


# -- the child ---------------------------------------------------------------------------------------------


def dying_at(*deaths: int, of: int = 4) -> str:
    """A child that runs some steps, and dies at those with these numbers; the first is the plain product."""
    return f"""
import json, os, sys
for number in range(int(sys.argv[1]), {of}):
    print(json.dumps({{"begun": "{PLAIN}" if number == 0 else f"case {{number}}", "number": number, "of": {of}}}), flush=True)
    if number in {deaths}:
        print("GGML_ASSERT failed", file=sys.stderr, flush=True)
        os.abort()
    print(json.dumps({{"result": ["f16", "f32"] if number == 3 else ""}}), flush=True)
"""


@pytest.fixture
def child(monkeypatch):
    def be(source: str) -> None:
        monkeypatch.setattr(
            device_verdict, "_command", lambda device, first: [sys.executable, "-c", source, str(first)]
        )

    return be


def test_a_child_that_dies_is_started_again_at_the_next_case(child) -> None:
    child(dying_at(1, 2))
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert lasts
    assert verdict.wrong == dict.fromkeys(["case 1", "case 2"], "SIGABRT: GGML_ASSERT failed")
    assert verdict.takes(PLAIN)
    assert not verdict.takes("case 1")
    assert not verdict.takes("never tried")
    assert verdict.measured("case 3") == Precision(DType.F16, DType.F32)


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGBUS"])
def test_a_trial_that_was_killed_from_outside_is_not_remembered(child, signal) -> None:
    child(dying_at(1).replace("os.abort()", f"os.kill(os.getpid(), __import__('signal').{signal})"))
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.wrong == {"case 1": f"{signal}: GGML_ASSERT failed"}
    assert not lasts


@pytest.mark.parametrize("said", ["std::bad_alloc", "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"])
def test_a_trial_that_got_no_memory_is_not_remembered(child, said) -> None:
    child(dying_at(1).replace("GGML_ASSERT failed", said))
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.wrong == {"case 1": f"SIGABRT: {said}"}
    assert not lasts


def test_a_case_that_raised_for_want_of_memory_is_not_remembered(child) -> None:
    child(
        dying_at(of=4).replace(
            '{"result": ["f16", "f32"] if number == 3 else ""}',
            '{"error": "NoMemoryError: full"} if number == 1 else {"result": ""}',
        )
    )
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.wrong == {"case 1": "NoMemoryError: full"}
    assert not lasts


def test_a_device_without_a_product_is_refused_and_tried_again_by_the_next_process(child) -> None:
    child(dying_at(0))
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.why_not == "a product on it fails: SIGABRT: GGML_ASSERT failed"
    assert not lasts


def test_a_child_that_says_nothing_is_a_reason(child) -> None:
    child("import sys; sys.exit('no driver')")
    verdict, lasts = run_trial(load_library(), "FAST:0")
    assert verdict.why_not == "a product on it fails: exit 1: no driver"
    assert not lasts


def test_a_verdict_is_kept_for_later_processes(child, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device_verdict, "_known", {})
    library = load_library()
    assert not device_verdict.is_known(library, "FAST card")
    child(dying_at(1))
    first = device_verdict.verdict_of(library, "FAST:0", "FAST card")
    device_verdict._known.clear()
    child("raise SystemExit('tried again')")
    assert device_verdict.is_known(library, "FAST card")
    assert device_verdict.verdict_of(library, "FAST:0", "FAST card") == first


def test_who_comes_while_a_device_is_tried_waits_for_the_verdict(
    child, monkeypatch, tmp_path, caplog
) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device_verdict, "_known", {})
    monkeypatch.setattr(device_verdict, "NEWS", 0.1)
    child(f"open({str(tmp_path / 'tries')!r}, 'a').write('|'); import time; time.sleep(1)\n{dying_at()}")
    library = load_library()
    with ThreadPoolExecutor(2) as both:
        first, second = both.map(
            lambda _: device_verdict.verdict_of(library, "FAST:0", "FAST card"), range(2), timeout=30
        )
    assert first == second
    assert (tmp_path / "tries").read_text() == "|"
    assert "waiting for another process that tries FAST:0, for" in caplog.text


def test_a_verdict_in_which_a_case_was_late_is_kept_for_a_day(child, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    library, ahead, now = load_library(), [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead[0])
    for description, ending in (("late", "'Timeout (0:05:00)!'"), ("crashed", "'GGML_ASSERT failed'")):
        monkeypatch.setattr(device_verdict, "_known", {})
        child(dying_at(1).replace('"GGML_ASSERT failed"', ending))
        device_verdict.verdict_of(library, "FAST:0", description)
    device_verdict._known.clear()
    assert device_verdict.is_known(library, "late")
    ahead[0] = 86500
    assert not device_verdict.is_known(library, "late")
    assert device_verdict.is_known(library, "crashed")


def test_a_refused_device_is_left_out_and_doctor_says_why(monkeypatch) -> None:
    library = load_library()
    refused = DeviceVerdict("a product on it fails: SIGSEGV")
    for module in (device, missing_gpus):
        monkeypatch.setattr(module, "tried_gpus", lambda library: [("FAST:0", library.cpu, refused)])
    assert [each.id for each in device.find_devices(library, ())] == ["CPU:0"]
    assert missing_gpus.why_no_gpu(library) == "FAST:0 fails its trial: a product on it fails: SIGSEGV"


# -- what verdicts change, on a server's device, whose verdict a test may choose ----------------------------


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
        made = CASES[name](trial_cases.Bench(ctx, Trial(backend, cpu).quantized))
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
    with judged(trial_cases.LONG_COPIES).new_context() as ctx:
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
    ("wrong", "gap", "copied"), [((LOOSE_QUERIES,), 2, True), ((LOOSE_QUERIES,), 4, False), ((), 2, False)]
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


# -- doctor ------------------------------------------------------------------------------------------------


def test_doctor_tells_why_there_is_no_gpu(monkeypatch) -> None:
    library, reported = load_library(), {}
    monkeypatch.setattr(missing_gpus, "tried_gpus", lambda library: [])
    monkeypatch.setattr(missing_gpus, "_kinds", lambda library: {"Vulkan": None})
    monkeypatch.setattr(
        missing_gpus, "_reported", lambda library, added={}, without={}: reported.get((*added, *without), "")
    )
    monkeypatch.setattr(missing_gpus, "DRIVERS", {})
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES", raising=False)
    assert "no driver reports a device" in missing_gpus.why_no_gpu(library)
    reported["GGML_VK_VISIBLE_DEVICES",] = "a card"
    assert "ggml passes over a card, a CPU" in missing_gpus.why_no_gpu(library)
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "7")
    assert missing_gpus.why_no_gpu(library) == "Vulkan: a card is hidden by GGML_VK_VISIBLE_DEVICES=7"


def test_doctor_tells_a_missing_driver_from_another_missing_library(monkeypatch, tmp_path) -> None:
    library, path = load_library(), tmp_path / "libggml-cuda.so"
    path.write_bytes(b"no library")
    monkeypatch.setattr(missing_gpus, "tried_gpus", lambda library: [])
    monkeypatch.setattr(missing_gpus, "_kinds", lambda library: {"CUDA": path})
    monkeypatch.setattr(missing_gpus, "DRIVERS", {"CUDA": "libno-driver.so.1"})
    told = missing_gpus.why_no_gpu(library)
    assert told.startswith("CUDA: its driver is not installed: libno-driver.so.1")
    monkeypatch.setattr(
        missing_gpus, "DRIVERS", {"CUDA": str(library.path)}
    )  # some library that can be loaded
    told = missing_gpus.why_no_gpu(library)
    assert told.startswith(f"CUDA: the code for it cannot be loaded: {path}")
    assert "LD_LIBRARY_PATH" in told
