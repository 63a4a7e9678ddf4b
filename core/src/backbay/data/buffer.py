"""Memory of a leaf or a weight, as a backend hands it to core."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from .encoding import Bytes


class Buffer(ABC):
    """Memory of a leaf or a weight, wherever the backend put it."""

    nbytes: int

    @abstractmethod
    def read(self) -> Bytes:
        """All bytes, on the host; the caller neither changes nor keeps them."""

    @abstractmethod
    def write(self, data: Bytes) -> None:
        """Replace all bytes."""

    def zero(self) -> None:
        """Fill all bytes with zero."""
        self.write(np.zeros(self.nbytes, np.uint8))

    @abstractmethod
    def close(self) -> None:
        """Free the memory; called once."""
