"""Metrics in Prometheus' format, under the names that OpenTelemetry and routers of Kubernetes read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backbay import BackbayError

if TYPE_CHECKING:
    from ..catalogue import ModelPool
    from ..catalogue.pool import PooledModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

GAUGES = {
    "running": ("vllm:num_requests_running", "Requests with a slot"),
    "waiting": ("vllm:num_requests_waiting", "Requests in the queue"),
    "usage": ("vllm:kv_cache_usage_perc", "Share of the cache that is full, 0 to 1"),
    "memory": ("backbay_memory_bytes", "Memory of a model"),
}


@final
class Metrics(Collector):
    """The metrics of one application, and what the models in memory do at the moment of a scrape."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        of, model = ("gen_ai_operation_name", "gen_ai_request_model"), ("model_name",)

        def histogram(
            name: str, what: str, labels: Iterable[str], buckets: tuple[float, ...] = SECONDS
        ) -> Histogram:
            return Histogram(name, what, labels, buckets=buckets, registry=self._registry)

        def counter(name: str, what: str, labels: Iterable[str]) -> Counter:
            return Counter(name, what, labels, registry=self._registry)

        self.duration = histogram("gen_ai_server_request_duration_seconds", "Whole requests", of)
        self.first = histogram("gen_ai_server_time_to_first_token_seconds", "Until the first token", of)
        each = "gen_ai_server_time_per_output_token_seconds"
        self.each = histogram(each, "For a token after the first", of, PER_TOKEN)
        self.queued = histogram("backbay_queue_time_seconds", "Waiting for a free slot", model)
        self.prompt = counter("backbay_prompt_tokens", "Tokens of prompts, cached ones too", model)
        self.generated = counter("backbay_generated_tokens", "Tokens of answers", model)
        self.cached = counter("backbay_cached_tokens", "Tokens of prompts that the cache held", model)
        reasons = "model_name", "reason"
        self.finished = counter("backbay_finished_requests", "Answers by their finish", reasons)
        self.cancelled = counter("backbay_cancelled_requests", "Requests whose clients left", model)
        refused = "Requests refused, or failed, by status"
        self.refused = counter("backbay_refused_requests", refused, ("status",))
        self.pool: ModelPool | None = None  # whose models are shown
        self._registry.register(self)
        self.running = 0

    def begin(self, model: str, operation: str, begun: float) -> RequestMeter:
        """Measure a request that came at `begun`, by perf_counter: chat, text_completion, embeddings ..."""
        return RequestMeter(self, model, operation, begun)

    def answered(self, status: int) -> None:
        if status >= 400:
            self.refused.labels(str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Sums by name: while a replaced file is loaded, its old model may still answer."""
        found: dict[str, _Load] = {}
        for held in () if self.pool is None else self.pool.held():
            found.setdefault(held.entry.name, _Load()).add(held)
        for field, (name, what) in GAUGES.items():
            gauge = GaugeMetricFamily(name, what, labels=["model_name"])
            for model, load in found.items():
                gauge.add_metric([model], getattr(load, field))
            yield gauge


@final
class RequestMeter:
    """Measures one request. It ends once, by `end`, `cancel` or `fail`."""

    __slots__ = ("_begun", "_count", "_first", "_last", "_metrics", "_model", "_operation")

    def __init__(self, metrics: Metrics, model: str, operation: str, begun: float) -> None:
        self._metrics, self._model, self._operation = metrics, model, operation
        self._begun, self._first, self._last, self._count = begun, 0.0, 0.0, 0
        metrics.running += 1

    def step(self, tokens: int) -> None:
        if tokens:
            self._last = perf_counter()
            self._first = self._first or self._last
            self._count += tokens

    def end(self, reason: str, *, prompt: int = 0, cached: int = 0, waited: float = 0.0) -> None:
        """The answer is whole: why it ended, the prompt's tokens, those of them in the cache, seconds in the queue."""
        metrics, model = self._metrics, self._model
        metrics.prompt.labels(model).inc(prompt)
        metrics.cached.labels(model).inc(cached)
        metrics.queued.labels(model).observe(waited)
        metrics.finished.labels(model, reason).inc()
        metrics.duration.labels(self._operation, model).observe(perf_counter() - self._begun)
        self._over()

    def cancel(self) -> None:
        """The client has left."""
        self._metrics.cancelled.labels(self._model).inc()
        self._over()

    def fail(self) -> None:
        self._metrics.finished.labels(self._model, "error").inc()
        self._over()

    def _over(self) -> None:
        metrics, labels = self._metrics, (self._operation, self._model)
        metrics.running -= 1
        metrics.generated.labels(self._model).inc(self._count)
        if self._count:
            metrics.first.labels(*labels).observe(self._first - self._begun)
        if self._count > 1:
            metrics.each.labels(*labels).observe((self._last - self._first) / (self._count - 1))


@dataclass
class _Load:
    """What the models of one name do."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    memory: int = 0

    def add(self, held: PooledModel) -> None:
        llm = held.llm
        if llm is None:
            self.waiting += held.users
            return
        with suppress(BackbayError):  # it is being closed, or its process has died
            state, allocated = llm.state(), llm.memory().allocated()
            busy = [slot.tokens for slot in state.slots if slot.busy]
            self.running += len(busy)
            self.waiting += state.waiting
            self.usage = max(self.usage, sum(busy) / max(1, len(state.slots) * llm.context))
            self.memory += allocated
