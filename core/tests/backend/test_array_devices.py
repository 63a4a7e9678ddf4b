"""Devices of engines of arrays: their trial, the choice of one, and graphs on it. And solving on arrays of any library."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import (
    BackbayError,
    BackendParams,
    BackendUnavailableError,
    Debug,
    DeviceInfo,
    DType,
    GPULayers,
    GPULayersList,
    NoMemoryError,
    OptionError,
    RefusalError,
    ops,
)
from backbay.kernels import DeviceTrial, array_kernels, choose_device, try_device
from backbay.plugin import CPU, NUMPY, ArrayEngine, GraphBackend, decode, encode

TRIALS = {CPU: DeviceTrial(), "GPU:0": DeviceTrial("out of order"), "GPU:1": DeviceTrial()}


def chosen(layers: GPULayersList | None, blocks: int = 2) -> str:
    return choose_device(layers, blocks, [*TRIALS], TRIALS.__getitem__)


def on(id: str, *layers: int) -> GPULayers:
    return GPULayers(id, layers)


def test_a_device_that_doubles_all_dtypes_lacks_none():
    trial = try_device(lambda numbers, dtype: [2 * n for n in numbers])
    assert trial == DeviceTrial()


def test_a_dtype_that_raises_or_comes_back_wrong_is_lacking_and_subnormals_may_be_lost():
    def double(numbers: list[float], dtype: DType) -> list[float]:
        if dtype is DType.BF16:
            raise RuntimeError("no bfloat16\nat line 1")
        return [0.0 if dtype is DType.F64 or abs(n) < 1e-38 else 2 * n for n in numbers]

    assert try_device(double) == DeviceTrial(
        lacks=frozenset({DType.BF16, DType.F64}), flushes_subnormals=True
    )


@pytest.mark.parametrize("needed", [DType.F32, DType.I32, DType.I64])
def test_a_device_without_a_dtype_that_graphs_need_is_of_no_use(needed: DType):
    def double(numbers: list[float], dtype: DType) -> list[float]:
        if dtype is needed:
            raise RuntimeError("overheated\nat line 1")
        return [2 * n for n in numbers]

    assert try_device(double).reason == f"{needed}: overheated"


def test_the_first_device_that_works_is_taken_and_the_cpu_if_it_is_asked_for():
    assert chosen(None) == "GPU:1"
    assert chosen(GPULayersList()) == CPU
    assert chosen(GPULayersList([on("GPU:1", 0, 1, 2)])) == "GPU:1"
    assert chosen(GPULayersList([on("GPU:1", 0)]), blocks=0) == "GPU:1"


@pytest.mark.parametrize(
    ("layers", "kind", "message"),
    [
        ([on("GPU:1", 0, 1)], OptionError, "all layers, 0 to 2, on one device"),
        ([on("GPU:1", 0, 1), on("GPU:0", 2)], OptionError, "on one device, or none"),
        ([on("GPU:7", 0, 1, 2)], OptionError, "'GPU:7'; the devices are CPU:0, GPU:0, GPU:1"),
        ([on("GPU:0", 0, 1, 2)], BackendUnavailableError, "GPU:0 was asked for, but .*out of order"),
    ],
)
def test_what_no_device_can_do_is_refused(layers: list[GPULayers], kind: type[BackbayError], message: str):
    with pytest.raises(kind, match=message):
        chosen(GPULayersList(layers))


class Engine(ArrayEngine):
    xp = np

    def to_engine(self, data, dtype):
        return data

    def to_host(self, storage):
        return storage

    def numbers(self, stored, dtype):
        return decode(stored, dtype).astype(np.float32)

    def stored(self, numbers, dtype):
        return encode(numbers, dtype)


class Solver(GraphBackend):
    """NumPy, on a device without bf16 that reads subnormal numbers as zeros."""

    contract_version = "1.2"
    kernels = array_kernels(np)
    engine = Engine()
    device, trial = "GPU:0", DeviceTrial(lacks=frozenset({DType.BF16}), flushes_subnormals=True)

    def devices(self):
        return [*super().devices(), DeviceInfo("GPU:0", "fake", is_gpu=True)]


def test_a_graph_is_booked_on_its_device_and_a_dtype_that_this_lacks_is_unsupported():
    with Solver(None, BackendParams()) as backend, backend.new_context() as ctx:
        x = ctx.from_floats([1.0, 4.0])
        assert [gpu.id for gpu in backend.memory().gpus] == ["GPU:0"]
        assert backend.precision(ops.sqrt, [x]).flushes_subnormals
        assert backend.supports(ops.neg, [ctx.empty(DType.BF16, 4)]).reason == "GPU:0 has no bf16"
        with pytest.raises(RefusalError, match="GPU:0 has no bf16"):
            ctx.compute(x.cast(ctx, DType.BF16))
        assert backend.supports(ops.cast, [x])
        assert set(NUMPY) - backend.trial.lacks >= {DType.F16, DType.I64}


@pytest.mark.parametrize("poison", [True, False])
def test_what_no_machine_has_is_refused_on_a_device_that_does_not_tell_its_memory(poison: bool):
    params = BackendParams(debug=Debug(poison=poison))
    with Solver(None, params) as backend, backend.new_context() as ctx:
        x = ctx.from_floats([1.0])
        held = backend.memory().total()
        with pytest.raises(NoMemoryError):
            ctx.empty(DType.F32, 1 << 50)
        with pytest.raises(NoMemoryError):
            ctx.forward(x.repeat(ctx, 0, 1 << 50)).reserve()
        assert backend.memory().total() == held


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangles_are_solved_by_rows_whatever_lies_in_the_other_half(lower: bool, unit: bool):
    half = np.tri(3, dtype=bool) if lower else np.tri(3, dtype=bool).T
    a, b = np.where(half, [[2, 9, 8], [3, 5, 7], [4, 6, 3]], np.nan), np.arange(1.0, 7).reshape(3, 2)
    with Solver(None, BackendParams()) as backend, backend.new_context() as ctx:
        x = ctx.from_floats(a).solve_tri(ctx, ctx.from_floats(b), lower=lower, left=True, unit_diagonal=unit)
        ctx.compute(x)
        triangle = np.where(half, a, 0)
        if unit:
            np.fill_diagonal(triangle, 1)
        np.testing.assert_allclose(
            x.floats().reshape(3, 2), np.linalg.solve(triangle, b), rtol=1e-5, atol=1e-12
        )
