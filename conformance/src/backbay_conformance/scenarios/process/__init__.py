"""Scenarios of the process around a backend: its memory, and what a backend leaves behind."""

from . import bookings, manners

SUBJECTS = (bookings, manners)
