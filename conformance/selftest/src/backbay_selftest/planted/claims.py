"""Backends that say one thing and do another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import (
    BackendMemory,
    CacheConfig,
    DType,
    KernelBackend,
    NoMemoryError,
    Op,
    Plan,
    Precision,
    Spec,
    Support,
    ops,
)
from backbay.plugin import KERNEL, Ledger, unsupported

from ..faults import BoundCall, fault, named

CLAIMS = "capability lies"


@fault(CLAIMS, ops.conv3d, ops.interpolate, like="L15868")
def an_op_that_is_claimed_raises(call: BoundCall) -> Any:
    """The table has a kernel, and the kernel is not implemented."""
    raise NotImplementedError("not on this device")


@fault(CLAIMS, "numbers", like="L15868")
def bfloat16_is_claimed_and_read_as_half(call: BoundCall) -> Any:
    """bf16 operands are accepted, and their bits taken for f16."""
    return call.right(
        raw=call.raw.view(np.float16) if call.dtype is DType.BF16 else call.raw,
        dtype=DType.F16 if call.dtype is DType.BF16 else call.dtype,
    )


@fault(CLAIMS, "supports", like="executorch#12296")
def quantized_weights_are_disclaimed(call: BoundCall) -> Any:
    """mulmat with a q8_0 weight is said to be impossible, though the kernel does it."""
    if call.op is ops.mulmat and call.specs[0] is not None and call.specs[0].dtype is DType.Q8_0:
        return unsupported("q8_0 weights have no kernel")
    support: Support = call.right()
    return support


@fault(CLAIMS, like="executorch#12296")
def an_op_without_a_kernel_is_claimed(right: type[KernelBackend]) -> type[KernelBackend]:
    """supports says kernel for an op that the table does not have."""

    class Claiming(right):  # type: ignore[misc, valid-type]
        kernels = {op: kernel for op, kernel in right.kernels.items() if op is not ops.solve_tri}

        def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
            return KERNEL if op is ops.solve_tri else super().supports(op, specs)

    return Claiming


@fault(CLAIMS, "precision", like="L15868")
def single_precision_is_called_double(call: BoundCall) -> Any:
    """The backend declares sums in f64 and 8-bit activations never; its kernels get f32."""
    call.backend.float_dtype = np.float32
    return Precision(DType.F32, DType.F64)


@fault(CLAIMS, "cache_config", like="L15868")
def a_cache_dtype_is_offered_that_cannot_be_written(call: BoundCall) -> Any:
    """A cache may be iq4_nl, says cache_config; nothing here can quantize to it."""
    config = call.right()
    return CacheConfig(dtypes=(*config.dtypes, DType.IQ4_NL))


@fault(CLAIMS, "memory", like="L15868")
def the_memory_report_forgets_the_graph(call: BoundCall) -> Any:
    """The report lists weights and caches, and no compute memory."""
    from dataclasses import replace

    report: BackendMemory = call.right()
    return replace(report, cpu=replace(report.cpu, graph=type(report.cpu.graph)(0, report.cpu.graph.status)))


@fault(CLAIMS, "compile", like="L15868")
def a_dry_run_measures_half(call: BoundCall) -> Any:
    """With alloc_memory=False, compute memory is booked without what the outputs take."""
    plan: Plan = call.right()
    if not call.backend.params.alloc_memory:
        lost = plan.nbytes // 2
        call.backend.ledger.give_back(entry(), lost)
        plan.nbytes -= lost
    return plan


def entry() -> Any:
    from backbay.plugin import GRAPH

    return GRAPH


@fault(CLAIMS, like="L15868")
def memory_limits_are_not_kept(right: type[KernelBackend]) -> type[KernelBackend]:
    """max_memory is accepted, and nothing is refused."""

    class Unlimited(right):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self.ledger.limits = {}

    return Unlimited


@fault(CLAIMS, like="L15868")
def a_failed_allocation_stays_booked(right: type[KernelBackend]) -> type[KernelBackend]:
    """What was refused is still counted, so that the next report is too large."""

    class Leaky(Ledger):
        def take(self, entry: Any, nbytes: int, allocate: Any) -> Any:
            try:
                return super().take(entry, nbytes, allocate)
            except NoMemoryError:
                self._sizes[entry] = self._sizes.get(entry, 0) + nbytes
                raise

    class Broken(right):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self.ledger.__class__ = Leaky

    return Broken


@fault(CLAIMS, like="executorch#12296")
def attention_is_claimed_fused_and_left_out(right: type[KernelBackend]) -> type[KernelBackend]:
    """Attention is said to have a kernel where there is none, instead of leaving it to the composite."""

    class Claiming(right):  # type: ignore[misc, valid-type]
        kernels = {op: k for op, k in right.kernels.items() if op is not ops.scaled_dot_product_attention}

        def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
            return KERNEL if op is ops.scaled_dot_product_attention else super().supports(op, specs)

    return Claiming


@fault(CLAIMS, "run_node", like="L15868")
def an_unsupported_case_falls_back_to_nothing(call: BoundCall) -> Any:
    """On f16 operands some kernels return without a result and without an error."""
    if call.node.op in named("gelu_erf", "softplus", "l2_norm", "stddev") and call.node.dtype is DType.F16:
        return
    call.right()


@fault(CLAIMS, "compile", like="L15868")
def what_was_reserved_is_allocated_again(call: BoundCall) -> Any:
    """A plan is said to be invalid after its first run, so that every compute compiles again."""
    plan: Plan = call.right()
    made = type(plan)
    plan.__class__ = type("Short", (made,), {"valid": property(lambda self: False)})
    return plan
