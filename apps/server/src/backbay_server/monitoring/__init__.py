"""Monitoring: metrics, log lines without any text of prompts, and the state that the page shows."""

from .logs import LogMiddleware, set_up_logging
from .metrics import Metrics, RequestMeter

__all__ = ["LogMiddleware", "Metrics", "RequestMeter", "set_up_logging"]
