"""The devices of torch: their ids, a trial of each, their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from backbay import BackendUnavailableError, DeviceInfo, DType, GPULayers, OptionError
from backbay.plugin import CPU, host_memory

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
NEEDED = {DType.F32, DType.I32, DType.I64}  # of operands, and of indices
KINDS = (
    "cuda",
    "xpu",
    "mps",
    "mtia",
    "hpu",
)  # beside the private one, whose name an extension of torch chooses
HOST = torch.device("cpu")


@dataclass(frozen=True)
class Trial:
    """The outcome of a trial of a device: why it cannot be used, empty if it works; the dtypes that it lacks; whether it
    reads numbers below float32's normal range as zeros.
    """

    reason: str = ""
    lacks: frozenset[DType] = frozenset()
    flushes_subnormals: bool = False


def torch_devices() -> dict[str, torch.device]:
    """The devices of torch by our ids, the CPU first; an extension of torch may add some when it is imported."""
    found = {CPU: HOST}
    for kind in (*KINDS, torch._C._get_privateuse1_backend_name()):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            found |= {f"{kind.upper()}:{n}": torch.device(kind, n) for n in range(module.device_count())}
    return found


@cache
def try_device(device: torch.device) -> Trial:
    """The outcome of a trial, made once in a process."""
    wrong = {dtype: reason for dtype in TORCH if (reason := _why_lacking(device, dtype))}
    needed = [f"{dtype}: {wrong[dtype]}" for dtype in sorted(NEEDED & {*wrong})]
    if needed:
        return Trial("; ".join(needed))
    small = torch.tensor([1e-40]).to(device)
    return Trial(lacks=frozenset(wrong), flushes_subnormals=not (small * 2).cpu().item())


def _why_lacking(device: torch.device, dtype: DType) -> str:
    """Why numbers of a dtype cannot be moved to a device, doubled there and moved back; empty if they can."""
    try:
        numbers = torch.tensor([1, 2]).to(TORCH[dtype])
        doubled = (numbers.to(device) * 2).float().cpu().tolist()
    except Exception as error:  # noqa: BLE001  torch's errors share no base class, and a driver may raise any
        return str(error).partition("\n")[0] or type(error).__name__
    return "" if doubled == [2, 4] else f"2 * [1, 2] = {doubled}"


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
    return DeviceInfo(id, name, is_gpu=True, total_memory=total, free_memory=free)


def choose_device(layers: Sequence[GPULayers] | None, blocks: int) -> str:
    """The id of the device that `gpu_layers` asks for: None takes the first that works, the CPU last.

    A graph runs on one device, so it takes all layers of a model, 0 to `blocks`.
    """
    devices = torch_devices()
    if layers is None:
        return next((id for id, device in [*devices.items()][1:] if not try_device(device).reason), CPU)
    named = [gpu for gpu in layers if gpu.layers]
    if not named:
        return CPU
    id, given = named[0].id, sorted({layer for gpu in named for layer in gpu.layers})
    if len({gpu.id for gpu in named}) > 1 or (blocks and given != [*range(blocks + 1)]):
        told = [str(gpu) for gpu in named]
        raise OptionError(
            f"gpu_layers must put all layers, 0 to {blocks}, on one device, or none; got {told}"
        )
    if id not in devices:
        raise OptionError(f"gpu_layers names {id!r}; torch has {', '.join(devices)}")
    if reason := try_device(devices[id]).reason:
        raise BackendUnavailableError(f"{id} was asked for, but it does not work: {reason}")
    return id
