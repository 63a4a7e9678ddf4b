"""Watching the server: metrics, log lines without any text of prompts, and the state that the page shows."""

from __future__ import annotations

from .logs import Log, set_up_logging
from .metrics import Meter, Metrics
from .state import state

__all__ = ["Log", "Meter", "Metrics", "set_up_logging", "state"]
