"""The class of the backend."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from backbay import ops
from backbay.kernels import array_kernels, count_temporaries
from backbay.plugin import DType, GraphBackend, Node, Op, Precision, Spec

from .engine import ENGINE, HALVES, Array

KERNELS = array_kernels(
    jnp,
    erfc=jax.lax.erfc,
    solve_triangular=lambda a, b, lower, unit: solve_triangular(a, b, lower=lower, unit_diagonal=unit),
    scan=jax.lax.scan,
)


def div(x: Array, t2: Array) -> Array:
    """XLA multiplies by the reciprocal of what it broadcasts, which is 0 past 2^126. It does not see through a barrier."""
    divisor = KERNELS[ops.mul](jnp.ones_like(x), t2)
    return x / jax.lax.optimization_barrier(divisor)


class JaxBackend(GraphBackend):
    """XLA on the CPU."""

    contract_version = "1.2"
    kernels = {**KERNELS, ops.div: div}
    engine = ENGINE

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        return Precision(DType.F32, DType.F32, flushes_subnormals=True)  # XLA reads them as zeros

    def working_memory(self, node: Node) -> int:
        """XLA copies f16 and bf16 before it converts them."""
        copied = sum(operand.nbytes for operand in node.operands if operand.dtype in HALVES)
        return super().working_memory(node) + copied + 4 * count_temporaries(node)
