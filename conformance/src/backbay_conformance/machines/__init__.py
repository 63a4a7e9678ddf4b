"""Lives of a backend and of a cache: random sequences of actions against a model that plain NumPy keeps.

What others need for a machine of their own: `Machine`, `action` and `walk`; for caches, the plain `History` and what
attention over it must give (`attend`), within what `attention_cost` allows; `require_close` compares.
"""

from __future__ import annotations

from .backend_life import BackendLife
from .cache_life import CacheLife
from .cost import attention_cost
from .history import Cell, History, attend, number, require_close, rotated, stored
from .machine import Choose, Failure, Machine, action, run_machine, state_machine, walk

MACHINES: dict[str, type[Machine]] = {"backend_life": BackendLife, "cache_life": CacheLife}

__all__ = [
    "MACHINES",
    "BackendLife",
    "CacheLife",
    "Cell",
    "Choose",
    "Failure",
    "History",
    "Machine",
    "action",
    "attend",
    "attention_cost",
    "number",
    "require_close",
    "rotated",
    "run_machine",
    "state_machine",
    "stored",
    "walk",
]
