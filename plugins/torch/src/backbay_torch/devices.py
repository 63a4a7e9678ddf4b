"""The devices of torch: their ids, a trial of each, their memory."""

from __future__ import annotations

from functools import cache

import torch

from backbay.kernels import DeviceTrial, try_device
from backbay.plugin import CPU, DeviceInfo, DType, host_memory

TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
}
KINDS = (
    "cuda",
    "xpu",
    "mps",
    "mtia",
    "hpu",
)  # beside the private one, whose name an extension of torch chooses
HOST = torch.device("cpu")


def torch_devices() -> dict[str, torch.device]:
    """The devices of torch by our ids, the CPU first; an extension of torch may add some when it is imported."""
    found = {CPU: HOST}
    for kind in (*KINDS, torch._C._get_privateuse1_backend_name()):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            found |= {f"{kind.upper()}:{n}": torch.device(kind, n) for n in range(module.device_count())}
    return found


@cache
def trial_of(device: torch.device) -> DeviceTrial:
    """The outcome of a trial, made once in a process."""

    def double(numbers: list[float], dtype: DType) -> list[float]:
        doubled = torch.tensor(numbers).to(TORCH[dtype]).to(device) * 2
        return list(doubled.float().cpu().tolist())

    return try_device(double)


def device_info(id: str, device: torch.device) -> DeviceInfo:
    """A device with its memory, as far as torch tells."""
    if device == HOST:
        total, free = host_memory()
        return DeviceInfo(id, "torch CPU", total_memory=total, free_memory=free)
    module = torch.get_device_module(device)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else f"torch {device}"
    total = free = None
    if hasattr(module, "mem_get_info"):
        free, total = module.mem_get_info(device)
    elif hasattr(module, "recommended_max_memory"):  # of MPS
        total = module.recommended_max_memory()
        free = max(total - module.driver_allocated_memory(), 0)
    properties = getattr(module, "get_device_properties", lambda _: None)(device)
    uuid = getattr(properties, "uuid", None)
    hardware = None if uuid is None else f"GPU-{uuid}" if device.type == "cuda" else str(uuid)
    return DeviceInfo(id, name, is_gpu=True, total_memory=total, free_memory=free, hardware_id=hardware)
