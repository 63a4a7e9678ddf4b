"""Reports through Ray: log lines among those of Ray Serve, and gauges among Ray's metrics."""

# Ray may be missing where types are checked:
# pyright: reportMissingImports=false
from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from ray.serve.metrics import Gauge

from backbay_engine import State
from backbay_server.remote import TextFormatter

SERVE = logging.getLogger("ray.serve")
OURS = ("backbay", "backbay_engine", "backbay_ray", "backbay_server")
NAMES = {
    "running": ("vllm_num_requests_running", "Requests with a slot"),
    "waiting": ("vllm_num_requests_waiting", "Requests in the queue of the replica"),
    "usage": ("vllm_kv_cache_usage_perc", "Share of the cache that is full, 0 to 1"),
    "prompt": ("backbay_prompt_tokens", "Tokens of prompts since the replica began, cached ones too"),
    "cached": ("backbay_cached_tokens", "Tokens of prompts that the cache held"),
    "generated": ("backbay_generated_tokens", "Tokens that the replica made"),
}


@final
class ServeLogHandler(logging.Handler):
    """Hands lines to Ray Serve's log, formatted by ours: exceptions without their messages, which may quote a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        SERVE.log(record.levelno, "%s", self.format(record))


def share_logs() -> None:
    """Log to Ray Serve's log, which has a line for each request already."""
    for name in OURS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [ServeLogHandler()], False
        logger.setLevel(logging.INFO)
    logging.getLogger("backbay_server.requests").setLevel(logging.WARNING)


def gauge_setter(model: str) -> Callable[[State, int], None]:
    """A function that sets the gauges of a model. From this call on, the replica logs to Ray Serve's log."""
    share_logs()
    made = {key: Gauge(name, what, tag_keys=("model_name",)) for key, (name, what) in NAMES.items()}

    def show(state: State, context: int) -> None:
        busy = [slot.tokens for slot in state.slots if slot.busy]
        values = {
            "running": len(busy),
            "waiting": state.waiting,
            "usage": sum(busy) / max(1, len(state.slots) * context),
            "prompt": state.totals.prompt,
            "cached": state.totals.reused,
            "generated": state.totals.generated,
        }
        for key, value in values.items():
            made[key].set(value, {"model_name": model})

    return show
