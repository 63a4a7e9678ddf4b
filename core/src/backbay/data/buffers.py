"""Buffers: the memory of leaves and weights, in the host, in a mapped file, or on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ..errors import BackbayError, GuardZoneError
from ..types.params import Debug
from .encoding import Bytes

GUARD, POISON = 0xA5, 0xFF  # bytes of 0xFF are a NaN in every float dtype


class Buffer(ABC):
    """The memory of a leaf or a weight, on any device of the backend."""

    nbytes: int

    @abstractmethod
    def read(self) -> Bytes:
        """All bytes, on the host; the caller must not change or keep them."""

    @abstractmethod
    def write(self, data: Bytes) -> None:
        """Replace all bytes."""

    def zero(self) -> None:
        self.write(np.zeros(self.nbytes, np.uint8))

    @abstractmethod
    def close(self) -> None:
        """Free the memory; called once."""


class HostBuffer(Buffer):
    """Memory of the host: zeros at first, or poison if `debug.poison` asks for it."""

    def __init__(self, nbytes: int, debug: Debug) -> None:
        self.nbytes = nbytes
        guard = debug.guard_bytes
        self._whole = np.zeros(nbytes + 2 * guard, np.uint8)
        self._guards = (self._whole[:guard], self._whole[nbytes + guard :])
        for zone in self._guards:
            zone[:] = GUARD
        self.data: Bytes = self._whole[guard : nbytes + guard]
        if debug.poison:
            self.poison()

    def zero(self) -> None:
        self.data[:] = 0

    def poison(self) -> None:
        self.data[:] = POISON

    def check_guards(self) -> None:
        """Raise GuardZoneError if a guard zone, before or behind the data, was written to."""
        if not all((zone == GUARD).all() for zone in self._guards):
            raise GuardZoneError(f"something wrote outside of a buffer of {self.nbytes} bytes")

    def read(self) -> Bytes:
        return self.data

    def write(self, data: Bytes) -> None:
        self.data[:] = data

    def close(self) -> None:
        self.data = self._whole = np.zeros(0, np.uint8)
        self._guards = (self.data, self.data)


class MappedBuffer(Buffer):
    """The bytes of a mapped file, read-only."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.nbytes = data.size

    def read(self) -> Bytes:
        return self.data

    def write(self, data: Bytes) -> None:
        raise BackbayError("a mapped file is read-only")

    def close(self) -> None:
        self.data = np.zeros(0, np.uint8)
