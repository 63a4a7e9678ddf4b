"""Memory that is not booked, or never given back, and cancellations that are seldom looked at."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import ops

from ...faults import AnyOp, BoundCall, Kind, Result, fault, named

LARGE = 1 << 20


def unbooked(call: BoundCall, *forgotten: AnyOp) -> int:
    """The working memory of a node; 0 for some ops."""
    return 0 if call.node.op in forgotten else int(call.right())


@fault(Kind.CLAIMS, "working_memory")
def scores_of_attention_are_not_booked(call: BoundCall) -> Result:
    return unbooked(call, ops.scaled_dot_product_attention)


@fault(Kind.CLAIMS, "working_memory")
def gathered_rows_of_experts_are_not_booked(call: BoundCall) -> Result:
    return unbooked(call, ops.mulmat_id)


@fault(Kind.CLAIMS, "working_memory")
def windows_of_images_are_not_booked(call: BoundCall) -> Result:
    return unbooked(call, *named("conv2d", "conv3d"))


@fault(Kind.CLAIMS, "compile")
def a_large_plan_stays_booked(call: BoundCall) -> Result:
    """Plans of more than a MiB go into a cache when they are closed, and nothing empties it."""
    plan = call.right()
    if plan.nbytes > LARGE:
        plan.nbytes, close = 0, plan.close
        kept = vars(call.backend).setdefault("kept_plans", [])
        plan.close = lambda: (kept.append(list(plan._buffers)), close())
    return plan


@fault(Kind.CLAIMS, "compile")
def a_large_plan_keeps_its_memory_and_is_not_booked(call: BoundCall) -> Result:
    """Buffers of more than a MiB go into a pool when their plan is closed, which no report counts."""
    plan = call.right()
    close, kept = plan.close, vars(call.backend).setdefault("kept_data", [])

    def closing() -> None:
        kept.extend(buffer.data for buffer in plan._buffers if plan.nbytes > LARGE)
        close()

    plan.close = closing
    return plan


@fault(Kind.CLAIMS, "read_operand")
def decoded_weights_are_kept_and_not_booked(call: BoundCall) -> Result:
    """Each quantized weight is decoded once more, as float32, and no report counts the copies."""
    numbers, operand = call.right(), call.operand
    if operand.kind == "parameter" and operand.dtype.is_quantized:
        kept = vars(call.backend).setdefault("kept_weights", {})
        kept.setdefault(operand.leaf.name, np.array(numbers, np.float32))
    return numbers


class Seldom:
    """A cancellation that is looked at each sixteenth time."""

    def __init__(self, cancel: Any) -> None:
        self.cancel, self.times = cancel, 0

    def is_set(self) -> bool:
        self.times += 1
        return self.times % 16 == 1 and bool(self.cancel.is_set())


@fault(Kind.RACES, "run_plan")
def a_cancellation_is_looked_for_every_16_nodes(call: BoundCall) -> Result:
    return call.right(cancel=None if call.cancel is None else Seldom(call.cancel))


@fault(Kind.CLAIMS, "working_memory")
def a_dry_run_forgets_scores_of_attention(call: BoundCall) -> Result:
    """Only a real run asks the kernel what it works in."""
    dry = not call.backend.params.alloc_memory
    return unbooked(call, ops.scaled_dot_product_attention) if dry else call.right()
