"""Declarations of a backend: its devices, the precision of its ops, and the ops that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .dtype import DType


@dataclass(frozen=True)
class DeviceInfo:
    """A device that a backend can use. Its id has the form `LIBRARY:n`, such as `CUDA:0`.

    `hardware_id` is the device's PCI address or UUID, by which the system's tools know it; None if it is not known.
    """

    id: str
    name: str
    is_gpu: bool = False
    total_memory: int | None = None
    free_memory: int | None = None
    hardware_id: str | None = None


@dataclass(frozen=True)
class Precision:
    """The dtypes in which a backend computes one op on given operands. Error bounds are derived from them.

    `activation`: the second operand of products, convolutions and attention may be rounded to this dtype, and so may
    the operand of gelu and quick_gelu. `accumulate`: sums are kept in this dtype, and each step of any other
    arithmetic is rounded to it. Sums in f16 may be kept at an eighth of their size, so that they do not outgrow f16, and then
    numbers near zero lose three bits. Arithmetic may flush results below f32's normal range to zero; moves and casts keep
    all subnormals. `flushes_subnormals`: arithmetic may also read operands and float attributes below this range as
    zeros of their signs, as XLA and many GPUs do. `weight`, a float type: the first operand of products and convolutions may be
    rounded to this dtype, too, quantized weights after their blocks are decoded.
    """

    activation: DType
    accumulate: DType
    flushes_subnormals: bool = False
    weight: DType = DType.F32


class Level(Enum):
    KERNEL = "kernel"
    COMPOSITE = "composite"
    NONE = "unsupported"


@dataclass(frozen=True)
class Support:
    """How a backend runs an op on given specs; false, with a reason, if it cannot."""

    level: Level
    reason: str = ""

    def __bool__(self) -> bool:
        return self.level is not Level.NONE


KERNEL, COMPOSITE = Support(Level.KERNEL), Support(Level.COMPOSITE)


def unsupported(reason: str) -> Support:
    return Support(Level.NONE, reason)


NO_KERNEL = unsupported("it has no kernel, and there is no composite")
