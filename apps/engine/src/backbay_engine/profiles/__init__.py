"""Profiles: times of steps by op, layer and device, beside the times that this machine needs at least."""

from .measurement import MeasuredLoad, measure_phases
from .op_costs import PeakRates, measure_peak_rates
from .phase import ProfileLine, ProfilePhase

__all__ = ["MeasuredLoad", "PeakRates", "ProfileLine", "ProfilePhase", "measure_peak_rates", "measure_phases"]
