"""Profiles: times of steps by op, layer and device, beside the times that this machine needs at least."""

from .measuring import Workload, measure_phases
from .op_costs import PeakRates, measure_peak_rates
from .phase import Phase, ProfileLine

__all__ = ["PeakRates", "Phase", "ProfileLine", "Workload", "measure_peak_rates", "measure_phases"]
