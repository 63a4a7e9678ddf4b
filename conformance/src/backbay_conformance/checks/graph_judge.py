"""The ops that make a graph wrong: every node of every graph of a scenario, judged on its own operands."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from backbay import BackbayError, Backend
from backbay.internals import Bytes, cached_property
from backbay.plugin import Cancel, Graph, Node, Plan

from ..draw.operand import elements
from ..fault import Fault
from ..numbers.comparison import same
from ..numbers.encoding import Array, decode, from_bytes
from ..suite.case import Call
from ..suite.lab import Lab
from .judgement import cost_of, judge
from .node_calls import call_with_data, source_of
from .traced_call import TracedCall

APART = 0.02
"""Relative to a result's largest magnitude: a graph that differs by more from its nodes run one by one is wrong."""


@dataclass
class GraphJudge:
    """Judges the graphs that watched backends run, each node alone on a backend of its own.

    A plan that runs again and again is judged at its first run; the very last run of all plans is judged, too.
    `seconds` are of the processor: a busy machine changes no verdict.
    `alone` has a message for each op that is wrong by itself, `together` for each that is wrong only in a graph.
    `around` names the ops that the first wrong result depends on, if no right result does: one of them may be at fault.
    """

    lab: Lab
    seconds: float
    names: set[str] = field(default_factory=set)
    alone: dict[str, str] = field(default_factory=dict)
    together: dict[str, str] = field(default_factory=dict)
    around: list[str] = field(default_factory=list)
    latest: tuple[Graph, dict[int, Array]] | None = None  # the last run, if it was not judged

    def __post_init__(self) -> None:
        self._deadline = time.process_time() + self.seconds

    @property
    def over(self) -> bool:
        return time.process_time() > self._deadline

    def backend(self, backend: Backend) -> Backend:
        compile_graph = backend.compile
        vars(backend)["compile"] = lambda graph: WatchedPlan(compile_graph(graph), graph, self)
        return backend

    def verdict(self) -> str:
        """The ops of the wrong graph, and those that are wrong; empty if no graph ran."""
        if self.latest is not None:
            self.judge(*self.latest, None)
        if not self.names:
            return ""
        told = f"a graph of {', '.join(sorted(self.names))}; "
        if self.alone:
            return _details(self.alone) + told + f"wrong by themselves: {', '.join(sorted(self.alone))}"
        told += "each op is right by itself"
        if self.together:
            told += f", but not within the graph: {', '.join(self.together)}"
            told += f", which depends on {', '.join(self.around)}" if self.around else ""
            return _details(self.together) + told
        return told

    def judge(self, graph: Graph, before: dict[int, Array], plan: Plan | None) -> None:
        """Compare the nodes, run one by one from the leaves' data `before` the run, with formulas and with the graph."""
        if self.alone or self.together:
            return
        self.names = {node.op.name for node in graph.nodes if node.op is not None and not node.op.view}
        try:
            NodeJudge(self, graph, before).judge(plan)
        except (BackbayError, ArithmeticError, ValueError, TypeError, KeyError):
            self.lab.discard()  # nothing is known about this graph


def _details(found: dict[str, str]) -> str:
    return "".join(f"{name}: {message}\n  " for name, message in found.items())


@dataclass
class NodeJudge:
    """Judges the nodes of one run of a graph, in their order."""

    parent: GraphJudge
    graph: Graph
    values: dict[int, Array]

    def judge(self, plan: Plan | None) -> None:
        calls: dict[int, Call] = {}
        for node in self.graph.nodes:
            if node.op is None or (node.is_view and node.op.writes is None):
                continue
            cache = self.parent.lab.backend.cache_config()
            call = call_with_data(node, lambda leaf: self.values[leaf.index], cache)
            if call is None or self.parent.over:
                return
            calls[node.index] = call
            self._run(node, call)
        if plan is not None and not self.parent.alone:
            self._compare(plan, calls)

    def _run(self, node: Node, call: Call) -> None:
        """Run one node alone, keep its result, and note the op if the result is wrong."""
        assert node.op is not None
        with TracedCall(self.parent.lab.backend, call) as traced:
            traced.write()
            (got, *_) = results = traced.run()
            try:
                judge(call, traced, results, cost_of(call, traced.level, traced.precision), "wide")
            except Fault as fault:
                self.parent.alone.setdefault(node.op.name, f"{call}: {fault.message}")
        if node.op.writes is None:
            self.values[node.index] = got
        else:
            target = node.args[node.op.writes]
            elements(self.values[source_of(target).index], target)[...] = got

    def _compare(self, plan: Plan, calls: dict[int, Call]) -> None:
        """Note the first results and states of the graph's own run that differ from those of the single nodes."""
        writes = [node for node in self.graph.nodes if node.op and node.op.writes is not None]
        results: list[
            tuple[Node, Node, Bytes]
        ] = []  # the node that makes a result, how it is read, and its data
        for index, node in {source_of(node).index: node for node in writes}.items():
            storage = self.graph.nodes[index]
            assert storage.leaf is not None
            results.append((node, storage, storage.leaf.read()))
        made = [(source_of(node), node) for node in self.graph.outputs]
        results += [(source, node, plan.read(node)) for source, node in made if source.index in calls]
        right: set[int] = set()
        wrong: list[Node] = []
        for node, spec, data in results:
            if self._note(node, calls, elements(self.values[source_of(spec).index], spec), data, spec):
                right |= self._depends(node)
            else:
                wrong.append(node)
        if wrong:
            near = self._depends(wrong[0]) - right - {wrong[0].index}
            names = [node.op.name for node in self.graph.nodes if node.index in near and node.op is not None]
            self.parent.around = [name for name in dict.fromkeys(names) if name not in self.parent.together]

    def _depends(self, node: Node) -> set[int]:
        """The ops that a result depends on, its own among them, and all writes into memory that these read."""
        found: set[int] = set()
        waiting = [node]
        while waiting:
            one = source_of(waiting.pop())
            if one.index in found:
                continue
            found.add(one.index)
            waiting += one.operands
            waiting += self._writes.get(one.storage.index, ())
        return {index for index in found if self.graph.nodes[index].op is not None}

    @cached_property
    def _writes(self) -> dict[int, list[Node]]:
        found: dict[int, list[Node]] = {}
        for node in self.graph.nodes:
            if node.op is not None and node.op.writes is not None:
                found.setdefault(node.storage.index, []).append(node)
        return found

    def _note(self, node: Node, calls: dict[int, Call], alone: Array, read: Bytes, spec: Node) -> bool:
        """Whether a result of the graph is that of its node alone; else the op is noted."""
        got = decode(from_bytes(bytes(read), spec.dtype, spec.shape), spec.dtype)
        want = decode(np.array(alone), spec.dtype)
        peak = np.abs(want).max(initial=0.0, where=np.isfinite(want))
        with np.errstate(invalid="ignore"):
            right = bool((same(got, want) | (np.abs(got - want) <= APART * peak)).all())
        if not right and node.op is not None:
            self.parent.together.setdefault(node.op.name, str(calls.get(node.index, node)))
        return right


class WatchedPlan(Plan):
    """A plan whose runs a GraphJudge judges."""

    def __init__(self, plan: Plan, graph: Graph, parent: GraphJudge) -> None:
        self.plan, self.graph, self.parent = plan, graph, parent
        self.nbytes = plan.nbytes
        self.judged = False

    @property
    def valid(self) -> bool:
        return self.plan.valid

    def run(self, cancel: Cancel | None) -> None:
        if self.parent.over:
            self.plan.run(cancel)
            return
        leaves = [node for node in self.graph.nodes if node.leaf is not None]
        data = {node: bytes(node.leaf.read()) for node in leaves if node.leaf is not None}
        before = {n.index: from_bytes(held, n.dtype, n.shape).copy() for n, held in data.items()}
        self.plan.run(cancel)
        self.parent.latest = (self.graph, before) if self.judged else None
        if not self.judged:
            self.judged = True
            self.parent.judge(self.graph, before, self.plan)

    def read(self, node: Node) -> Bytes:
        return self.plan.read(node)

    def close(self) -> None:
        self.plan.close()

    def report(self) -> list[str]:
        return self.plan.report()
