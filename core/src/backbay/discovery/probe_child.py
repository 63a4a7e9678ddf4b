"""The child process of a probe: it reports each stage before the stage begins."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import ops
from ..backend.backend import Backend
from ..backend.helper_processes import reporter
from ..errors import BackbayError, describe_error
from ..types.dtype import DType
from ..types.params import BackendParams
from .installed import BackendEntry, trial_seconds

Tell = Callable[..., None]

ROW, ROWS, COLUMNS = 256, 32, 3  # several rows and columns: some broken builds compute a single one correctly
# A block of ones in each dtype.
ONES: dict[DType, NDArray[Any]] = {
    DType.F32: np.ones(1, np.float32),
    DType.F16: np.ones(1, np.float16),
    DType.Q8_0: np.array([0x00, 0x3C, *[1] * 32], np.uint8),
    DType.Q4_0: np.array([0x00, 0x3C, *[0x99] * 16], np.uint8),
}
TOLERANCE = 0.02  # relative; enough for backends that round activations to 8 bits


def main(request: dict[str, Any]) -> NoReturn:
    """Try the backend that a request names, then end the process at once."""
    tell = reporter()
    faulthandler.enable()
    faulthandler.dump_traceback_later(request["timeout"], exit=True)

    def extend(seconds: float) -> None:
        tell(extension=seconds)
        faulthandler.dump_traceback_later(request["timeout"] + seconds, exit=True)

    reason = ""
    try:
        rivals = tuple(request["entry"]["rivals"])
        examine_backend(BackendEntry(**{**request["entry"], "rivals": rivals}), tell, extend)
    except BackbayError as error:
        reason = " ".join(str(error).split())
    except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may raise anything
        reason = describe_error(error)
    tell(finished=True, reason=reason)
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads that a library left behind


def examine_backend(entry: BackendEntry, tell: Tell, extend: Callable[[float], None]) -> None:
    """Import, start and compute; an error means that the backend does not work."""
    tell(stage="it was imported")
    kind = entry.load()
    tell(kernels=[op.name for op in kind.kernels], priority=kind.priority)
    if seconds := trial_seconds(kind):
        extend(seconds)
    tell(stage="it described itself")
    try:
        details = {str(key): str(value) for key, value in kind.diagnose().items()}
    except Exception as error:  # noqa: BLE001  a plugin may raise anything, and may work nevertheless
        details = {"diagnosis": describe_error(error)}
    tell(details=details)
    tell(stage="it was started")
    backend = kind(None, BackendParams())
    backend.name = entry.name
    with backend:
        tell(devices=[asdict(device) for device in backend.devices()])
        tell(stage="it computed")
        for dtype in ONES:
            check_mulmat(backend, dtype)
        tell(stage="it was closed")


def check_mulmat(backend: Backend, dtype: DType) -> None:
    """Multiply matrices of ones, if the backend takes the dtype; raise unless every element is the row length."""
    with backend.new_context() as ctx:
        x = ctx.input().from_floats(np.ones((COLUMNS, ROW), np.float32))
        weight = ctx.layer(0).empty(dtype, ROW, ROWS)
        if not backend.supports(ops.mulmat, (weight, x)):
            return
        block = ONES[dtype].view(np.uint8)
        weight.from_bytes(np.tile(block, weight.nbytes // block.nbytes))
        y = weight.mulmat(ctx, x)
        ctx.compute(y)
        wrong = np.abs(y.floats() - ROW) > TOLERANCE * ROW
        if wrong.any() or np.isnan(y.floats()).any():
            first = y.floats()[:4].tolist()
            raise BackbayError(f"mulmat: {weight} x {x}, all ones: {first} instead of {ROW}")
