"""Which device is taken, and which requests are refused."""

from __future__ import annotations

import pytest

import backbay
from backbay import BackendParams, BackendUnavailableError, DType, GPULayers, GPULayersList, OptionError
from backbay_onnx.backend import OnnxBackend
from backbay_onnx.session.device import HOST, choose_device, installation, provider_device, why_unusable
from backbay_onnx.session.providers import GPU_PROVIDERS
from backbay_onnx.session.runtime import load_runtime

NO_CUDA = "CUDAExecutionProvider" not in load_runtime().get_available_providers()
NO_WEBGPU = "WebGpuExecutionProvider" not in load_runtime().get_available_providers()
needs_none = pytest.mark.skipif(not NO_CUDA, reason="this ONNX Runtime is built with CUDA")


def layers(id: str, *numbers: int) -> GPULayersList:
    return GPULayersList([GPULayers(id, numbers)])


@needs_none
def test_a_gpu_that_is_asked_for_and_missing_is_an_error_with_its_remedy() -> None:
    for params in (
        BackendParams(options={"provider": "cuda"}),
        BackendParams(gpu_layers=layers("CUDA:0", 0)),
        BackendParams(gpu_layers=layers("CUDA:0", 0), options={"provider": "cuda"}),
    ):
        with pytest.raises(BackendUnavailableError, match=r"CUDA:0 was asked for.*plugins/onnx\[cuda\]"):
            backbay.open(None, backend="onnx", params=params)


@pytest.mark.skipif(not NO_WEBGPU, reason="this ONNX Runtime is built with WebGPU")
@pytest.mark.parametrize(
    "params",
    [BackendParams(options={"provider": "webgpu"}), BackendParams(gpu_layers=layers("WebGPU:0", 0))],
)
def test_webgpu_that_is_missing_names_its_package(params: BackendParams) -> None:
    with pytest.raises(BackendUnavailableError, match=r"WebGPU:0 was asked for.*plugins/onnx\[webgpu\]"):
        backbay.open(None, backend="onnx", params=params)


@pytest.mark.parametrize(
    "params",
    [BackendParams(options={"provider": "openvino"}), BackendParams(gpu_layers=layers("OpenVINO:0", 0))],
)
def test_a_provider_that_cannot_run_sessions_is_refused_with_the_reason(params: BackendParams) -> None:
    with pytest.raises(
        BackendUnavailableError, match=r"OpenVINO:0 was asked for.*Reshape.*export --portable"
    ):
        backbay.open(None, backend="onnx", params=params)


@pytest.mark.skipif(not NO_WEBGPU, reason="this ONNX Runtime is built with WebGPU, which may work")
def test_a_provider_that_is_there_asks_for_its_driver_and_for_no_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ort, webgpu = load_runtime(), GPU_PROVIDERS[1]
    monkeypatch.setattr(ort, "get_available_providers", lambda: [webgpu.name])
    why = why_unusable.__wrapped__(
        provider_device(webgpu)
    )  # ONNX Runtime's CPU code refuses to make its memory
    assert why.endswith("is a Vulkan driver installed?")
    assert "pip" not in why


def test_a_provider_takes_the_place_of_the_distribution_that_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = GPU_PROVIDERS[0]
    for there in ("onnxruntime", "onnxruntime-webgpu"):
        monkeypatch.setattr("backbay_onnx.session.device.is_installed", there.__eq__)
        assert installation(cuda).startswith(f"pip uninstall {there}, then pip install -e")
    monkeypatch.setattr("backbay_onnx.session.device.is_installed", lambda name: False)
    assert installation(cuda).startswith("pip install -e")


@pytest.mark.parametrize(("limit", "told"), [(None, None), (1 << 30, "1073741824")])
def test_cuda_is_told_the_limit_of_its_memory(limit: int | None, told: str | None) -> None:
    assert GPU_PROVIDERS[0].settings(0, limit).get("gpu_mem_limit") == told


@needs_none
def test_the_cpu_is_used_if_no_gpu_is_asked_for() -> None:
    for params in (
        BackendParams(),
        BackendParams(gpu_layers=GPULayersList()),
        BackendParams(options={"provider": "cpu"}),
    ):
        with backbay.open(None, backend="onnx", params=params) as backend:
            assert [device.id for device in backend.devices()] == ["CPU:0"]


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        ("cuda", GPULayersList(), "for the CPU alone"),
        ("cpu", layers("CUDA:0", 0, 1, 2), "asks for cpu, but"),
        ("auto", layers("CUDA:0", 1, 3), "names layer 3; the model's are 0 to 2"),
        ("auto", GPULayersList([GPULayers("CUDA:0", [0]), GPULayers("CUDA:1", [1, 2])]), "must name one GPU"),
        ("auto", layers("Vulkan:0", 0, 1, 2), "names 'Vulkan:0'"),
        ("auto", layers("CUDA:x", 0, 1, 2), "names 'CUDA:x'"),
    ],
)
def test_contradicting_requests_are_refused(option: str, given: GPULayersList, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        choose_device(option, given, 2)


def test_an_unknown_device_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("WeightStore", "Workspace", "OnnxPlanResources", "SessionCache"):
        monkeypatch.setattr(f"backbay_onnx.backend.{name}", lambda *_, name=name, **__: made.append(name))
    with pytest.raises(OptionError, match="has no device 'Vulkan:0'"):
        OnnxBackend(None, BackendParams(max_memory={"Vulkan:0": 1}))
    assert made == []


def test_a_session_on_another_provider_than_asked_for_is_refused() -> None:
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        ctx.forward(ctx.from_ints([1]).cast(ctx, DType.F32)).reserve()
        ((compiled,),) = backend.sessions._compiled.values()
        HOST.check(compiled.session)
        with pytest.raises(BackendUnavailableError, match="CUDA:1 was asked for, but ONNX Runtime uses CPU"):
            provider_device(GPU_PROVIDERS[0], 1).check(compiled.session)


def test_the_host_is_a_device_too() -> None:
    assert choose_device("cpu", None, 3) is HOST
