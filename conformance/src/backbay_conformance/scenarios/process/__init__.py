"""Scenarios of the process around a backend: its memory, and what a backend leaves behind."""

from . import bookings as bookings
from . import side_effects as side_effects
