"""The lines of `backbay doctor` about ONNX Runtime on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from backbay import BackendUnavailableError, DType
from backbay.plugin import CPU

from .device import device_of, why_not
from .native import PRODUCTS, PURPOSES, RECURRENCE, TILES, instructions, native_code, why_not_native
from .providers import GPU_PROVIDERS
from .runtime import DISTRIBUTIONS, is_installed, runtime

TITLES = {PRODUCTS: "products of quantized weights", RECURRENCE: "recurrences"}


def diagnose(quantized: Iterable[DType]) -> dict[str, str]:
    """The installed distributions, and the devices that work, or why not; `quantized` are types that stay quantized."""
    found = [f"{name} {metadata.version(name)}" for name in DISTRIBUTIONS if is_installed(name)]
    facts = {"installed": ", ".join(found) or f"none of {', '.join(DISTRIBUTIONS)}"}
    try:
        ort = runtime()
    except BackendUnavailableError as error:
        return {**facts, "ONNX Runtime": str(error)}
    devices = [device_of(provider) for provider in GPU_PROVIDERS]
    working = [device.id for device in devices if device.provider.automatic and not why_not(device)]
    return {
        **facts,
        "ONNX Runtime": f"{ort.__version__}, providers {', '.join(ort.get_available_providers())}",
        **{device.provider.prefix: why_not(device) or "works" for device in devices},
        "runs on": f"{working[0]}, unless provider=cpu or gpu_layers ask for the CPU" if working else CPU,
        **{TITLES.get(purpose, purpose): _native(purpose) for purpose in PURPOSES},
        "stays quantized": ", ".join(map(str, quantized)),
    }


def _native(purpose: str) -> str:
    """Whether native code of ours serves a purpose on the CPU, or why not."""
    code = native_code()
    why_not = why_not_native(purpose)
    if code is None or why_not:
        return f"by ONNX Runtime: {why_not}"
    made = f"by native code, for {instructions(code.path, purpose)}"
    if purpose != PRODUCTS:
        return made
    made += f", of {', '.join(sorted(map(str, code.products)))}"
    if not instructions(code.path, TILES):  # few processors have AMX
        return made
    why_not = why_not_native(TILES)
    return f"{made}; without AMX: {why_not}" if why_not else f"{made}; AMX multiplies where columns are many"
