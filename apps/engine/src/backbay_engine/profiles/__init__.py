"""Profiles: times of steps by op, layer and device, beside the times that this machine needs at least."""

from .measuring import Load, measure
from .phase import Line, Phase
from .work import Walls, measure_walls

__all__ = ["Line", "Load", "Phase", "Walls", "measure", "measure_walls"]
