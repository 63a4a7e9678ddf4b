"""Metrics: names that routers and dashboards read, and numbers that add up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from backbay import ClosedError
from backbay_engine import SlotState, State
from backbay_server.monitoring import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """The value of each series, by its name and labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for each in family.samples:
            key = each.name + "".join(f" {value}" for _, value in sorted(each.labels.items()))
            assert key not in found
            found[key] = each.value
    return found


def held(
    *slots: SlotState, waiting: int = 0, users: int = 0, loaded: bool = True, broken: bool = False
) -> Any:
    def state() -> State:
        if broken:
            raise ClosedError("the model is closed")
        return State(slots=slots, waiting=waiting)

    llm = SimpleNamespace(state=state, context=100, memory=lambda: SimpleNamespace(allocated=lambda: 1000))
    return SimpleNamespace(entry=SimpleNamespace(name="tiny"), llm=llm if loaded else None, users=users)


def test_an_answer_is_counted_once_with_its_times() -> None:
    metrics = Metrics()
    meter = metrics.begin("tiny", "chat", 0.0)
    assert metrics.running == 1
    for tokens in (1, 0, 2):
        meter.step(tokens)
    meter.end("stop", prompt=7, cached=5, waited=0.25)
    found = samples(metrics)
    assert metrics.running == 0
    assert found["backbay_prompt_tokens_total tiny"] == 7
    assert found["backbay_cached_tokens_total tiny"] == 5
    assert found["backbay_generated_tokens_total tiny"] == 3
    assert found["backbay_finished_requests_total tiny stop"] == 1
    assert found["backbay_queue_time_seconds_sum tiny"] == 0.25
    for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
        assert found[f"gen_ai_server_{name}_seconds_count chat tiny"] == 1


def test_what_ends_early_is_told_apart() -> None:
    metrics = Metrics()
    metrics.begin("tiny", "chat", 0.0).cancel()
    metrics.begin("tiny", "chat", 0.0).fail()
    metrics.answered(200)
    metrics.answered(429)
    found = samples(metrics)
    assert found["backbay_cancelled_requests_total tiny"] == 1
    assert found["backbay_finished_requests_total tiny error"] == 1
    assert found["backbay_refused_requests_total 429"] == 1
    assert "backbay_refused_requests_total 200" not in found
    assert metrics.running == 0


def test_routers_find_running_waiting_and_the_use_of_the_cache() -> None:
    metrics = Metrics()
    old = held(SlotState(busy=True, tokens=50), SlotState(tokens=100), waiting=2)
    new = held(users=3, loaded=False)  # the same model, whose file was replaced
    metrics.pool = SimpleNamespace(held=lambda: [old, new, held(broken=True)])  # type: ignore[assignment]
    found = samples(metrics)
    assert found["vllm:num_requests_running tiny"] == 1
    assert found["vllm:num_requests_waiting tiny"] == 5
    assert found["vllm:kv_cache_usage_perc tiny"] == 0.25
    assert found["backbay_memory_bytes tiny"] == 1000
