"""Gauges of a replica among Ray's own metrics, under the names that routers read, with Ray's prefix."""

# Ray is an extra, which may be missing where types are checked:
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable

from ray.util.metrics import Gauge

from backbay_engine import State

NAMES = {
    "running": ("vllm_num_requests_running", "Requests with a slot"),
    "waiting": ("vllm_num_requests_waiting", "Requests in the queue of the replica"),
    "usage": ("vllm_kv_cache_usage_perc", "Share of the cache that is full, 0 to 1"),
    "prompt": ("backbay_prompt_tokens", "Tokens of prompts since the replica began, cached ones too"),
    "cached": ("backbay_cached_tokens", "Tokens of prompts that the cache held"),
    "generated": ("backbay_generated_tokens", "Tokens that the replica made"),
}


def gauges(model: str) -> Callable[[State, int], None]:
    """Sets the gauges of a model to its state; the second argument is the tokens of each sequence."""
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
