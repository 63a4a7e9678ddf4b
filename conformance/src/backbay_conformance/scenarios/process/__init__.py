"""Scenarios of the process around a backend: its memory, and what a backend leaves behind."""

from . import bookings as bookings
from . import manners as manners
