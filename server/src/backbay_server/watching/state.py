"""The server's state, for its page: models, slots, queues, and memory by device and layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from backbay import BackbayError, BackendMemory, Memory
from backbay_engine import LLM

if TYPE_CHECKING:
    from ..catalogue import Pool
    from ..catalogue.pool import Held
    from .metrics import Metrics


def state(pool: Pool, metrics: Metrics, *, draining: bool) -> dict[str, Any]:
    """The state as plain data. No text of any request is in it."""
    models = [_model(held) for held in pool.held()]
    return {
        "draining": draining,
        "ready": pool.ready,
        "running": metrics.running,
        "generated_tokens": sum(model["totals"]["generated"] for model in models if "totals" in model),
        "models": models,
    }


def _model(held: Held) -> dict[str, Any]:
    llm = held.llm
    found = {
        "name": held.entry.name,
        "status": held.status,
        "progress": held.progress,
        "requests": held.users,
    }
    if llm is None:
        return found
    try:
        return {**found, **_running(llm)}
    except BackbayError:  # it is being closed, or its process has died
        return found


def _running(llm: LLM) -> dict[str, Any]:
    now = llm.state()
    return {
        "context": llm.context,
        "images": "image" in llm.modalities,
        "slots": [{"busy": slot.busy, "tokens": slot.tokens} for slot in now.slots],
        "waiting": now.waiting,
        "totals": asdict(now.totals),
        "memory": _memory(llm.memory()),
    }


def _memory(report: BackendMemory) -> list[dict[str, Any]]:
    """For each device: bytes of the weights and the cache of each layer, of the graph, and of everything else."""
    devices = [
        {
            "id": device.id,
            "name": device.name,
            "weights": _sizes(device.weights),
            "cache": _sizes(device.cache),
            "graph": device.graph.size,
            "input": report.input_weights.size if device is report.cpu else 0,
            "host": report.host.size if device is report.cpu else 0,
        }
        for device in report.devices
    ]
    for name, companion in report.companions.items():
        devices += [{**each, "name": f"{each['name']}, {name}"} for each in _memory(companion)]
    return devices


def _sizes(layers: Sequence[Memory]) -> list[int]:
    return [layer.size for layer in layers]
