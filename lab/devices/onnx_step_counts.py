"""What one decode step on ONNX Runtime copies, and where its nodes ran, for step_counts.py.

ONNX Runtime copies an input to the device when it is bound, and an output to the host after the run. Between nodes on the
CPU and on the device it copies values in the run. Inputs that only the CPU reads are not copied.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from backbay_engine import LLM
from backbay_onnx.plans.bound_graph import BoundGraph
from backbay_onnx.plans.io_binding import DirectIOBinding
from backbay_onnx.plans.session_cache import CompiledGraph
from backbay_onnx.session.providers import HOST_PROVIDER

TO_DEVICE, TO_HOST = "MemcpyFromHost", "MemcpyToHost"


class StepCounts:
    """The number of runs, and the latest one: its graph, and the inputs that it bound."""

    latest: BoundGraph

    def __init__(self) -> None:
        self.bound: Counter[str] = Counter()
        self.runs = 0
        bind, run = DirectIOBinding.input, BoundGraph.run

        def counted_input(binding: DirectIOBinding, name: str, *args: Any) -> None:
            self.bound[name] += 1
            bind(binding, name, *args)

        def counted_run(graph: BoundGraph, options: Any) -> None:
            self.bound.clear()
            self.runs += 1
            self.latest = graph
            run(graph, options)

        DirectIOBinding.input, BoundGraph.run = counted_input, counted_run  # type: ignore[method-assign]

    def watch(self, llm: LLM) -> AbstractContextManager[Any]:
        """While a text is generated."""
        self.runs = 0
        return llm.backend.profiling()

    def lines(self, llm: LLM) -> list[str]:
        """What the latest run did."""
        compiled = latest(llm.backend, self.latest)
        return [f"{self.runs} runs of sessions", *lines(self, compiled)]


def latest(backend: Any, graph: BoundGraph) -> CompiledGraph:
    compiled = [each for known in backend.sessions._compiled.values() for each in known]
    return next(each for each in compiled if each.session is graph._session)


def lines(calls: StepCounts, compiled: CompiledGraph) -> list[str]:
    """What the latest run did."""
    events = compiled.events
    assert events is not None
    nodes = events.times(compiled.session, -1)
    provider = {node.name: node.provider for node in nodes}
    readers: dict[str, list[str]] = {}
    for node in compiled.lowered.model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(provider.get(node.name, "merged into another node"))
    graph, lowered = calls.latest._graph, compiled.lowered
    inputs = {leaf.name: leaf for leaf in lowered.leaves if leaf.name in calls.bound}
    there = [name for name in inputs if HOST_PROVIDER.name not in readers.get(name, [])]
    states = {state.index for state in lowered.states}
    data = [f"{name} {graph.nodes[inputs[name].index]}" for name in there if inputs[name].index not in states]
    made = [graph.nodes[index] for _, index in lowered.results]
    back = [state.name for state in lowered.states if not state.in_place]
    copies = Counter(node.op for node in nodes if node.op in (TO_DEVICE, TO_HOST))
    of_cpu = Counter(node.op for node in nodes if node.provider == HOST_PROVIDER.name)
    of_states = sum(inputs[name].index in states for name in there)
    return [
        f"inputs: {len(inputs)} bound, {len(there)} copied to the device, of these {of_states} states",
        *[f"    {each}" for each in data],
        f"outputs copied to the host: {len(made)} results, {len(back)} states, {2 * len(lowered.rows)} of rows",
        f"copies between nodes: {copies[TO_DEVICE]} to the device, {copies[TO_HOST]} to the host",
        f"nodes: {len(nodes)}, on the CPU {of_cpu.total()}: {dict(of_cpu)}",
    ]
