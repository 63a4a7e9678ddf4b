"""What this machine can do at most: the rates at which it reads memory and multiplies, measured by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import numpy as np

PARALLEL_BYTES = 1 << 27  # many times the caches of a processor
SIDE = 1024  # of a matrix
PASSES, SECONDS = 5, 1.0  # passes at least, unless they take so long


@dataclass(frozen=True)
class Walls:
    """Bytes that are read, and multiplications that are made, in a second."""

    reading: float
    multiplying: float

    def seconds(self, nbytes: float, products: float) -> float:
        """The least time for this work."""
        return max(nbytes / self.reading, products / self.multiplying)


def measure_walls(threads: int) -> Walls:
    """The rates of the fastest passes, with some threads; NumPy multiplies float32 with as many as it takes."""
    parts = [np.ones(PARALLEL_BYTES // 8 // threads) for _ in range(threads)]
    matrix = np.ones((SIDE, SIDE), np.float32)
    with ThreadPoolExecutor(threads) as pool:
        reading = PARALLEL_BYTES / _fastest(lambda: list(pool.map(np.max, parts)))
    return Walls(reading, SIDE**3 / _fastest(lambda: matrix @ matrix))


def _fastest(work: Callable[[], object]) -> float:
    """The seconds of the fastest pass."""
    begun, found = perf_counter(), list[float]()
    while len(found) < PASSES and (not found or perf_counter() - begun < SECONDS):
        started = perf_counter()
        work()
        found.append(perf_counter() - started)
    return min(found)
