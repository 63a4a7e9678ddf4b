"""Arrays on their way to a kernel of another library and back, by DLPack, which both know."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..numbers.encoding import Array

UINT, BFLOAT = 1, 4  # DLPack's codes of kinds; NumPy has no bfloat16, and holds its bits as uint16
KIND = 20  # where a DLTensor has its kind's code: behind the pointer, the device and the number of dimensions
TO_HOST = (
    "cpu",
    "get",
    "copy_to_host",
)  # the methods of PyTorch, CuPy and numba that copy an array to the host

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@dataclass(frozen=True)
class DlpackArray:
    """An array for DLPack, whose kind is told as another one of the same size."""

    array: Any
    kind: int
    told: int

    def __dlpack__(self, **_: object) -> Any:
        capsule = self.array.__dlpack__()
        at = _pointer(capsule, b"dltensor")
        kind = ctypes.c_uint8.from_address(at + KIND)
        if kind.value == self.kind:
            kind.value = self.told
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@dataclass(frozen=True)
class HostArray:
    """An operand in host memory, for `from_dlpack` of any library; quantized rows are bytes.

    array      the elements as stored, a view of the storage; bfloat16 as uint16
    storage    all elements of the memory that the operand is a view of
    """

    array: Array
    whole: Array
    bfloat16: bool = False

    @property
    def storage(self) -> Any:
        return self._given(self.whole)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The steps of each dimension, in elements."""
        return tuple(step // self.array.itemsize for step in self.array.strides)

    @property
    def offset(self) -> int:
        """The first element's place in the storage."""
        begin, first = (each.__array_interface__["data"][0] for each in (self.whole, self.array))
        return (first - begin) // self.array.itemsize if self.array.size else 0

    def __dlpack__(self, **_: object) -> Any:
        return self._given(self.array).__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def _given(self, array: Array) -> Any:
        return DlpackArray(array, UINT, BFLOAT) if self.bfloat16 else array


def on_host(array: Any) -> Array:
    """The elements of an array of any library; bfloat16 as uint16."""
    for name in TO_HOST:
        array = getattr(array, name, lambda same=array: same)()
    held = (
        array
        if isinstance(array, (np.ndarray, np.generic))
        else np.from_dlpack(DlpackArray(array, BFLOAT, UINT))
    )
    return np.asarray(held.view(np.uint16) if held.dtype.name == "bfloat16" else held)
