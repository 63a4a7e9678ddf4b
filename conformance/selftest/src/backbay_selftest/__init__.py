"""The suite's own proof: backends with planted faults, and backends that are different and right."""

from __future__ import annotations

from . import faults as faults  # registers the faults
from .correct import CORRECT
from .fault import FAULTS, FaultKind, PlantedFault, reference

__all__ = ["CORRECT", "FAULTS", "FaultKind", "PlantedFault", "reference"]
