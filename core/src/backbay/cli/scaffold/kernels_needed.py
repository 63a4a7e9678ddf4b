"""The kernels that a model needs, found by tracing it; core's composites do the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from backbay.backend.backend import Backend
from backbay.backend.kernels.kernel_backend import KernelBackend, KernelPlan
from backbay.graph.graph import Graph
from backbay.ops.declaration import OPS, Op
from backbay.trace.context import Context
from backbay.trace.tensor import Tensor
from backbay.types.contract_version import CONTRACT_VERSION
from backbay.types.params import COMPOSITE, KERNEL, BackendParams, Level, Support
from backbay.types.spec import Spec

from .small_models import encoder, llama

Has = Callable[[Op[Any, Any], Sequence[Spec | None]], bool]
GOALS: dict[str, Callable[[Context], Tensor]] = {"a Llama": llama, "an encoder": encoder}


@dataclass
class Needed:
    """The ops that need a kernel, in the order of their first use, and the ops that core composes of them."""

    kernels: dict[Op[Any, Any], None] = field(default_factory=dict)
    composites: dict[Op[Any, Any], None] = field(default_factory=dict)


def nothing(op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
    return False


def kernels_needed(trace: Callable[[Context], Tensor], has: Has = nothing) -> Needed:
    """The fewest kernels that a backend needs for the traced graph, besides those that it has."""
    needed = Needed()

    class Fewest(KernelBackend):
        contract_version = CONTRACT_VERSION

        def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
            if op.composite is None or op.view or has(op, specs):
                return KERNEL
            needed.composites[op] = None
            return COMPOSITE

        def compile(self, graph: Graph) -> KernelPlan:
            for node in graph.nodes:
                op = node.op
                if op and not op.view and not has(op, [node.args[i] for i in op.operands]):
                    needed.kernels[op] = None
            return super().compile(graph)

    with Fewest(None, BackendParams(alloc_memory=False)) as backend, backend.new_context() as ctx:
        ctx.forward(trace(ctx)).reserve()
    return needed


def next_kernels(backend: Backend) -> dict[str, list[Op[Any, Any]]]:
    """The kernels that a backend lacks to run a Llama, then an encoder, then every op; a kernel is named once."""

    def has(op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        return backend.supports(op, specs).level is Level.KERNEL

    missing = {goal: list(kernels_needed(trace, has).kernels) for goal, trace in GOALS.items()}
    missing["every op"] = [
        op for op in OPS.values() if not (op.composite or op.view or op.inline or op in backend.kernels)
    ]
    seen: set[Op[Any, Any]] = set()
    for goal, ops in missing.items():
        missing[goal] = [op for op in ops if op not in seen]
        seen |= {*ops}
    return missing
