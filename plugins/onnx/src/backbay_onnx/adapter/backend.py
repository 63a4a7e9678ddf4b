"""Any execution provider of ONNX Runtime, as a backend that the suite can judge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from backbay import (
    DeviceInfo,
    Graph,
    KernelBackend,
    Node,
    Op,
    Option,
    OptionError,
    Precision,
    RefusalError,
    Spec,
    Support,
    ops,
)
from backbay.internals import COMPOSITE, KernelPlan, cached_property, usable_cores, without_forks
from backbay.plugin import CPU, Cancel, check_cancel, host_memory, unsupported

from ..backend import choice_of, is_one_attention, quantizing_gap
from ..ops import KERNELS
from .graphs import call_graph, widened, without_weights
from .precision import MEASURED, parse_precision, precision_of
from .provider import BUILTIN, Provider, find_provider
from .provider_graph import ProviderGraph, SessionKey, provider_graph

NOT_STANDARD = (ops.delta_rule,)  # ops whose kernels have no form in standard nodes; core has composites
EACH, WHOLE = "each", "whole"


class ProviderBackend(KernelBackend):
    """Each op is a session on the provider, or each graph is; no node runs elsewhere."""

    contract_version = "1.2"
    kernels = {op: partial(kernel, None) for op, kernel in KERNELS.items() if op not in NOT_STANDARD}
    options = {
        "ep": Option("", str, f"a package with a provider, the path of its library, or {BUILTIN}NAME"),
        "graphs": Option(
            EACH, choice_of(EACH, WHOLE), "each: an op is a session; whole: a graph is a session"
        ),
        "precision": Option(
            MEASURED, parse_precision, "measured, or declared: f32, f16, bf16, or f16/f32 for sums in f32"
        ),
        "save": Option(
            "", str, "a folder for each model that the provider gets, and the inputs of its first run"
        ),
    }

    def start(self) -> None:
        if self.params.gpu_layers:
            raise OptionError(
                f"backend {self.name} puts no layers on devices: it runs every graph on its provider, which may compile it as a whole"
            )
        super().start()

    @cached_property
    def provider(self) -> Provider:
        if not self.option_values["ep"]:
            raise OptionError(f"backend {self.name} needs the option ep: {self.options['ep'].help}")
        return find_provider(self.option_values["ep"])

    @cached_property
    def _precision(self) -> tuple[Precision, str]:
        return precision_of(self.option_values["precision"], self.provider)

    def devices(self) -> list[DeviceInfo]:
        total, free = host_memory()
        precision, source = self._precision
        title = f"{self.provider.title}; precision {precision.activation}/{precision.accumulate}, {source}"
        return [DeviceInfo(CPU, title, total_memory=total, free_memory=free)]

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        return self._precision[0]

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        if self._is_whole and (gap := quantizing_gap(op, specs)):
            return unsupported(gap)
        found = super().supports(op, specs)
        one = op is not ops.scaled_dot_product_attention or is_one_attention(specs)
        return found if one or not found else COMPOSITE

    @property
    def _is_whole(self) -> bool:
        return bool(self.option_values["graphs"] == WHOLE)

    def compile(self, graph: Graph) -> KernelPlan:
        """A plan whose sessions are made now, so that a refusal comes before anything runs."""
        runs = [node for node in graph.nodes if node.op is not None and not node.op.view]
        if self._is_whole and runs:
            self._session(without_weights(graph))
        for node in () if self._is_whole else runs:
            self._session(call_graph(node), node)
        return super().compile(graph)

    def run_plan(self, plan: KernelPlan, cancel: Cancel | None) -> None:
        if not self._is_whole:
            super().run_plan(plan, cancel)
        elif any(node.op is not None and not node.op.view for node in plan.graph.nodes):
            check_cancel(cancel)
            with without_forks(), np.errstate(all="ignore"):  # infinities and NaN are ordinary results
                for index, made in (
                    self._session(without_weights(plan.graph)).run(plan.arrays, cancel).items()
                ):
                    plan.arrays[index][...] = made.reshape(plan.arrays[index].shape)

    def run_kernel(self, node: Node, args: Sequence[Any]) -> Any:
        op, graph = node.op, call_graph(node)
        assert op is not None
        leaves = graph.nodes[:-1]
        arrays = [widened(each, leaf) for each, leaf in zip(op.flat_operands(args), leaves, strict=True)]
        made = self._session(graph, node).run(arrays)
        if op.writes is None:
            result = made[len(leaves)]
            return result.astype(args[0].dtype, copy=False) if op.moves else result
        target = args[op.writes]
        written = next(leaf.index for leaf in leaves if leaf.kind == "state")
        target[...] = made[written].reshape(target.shape)
        return None

    def _session(self, graph: Graph, node: Node | None = None) -> ProviderGraph:
        threads = self.params.num_threads or usable_cores()
        try:
            key = SessionKey(self.provider, threads, graph.shape_key(), graph, self.option_values["save"])
            return provider_graph(key)
        except RefusalError as refusal:
            raise RefusalError(refusal.reason, node) from None
