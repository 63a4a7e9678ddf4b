"""The interface between core and a backend's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from .encoding import Bytes


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
        """Fill all bytes with zero."""
        self.write(np.zeros(self.nbytes, np.uint8))

    @abstractmethod
    def close(self) -> None:
        """Free the memory; called once."""
