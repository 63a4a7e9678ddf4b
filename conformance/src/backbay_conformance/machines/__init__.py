"""Lives of a backend and of a cache: random sequences of actions against a model that plain NumPy keeps."""

from __future__ import annotations

from .cachelife import CacheLife
from .life import BackendLife
from .machine import Failure, Machine, run_machine, state_machine, walk

MACHINES: dict[str, type[Machine]] = {"backend_life": BackendLife, "cache_life": CacheLife}

__all__ = [
    "MACHINES",
    "BackendLife",
    "CacheLife",
    "Failure",
    "Machine",
    "run_machine",
    "state_machine",
    "walk",
]
