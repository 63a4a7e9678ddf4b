"""Ops that devices are known to compute wrongly: a device's trial decides which of these ops the CPU runs instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from backbay import DType

from ..library.abi import Ptr, dtype_of
from .trial_cases import (
    BF16_NAN,
    LARGE_TRIANGLE,
    LONG_COPIES,
    LONG_INTEGER_ROWS,
    LONG_VOLUMES,
    MOST_ROWS,
    NORMS_OF_MANY_ROWS,
    SMALL_TANH,
    STEP_OF_ZERO,
)


class KnownFault(NamedTuple):
    """A case of the trials, and the ops, by ggml's names for them, that a device which fails it computes wrongly."""

    case: str
    ops: tuple[str, ...]
    concerns: Callable[[Ptr], bool]


SHORT_ROW = 512
"""Numbers of a row of i32 that Vulkan's code copies to the end."""


def _copies(source: DType, result: DType) -> Callable[[Ptr], bool]:
    return lambda tensor: (dtype_of(tensor.src[0]), dtype_of(tensor)) == (source, result)


KNOWN_FAULTS = (
    KnownFault(LARGE_TRIANGLE, ("SOLVE_TRI",), lambda _: True),
    KnownFault(BF16_NAN, ("CPY",), _copies(DType.F32, DType.BF16)),
    KnownFault(LONG_COPIES, ("CPY", "CONT"), _copies(DType.I64, DType.I64)),
    KnownFault(STEP_OF_ZERO, ("STEP",), lambda _: True),
    KnownFault(SMALL_TANH, ("TANH",), lambda _: True),
    KnownFault(
        NORMS_OF_MANY_ROWS,
        ("NORM", "RMS_NORM", "L2_NORM", "ADD_ID"),
        lambda tensor: max(tensor.ne[1:4]) > MOST_ROWS,
    ),
    KnownFault(
        LONG_INTEGER_ROWS,
        ("GET_ROWS",),
        lambda tensor: dtype_of(tensor) is DType.I32 and tensor.ne[0] > SHORT_ROW,
    ),
    KnownFault(LONG_VOLUMES, ("IM2COL_3D",), lambda tensor: tensor.ne[1] > MOST_ROWS),
)
