"""The execution providers that this backend knows: a new one is one row of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Settings = Callable[[int, int | None], dict[str, str]]
"""The options of a provider for a device number and, if there is a limit, the most bytes of its memory to take."""


@dataclass(frozen=True)
class Provider:
    """An execution provider: the names it has here and in ONNX Runtime, and its options."""

    option: str  # the value of the backend's option `provider`
    name: str
    prefix: str  # of device ids, which read PREFIX:n
    title: str
    memory: str  # the kind of memory, as OrtDevice and OrtValue name it
    remedy: str
    settings: Settings


def _no_settings(number: int, limit: int | None) -> dict[str, str]:
    return {}


def _cuda_settings(number: int, limit: int | None) -> dict[str, str]:
    settings = {
        "device_id": str(number),
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",  # the default tries all algorithms in the first run
        "use_tf32": "0",  # TF32 rounds float32 to 10 bits of mantissa
    }
    return settings if limit is None else {**settings, "gpu_mem_limit": str(limit)}


HOST_PROVIDER = Provider(
    option="cpu",
    name="CPUExecutionProvider",
    prefix="CPU",
    title="ONNX Runtime CPU",
    memory="cpu",
    remedy="pip install onnxruntime",
    settings=_no_settings,
)

GPU_PROVIDERS = (  # "auto" takes the first that works
    Provider(
        option="cuda",
        name="CUDAExecutionProvider",
        prefix="CUDA",
        title="ONNX Runtime CUDA",
        memory="cuda",
        remedy="pip uninstall onnxruntime, pip install onnxruntime-gpu[cuda,cudnn], and check that a CUDA driver is installed",
        settings=_cuda_settings,
    ),
)
