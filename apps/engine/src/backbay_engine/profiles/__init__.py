"""Profiles: times of steps by op, layer and device, beside the times that this machine needs at least."""

from .measuring import Load, measure
from .phase import Phase, ProfileLine
from .work import PeakRates, measure_walls

__all__ = ["Load", "PeakRates", "Phase", "ProfileLine", "measure", "measure_walls"]
