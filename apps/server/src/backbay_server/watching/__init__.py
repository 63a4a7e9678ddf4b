"""Watching the server: metrics, log lines without any text of prompts, and the state that the page shows."""

from .logs import Log, set_up_logging
from .metrics import Meter, Metrics

__all__ = ["Log", "Meter", "Metrics", "set_up_logging"]
