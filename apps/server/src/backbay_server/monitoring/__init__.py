"""Monitoring: metrics, log lines without any text of prompts, and the state that the page shows."""

from .logs import RequestLog, set_up_logging
from .metrics import Metrics, RequestMeter

__all__ = ["Metrics", "RequestLog", "RequestMeter", "set_up_logging"]
