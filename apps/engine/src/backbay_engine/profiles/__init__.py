"""Profiles: times of steps by op, layer and device, beside the times that this machine needs at least."""

from .measurement import Workload, measure_phases
from .op_costs import PeakRates, measure_peak_rates
from .phase import ProfileLine, ProfilePhase

__all__ = ["PeakRates", "ProfileLine", "ProfilePhase", "Workload", "measure_peak_rates", "measure_phases"]
