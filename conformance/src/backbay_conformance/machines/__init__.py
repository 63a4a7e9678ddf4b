"""Lives of a backend and of a cache: random sequences of actions, compared with a model in plain NumPy."""

from __future__ import annotations

from .backend_life import BackendLife
from .cache_life import CacheLife
from .machine import Machine

MACHINES: dict[str, type[Machine]] = {"backend_life": BackendLife, "cache_life": CacheLife}
