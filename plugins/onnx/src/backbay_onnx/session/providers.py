"""The execution providers that this backend knows: a new one is one row of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Settings = Callable[[int, int | None], dict[str, str]]
"""The options of a provider for a device number and, if there is a limit, the most bytes of its memory to take."""


@dataclass(frozen=True)
class ProviderInfo:
    """An execution provider: the names it has here and in ONNX Runtime, what brings it, and what it can do."""

    option: str  # the value of the backend's option `provider`
    name: str
    prefix: str  # of device ids, which read PREFIX:n
    title: str
    distribution: str  # the package of ONNX Runtime that is built with it
    memory: str  # the kind of memory that sessions are bound to, as OrtDevice and OrtValue name it
    install: str  # what pip installs to have it
    settings: Settings
    driver: str = ""  # what it needs besides
    has_memory: bool = False  # whether it is the device's own; else each run copies from the host and back
    automatic: bool = False  # whether provider=auto takes it
    flushes_subnormals: bool = False  # whether it reads and makes zeros in their place
    one_at_a_time: bool = False  # whether sessions of two threads disturb each other
    recording: str = ""  # its setting by which sessions record runs, to start all nodes of one with one call
    missing: tuple[str, ...] = ()  # ops that it has no kernels for, so that other ops take their place
    left_to_cpu: tuple[str, ...] = ()  # labels of nodes that it computes wrongly or not at all: the CPU does
    refused: str = ""  # why this backend's sessions do not run on it; empty if they do


def _no_settings(number: int, limit: int | None) -> dict[str, str]:
    return {}


def _cuda_settings(number: int, limit: int | None) -> dict[str, str]:
    settings = {
        "device_id": str(number),
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "DEFAULT",  # others transform the numbers, so that sums of whole numbers are inexact
        "use_tf32": "0",  # TF32 rounds float32 to 10 bits of mantissa
    }
    return settings if limit is None else {**settings, "gpu_mem_limit": str(limit)}


HOST_PROVIDER = ProviderInfo(
    option="cpu",
    name="CPUExecutionProvider",
    prefix="CPU",
    title="ONNX Runtime CPU",
    distribution="onnxruntime",
    memory="cpu",
    install="onnxruntime",
    settings=_no_settings,
)

GPU_PROVIDERS = (  # "auto" takes the first automatic one that works
    ProviderInfo(
        option="cuda",
        name="CUDAExecutionProvider",
        prefix="CUDA",
        title="ONNX Runtime CUDA",
        distribution="onnxruntime-gpu",
        memory="cuda",
        install='-e "./plugins/onnx[cuda]" in the clone',
        settings=_cuda_settings,
        driver="NVIDIA's driver",
        has_memory=True,
        recording="enable_cuda_graph",
        automatic=True,
    ),
    ProviderInfo(
        option="webgpu",
        name="WebGpuExecutionProvider",
        prefix="WebGPU",
        title="ONNX Runtime WebGPU",
        distribution="onnxruntime-webgpu",
        memory="cpu",  # Python can take none of the device's
        install='-e "./plugins/onnx[webgpu]" in the clone',
        settings=_no_settings,
        driver="a Vulkan driver",
        flushes_subnormals=True,
        one_at_a_time=True,
        missing=("FusedMatMul", "Min"),
        # TopK makes 3.4e38 of infinity; tanh has an error of 2e-6; Concat of empty pieces is an error; CumSum of 65,537
        # terms takes minutes; Conv over 6 or 9 channels is wrong, and attention where four invocations form a subgroup.
        left_to_cpu=("TopK", "Tanh", "ConcatPieces", "CumSum", "Conv", "MultiHeadAttention"),
    ),
    ProviderInfo(
        option="openvino",
        name="OpenVINOExecutionProvider",
        prefix="OpenVINO",
        title="ONNX Runtime OpenVINO",
        distribution="onnxruntime-openvino",
        memory="cpu",
        install="onnxruntime-openvino",
        settings=_no_settings,
        refused="not by this backend, whose sessions serve all sizes of a structure: OpenVINO takes no Reshape to a rank that it "
        "does not know in advance; `backbay export --portable` fixes the sizes, and uses standard ops alone",
    ),
)
