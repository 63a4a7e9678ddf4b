"""The lines of `backbay doctor` about ONNX Runtime on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from backbay import BackendUnavailableError, DType
from backbay.plugin import CPU
from backbay_native import ATTENTION, GATES, PRODUCTS, RECURRENCE

from .device import provider_device, why_unusable
from .native import native_code
from .providers import GPU_PROVIDERS
from .runtime import DISTRIBUTIONS, is_installed, load_runtime

ENGINE = "ONNX Runtime"


def diagnose(quantized: Iterable[DType]) -> dict[str, str]:
    """The installed distributions, and the devices that work, or why not; `quantized` are types that stay quantized."""
    found = [f"{name} {metadata.version(name)}" for name in DISTRIBUTIONS if is_installed(name)]
    facts = {"installed": ", ".join(found) or f"none of {', '.join(DISTRIBUTIONS)}"}
    try:
        ort = load_runtime()
    except BackendUnavailableError as error:
        return {**facts, ENGINE: str(error)}
    devices = [provider_device(provider) for provider in GPU_PROVIDERS]
    working = [device.id for device in devices if device.provider.automatic and not why_unusable(device)]
    return {
        **facts,
        ENGINE: f"{ort.__version__}, providers {', '.join(ort.get_available_providers())}",
        **{device.provider.prefix: why_unusable(device) or "works" for device in devices},
        "runs on": f"{working[0]}, unless provider=cpu or gpu_layers ask for the CPU" if working else CPU,
        "products of quantized weights": _products(),
        "attention": native_code().describe(ATTENTION, ENGINE),
        "gates": native_code().describe(GATES, ENGINE),
        "recurrences": native_code().describe(RECURRENCE, ENGINE),
        "stays quantized": ", ".join(map(str, quantized)),
    }


def _products() -> str:
    line, formats = native_code().describe(PRODUCTS, ENGINE), native_code().formats
    dtypes = sorted(str(dtype) for dtype in DType if dtype.name in formats)
    return f"{line}, of {', '.join(dtypes)}" if dtypes else line
