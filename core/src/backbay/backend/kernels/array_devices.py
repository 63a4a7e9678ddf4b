"""The devices of an engine of arrays: a trial of each, and the choice of one for whole graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...data.encoding import NUMPY
from ...errors import BackendUnavailableError, OptionError
from ...types.dtype import DType
from ...types.gpu_layers import GPULayers
from .kernel_backend import CPU

NEEDED = {DType.F32, DType.I32, DType.I64}  # of operands, and of indices


@dataclass(frozen=True)
class DeviceTrial:
    """The outcome of a trial of a device: why it cannot be used, empty if it works; the dtypes that it lacks; whether it
    reads numbers below float32's normal range as zeros.
    """

    reason: str = ""
    lacks: frozenset[DType] = frozenset()
    flushes_subnormals: bool = False


def try_device(double: Callable[[list[float], DType], list[float]]) -> DeviceTrial:
    """The outcome of a trial of a device: `double` moves numbers of a dtype to it, doubles them there, and moves them back.

    A dtype that fails is one that the device lacks. Without f32, i32 or i64 the device is of no use.
    """
    wrong = {dtype: reason for dtype in NUMPY if (reason := _why_lacking(double, dtype))}
    needed = [f"{dtype}: {wrong[dtype]}" for dtype in sorted(NEEDED & {*wrong})]
    if needed:
        return DeviceTrial("; ".join(needed))
    return DeviceTrial(lacks=frozenset(wrong), flushes_subnormals=double([1e-40], DType.F32) == [0])


def _why_lacking(double: Callable[[list[float], DType], list[float]], dtype: DType) -> str:
    try:
        doubled = double([1, 2], dtype)
    except Exception as error:  # noqa: BLE001  errors of engines share no base class, and a driver may raise any
        return str(error).partition("\n")[0] or type(error).__name__
    return "" if doubled == [2, 4] else f"2 * [1, 2] = {doubled}"


def choose_device(
    layers: Sequence[GPULayers] | None, blocks: int, ids: Sequence[str], trial: Callable[[str], DeviceTrial]
) -> str:
    """The id of the device that `gpu_layers` asks for: None takes the first of `ids` that works, the CPU last.

    A graph runs on one device, so it takes all layers of a model, 0 to `blocks`.
    """
    if layers is None:
        return next((id for id in ids if id != CPU and not trial(id).reason), CPU)
    named = [gpu for gpu in layers if gpu.layers]
    if not named:
        return CPU
    id, given = named[0].id, sorted({layer for gpu in named for layer in gpu.layers})
    if len({gpu.id for gpu in named}) > 1 or (blocks and given != [*range(blocks + 1)]):
        told = [str(gpu) for gpu in named]
        raise OptionError(
            f"gpu_layers must put all layers, 0 to {blocks}, on one device, or none; got {told}"
        )
    if id not in ids:
        raise OptionError(f"gpu_layers names {id!r}; the devices are {', '.join(ids)}")
    if reason := trial(id).reason:
        raise BackendUnavailableError(f"{id} was asked for, but it does not work: {reason}")
    return id
