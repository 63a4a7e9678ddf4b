"""Times of the parts of one run, as a plan tells them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The time that one node of a graph took, or several that ran as one.

    `nodes` are indices in `graph.nodes`; without any, the time is of the backend's own work, such as copies between
    devices.
    """

    nodes: tuple[int, ...]
    seconds: float
    device: str
    """The id of the device that it ran on."""


Timings = Callable[[], Sequence[Timing]]
"""Tells the times of a run that was profiled."""
