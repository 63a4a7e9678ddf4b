"""Backends that do not do what they declare, and memory that is not booked or never given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backbay import CacheConfig, DType, KernelBackend, NoMemoryError, Op, Precision, Spec, Support, ops
from backbay.internals import KERNEL, Ledger
from backbay.plugin import GRAPH, unsupported

from ...fault import AnyOp, FaultKind, InterceptedCall, Result, fault, named, reading_zeros


class LeakyLedger(Ledger):
    """A ledger that books refused allocations."""

    def take(self, entry: Any, nbytes: int, allocate: Any, **keywords: Any) -> Any:
        try:
            return super().take(entry, nbytes, allocate, **keywords)
        except NoMemoryError:
            self._sizes[entry] = self._sizes.get(entry, 0) + nbytes
            raise


class HalvingLedger(Ledger):
    """A ledger that books half of each allocation."""

    def take(self, entry: Any, nbytes: int, allocate: Any, **keywords: Any) -> Any:
        return super().take(entry, nbytes // 2, allocate, **keywords)

    def give_back(self, entry: Any, nbytes: int, **keywords: Any) -> None:
        super().give_back(entry, nbytes // 2, **keywords)


def claiming(right: type[KernelBackend], claimed: Op[Any, Any]) -> type[KernelBackend]:
    """The backend that claims a kernel for an op, and lacks it."""

    class Claiming(right):  # type: ignore[misc, valid-type]
        kernels = {other: kernel for other, kernel in right.kernels.items() if other is not claimed}

        def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
            return KERNEL if op is claimed else super().supports(op, specs)

    return Claiming


@fault(FaultKind.CLAIMS, ops.conv3d, ops.interpolate)
def an_op_that_is_claimed_raises(call: InterceptedCall) -> Result:
    """The table has a kernel, and the kernel is not implemented."""
    raise NotImplementedError("not on this device")


@fault(FaultKind.CLAIMS, "numbers")
def bfloat16_is_claimed_and_read_as_half(call: InterceptedCall) -> Result:
    """bf16 operands are accepted, and their bits are read as f16."""
    if call.dtype is not DType.BF16:
        return call.right()
    return call.right(raw=call.raw.view(np.float16), dtype=DType.F16)


@fault(FaultKind.CLAIMS, "supports")
def quantized_weights_are_disclaimed(call: InterceptedCall) -> Result:
    """`supports` declines mulmat with a q8_0 weight, which the kernel can compute."""
    quantized = call.op is ops.mulmat and call.specs[0] is not None and call.specs[0].dtype is DType.Q8_0
    return unsupported("q8_0 weights have no kernel") if quantized else call.right()


@fault(FaultKind.CLAIMS, "start")
def half_of_the_memory_is_booked(call: InterceptedCall) -> Result:
    """Every allocation is booked with half of its bytes, in dry runs too."""
    call.backend.ledger.__class__ = HalvingLedger
    call.right()


@fault(FaultKind.CLAIMS)
def an_op_without_a_kernel_is_claimed(right: type[KernelBackend]) -> type[KernelBackend]:
    return claiming(right, ops.solve_tri)


@fault(FaultKind.CLAIMS, "precision")
def single_precision_is_called_double(call: InterceptedCall) -> Result:
    """The backend declares sums in f64, and its kernels compute in f32."""
    call.backend.float_dtype = np.float32
    return Precision(DType.F32, DType.F64)


@fault(FaultKind.CLAIMS, "cache_config")
def a_cache_dtype_is_offered_that_cannot_be_written(call: InterceptedCall) -> Result:
    """`cache_config` offers iq4_nl, and no kernel can quantize to it."""
    return CacheConfig(dtypes=(*call.right().dtypes, DType.IQ4_NL))


@fault(FaultKind.CLAIMS, "memory")
def the_memory_report_forgets_the_graph(call: InterceptedCall) -> Result:
    """The report lists weights and caches, and no compute memory."""
    report = call.right()
    return replace(report, cpu=replace(report.cpu, graph=replace(report.cpu.graph, size=0)))


@fault(FaultKind.CLAIMS, "compile")
def a_dry_run_measures_half(call: InterceptedCall) -> Result:
    """With alloc_memory=False, half of the compute memory is booked."""
    plan = call.right()
    if not call.backend.params.alloc_memory:
        lost = plan.nbytes // 2
        call.backend.ledger.give_back(GRAPH, lost)
        plan.nbytes -= lost
    return plan


@fault(FaultKind.CLAIMS, "start")
def memory_limits_are_not_kept(call: InterceptedCall) -> Result:
    call.backend.ledger.limits = {}
    call.right()


@fault(FaultKind.CLAIMS, "start")
def a_failed_allocation_stays_booked(call: InterceptedCall) -> Result:
    """A refused allocation stays in the report."""
    call.backend.ledger.__class__ = LeakyLedger
    call.right()


@fault(FaultKind.CLAIMS)
def attention_is_claimed_fused_and_left_out(right: type[KernelBackend]) -> type[KernelBackend]:
    """`supports` claims a kernel for attention, which has only a composite."""
    return claiming(right, ops.scaled_dot_product_attention)


@fault(FaultKind.CLAIMS, "run_node")
def an_unsupported_case_falls_back_to_nothing(call: InterceptedCall) -> Result:
    """On f16 operands some kernels return without a result and without an error."""
    if call.node.op in named("gelu_erf", "softplus", "l2_norm", "stddev") and call.node.dtype is DType.F16:
        return
    call.right()


@fault(FaultKind.CLAIMS, "compile")
def what_was_reserved_is_allocated_again(call: InterceptedCall) -> Result:
    """Plans are never valid, so that every compute compiles again."""
    plan = call.right()
    plan.__class__ = type("Short", (type(plan),), {"valid": property(lambda self: False)})
    return plan


@fault(FaultKind.CLAIMS)
def subnormal_operands_are_zeros_and_nothing_says_so(right: type[KernelBackend]) -> type[KernelBackend]:
    """Operands below f32's normal range are read as zeros, as in XLA, and the declared precision keeps them."""
    return reading_zeros(right, 2.0**-126)


@fault(FaultKind.CLAIMS)
def more_than_subnormal_operands_are_zeros(right: type[KernelBackend]) -> type[KernelBackend]:
    """The declared precision flushes what lies below f32's normal range; the kernels flush f16's subnormals, too."""

    class Declared(reading_zeros(right, 2.0**-14)):  # type: ignore[misc]
        def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
            declared: Precision = super().precision(op, specs)
            return replace(declared, flushes_subnormals=True)

    return Declared


@fault(FaultKind.CLAIMS, "compile")
def profiles_repeat_their_times(call: InterceptedCall) -> Result:
    """Each time is told a thousand times."""
    plan = call.right()
    profile = plan.profile

    def counted(cancel: Any) -> Any:
        timings = profile(cancel)
        return lambda: [timing for timing in timings() for _ in range(1000)]

    plan.profile = counted
    return plan


@fault(FaultKind.CLAIMS, "compile")
def a_profile_runs_a_graph_once(call: InterceptedCall) -> Result:
    """Later profiled runs tell the times of the first, and compute nothing."""
    plan = call.right()
    profile = plan.profile
    kept: list[Any] = []

    def first(cancel: Any) -> Any:
        if not kept:
            kept.append(profile(cancel))
        return kept[0]

    plan.profile = first
    return plan


LARGE = 1 << 20


def unbooked(call: InterceptedCall, *forgotten: AnyOp) -> int:
    """The working memory of a node; 0 for some ops."""
    return 0 if call.node.op in forgotten else int(call.right())


def forgets(name: str, *forgotten: AnyOp) -> None:
    """Register a fault: the working memory of some ops is not booked."""
    fault(FaultKind.CLAIMS, "working_memory", name=name)(lambda call: unbooked(call, *forgotten))


forgets("scores_of_attention_are_not_booked", ops.scaled_dot_product_attention)
forgets("gathered_rows_of_experts_are_not_booked", ops.mulmat_id)
forgets("windows_of_images_are_not_booked", ops.conv2d, ops.conv3d)


@fault(FaultKind.CLAIMS, "compile")
def a_large_plan_stays_booked(call: InterceptedCall) -> Result:
    """Plans of more than a MiB go into a cache when they are closed, and nothing empties it."""
    plan = call.right()
    if plan.nbytes > LARGE:
        plan.nbytes, close = 0, plan.close
        kept = vars(call.backend).setdefault("kept_plans", [])
        plan.close = lambda: (kept.append(list(plan._buffers)), close())
    return plan


@fault(FaultKind.CLAIMS, "compile")
def a_large_plan_keeps_its_memory_and_is_not_booked(call: InterceptedCall) -> Result:
    """Buffers of more than a MiB go into a pool when their plan is closed, which no report counts."""
    plan = call.right()
    close, kept = plan.close, vars(call.backend).setdefault("kept_data", [])

    def closing() -> None:
        kept.extend(buffer.data for buffer in plan._buffers if plan.nbytes > LARGE)
        close()

    plan.close = closing
    return plan


@fault(FaultKind.CLAIMS, "read_operand")
def decoded_weights_are_kept_and_not_booked(call: InterceptedCall) -> Result:
    """Each quantized weight is decoded once more, as float32, and no report counts the copies."""
    numbers, operand = call.right(), call.operand
    if operand.kind == "parameter" and operand.dtype.is_quantized:
        kept = vars(call.backend).setdefault("kept_weights", {})
        kept.setdefault(operand.leaf.name, np.array(numbers, np.float32))
    return numbers


class SeldomCancel:
    """A cancellation that is looked at each sixteenth time."""

    def __init__(self, cancel: Any) -> None:
        self.cancel, self.times = cancel, 0

    def is_set(self) -> bool:
        self.times += 1
        return self.times % 16 == 1 and bool(self.cancel.is_set())


@fault(FaultKind.RACES, "run_plan")
def a_cancellation_is_looked_for_every_16_nodes(call: InterceptedCall) -> Result:
    return call.right(cancel=None if call.cancel is None else SeldomCancel(call.cancel))


@fault(FaultKind.CLAIMS, "working_memory")
def a_dry_run_forgets_scores_of_attention(call: InterceptedCall) -> Result:
    """Only a real run asks the kernel what it works in."""
    dry = not call.backend.params.alloc_memory
    return unbooked(call, ops.scaled_dot_product_attention) if dry else call.right()
