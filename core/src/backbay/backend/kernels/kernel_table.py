"""The table of a plugin's kernels, checked against the ops' declarations, and the gaps in the conversions that kernels need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from ...data.encoding import decode, encode
from ...errors import BackbayError, DTypeError
from ...ops.op_declaration import Op
from ...types.dtype import DType
from ...types.spec import Spec

F = TypeVar("F", bound=Callable[..., Any])


def conversion_gap(op: Op[Any, Any], specs: Sequence[object]) -> str:
    """The reason if an op on these operands needs a conversion that is missing; else empty."""
    if op.view or (op.moves and op.writes is None and op.ids is None):
        return ""  # the bits move as they are
    given = [spec for spec in specs if isinstance(spec, Spec)]
    if op.writes is None:
        return next(filter(None, (decoding_gap(spec.dtype) for spec in given)), "")
    target = given.pop(op.operands.index(op.writes))
    if given[0].dtype is target.dtype:
        return ""
    return decoding_gap(given[0].dtype) or encoding_gap(target.dtype)


@cache
def decoding_gap(dtype: DType) -> str:
    """The reason if a dtype cannot be converted to numbers; else empty."""
    try:
        decode(np.zeros((1, dtype.type_size), np.uint8), dtype)
    except DTypeError as error:
        return str(error)
    return ""


@cache
def encoding_gap(dtype: DType) -> str:
    """The reason if numbers cannot be converted to a dtype; else empty."""
    try:
        encode(np.zeros((1, dtype.block_size), np.float32), dtype)
    except DTypeError as error:
        return str(error)
    return ""


class KernelTable(dict[Op[Any, Any], Callable[..., Any]]):
    """A mapping from ops to kernels, and a decorator: `kernel = KernelTable()`, then `@kernel(ops.add)`.

    A function whose parameters differ from the op's, or a second function for the same op, is an error at import.
    `skip` is the number of parameters before the op's own.
    """

    def __init__(self, *, skip: int = 0) -> None:
        super().__init__()
        self._skip = skip

    def __call__(self, op: Op[Any, Any]) -> Callable[[F], F]:
        def register(function: F) -> F:
            op.check_signature(function, skip=self._skip)
            if op in self:
                both = f"{self[op].__qualname__} and {function.__qualname__}"
                raise BackbayError(f"two kernels for {op.name}: {both}")
            self[op] = function
            return function

        return register
