"""The machines as scenarios: lives drawn from the suite's choices, so that a failing life can be replayed."""

from __future__ import annotations

from ..draw.draw import Draw
from ..machines.backend_life import BackendLife
from ..machines.cache_life import CacheLife
from ..machines.machine import walk
from ..suite.lab import Lab
from ..suite.scenario import scenario


@scenario("core", smoke=6, default=40, nightly=400)
def backend_life(lab: Lab, draw: Draw) -> None:
    """Contexts, leaves, graphs and weights in any order, against plain NumPy; every result known to the bit."""
    walk(BackendLife, lab, draw, 40)


@scenario("cache", smoke=6, default=40, nightly=400)
def cache_life(lab: Lab, draw: Draw) -> None:
    """A cache stored, read, shifted, copied, shortened and moved, against attention over the plain history."""
    walk(CacheLife, lab, draw, 30)
