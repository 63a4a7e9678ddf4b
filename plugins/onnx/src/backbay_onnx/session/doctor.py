"""What `backbay doctor` says of ONNX Runtime on this machine."""

from __future__ import annotations

from importlib import metadata

from backbay import BackendUnavailableError

from ..weights.packing import LAYOUTS
from .device_choice import cuda, why_not
from .runtime import DISTRIBUTIONS, is_installed, runtime


def diagnose() -> dict[str, str]:
    """Also where it cannot be used: what is installed, and why that will not do."""
    found = [f"{name} {metadata.version(name)}" for name in DISTRIBUTIONS if is_installed(name)]
    facts = {"installed": ", ".join(found) or "neither onnxruntime nor onnxruntime-gpu"}
    try:
        ort = runtime()
    except BackendUnavailableError as error:
        return {**facts, "ONNX Runtime": str(error)}
    reason = why_not(cuda(0))
    return {
        **facts,
        "ONNX Runtime": f"{ort.__version__}, providers {', '.join(ort.get_available_providers())}",
        "CUDA": reason or "works",
        "runs on": "CPU:0" if reason else "CUDA:0, unless provider=cpu or gpu_layers ask for the CPU",
        "stays quantized": ", ".join(map(str, LAYOUTS)),
    }
