"""The table of kernels: each lowers one op, and stands beside the working memory that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from backbay import BackbayError, KernelTable, Op

from ..memory.working_memory import Measure

F = TypeVar("F", bound=Callable[..., Any])


class LoweringTable(KernelTable):
    """`@kernel(ops.silu, working_memory=times(2, results))` above a function of the lowering and the op's own parameters.

    A kernel without a declared working memory is an error at import: memory that is not booked may not be there in a run.
    """

    def __init__(self) -> None:
        super().__init__(skip=1)
        self.working_memory: dict[Op[Any, Any], Measure] = {}

    def __call__(self, op: Op[Any, Any], *, working_memory: Measure | None = None) -> Callable[[F], F]:
        if working_memory is None:
            raise BackbayError(
                f"{op.name}: its kernel declares no working memory; "
                f"write @kernel(ops.{op.name}, working_memory=...), with `nothing` if it needs none"
            )
        self.working_memory[op] = working_memory
        return super().__call__(op)


kernel = LoweringTable()
