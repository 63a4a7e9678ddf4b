"""The machines: random actions on a backend and on a cache, compared with models of them."""

from __future__ import annotations

from ..draw.draw import Draw
from ..machines.backend_machine import BackendMachine
from ..machines.cache_machine import CacheMachine
from ..machines.machine import walk
from ..suite.lab import Lab, scenario


@scenario("core", tiny=1, smoke=6, default=40, nightly=400, structures=2)
def backend_life(lab: Lab, draw: Draw) -> None:
    """Contexts, leaves, graphs and weights in any order, against plain NumPy; every result known to the bit."""
    walk(BackendMachine, lab, draw, 40)


@scenario("cache", tiny=1, smoke=6, default=40, nightly=400)
def cache_life(lab: Lab, draw: Draw) -> None:
    """A cache stored, read, shifted, copied, shortened and moved, against attention over the plain history."""
    walk(CacheMachine, lab, draw, 30)
