"""The class of the backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from backbay import BackendParams, ops
from backbay.gguf import ModelFile
from backbay.internals import choice_of
from backbay.kernels import array_kernels, choose_device, count_temporaries
from backbay.plugin import CPU, DeviceInfo, DType, GraphBackend, Node, Op, Option, Precision, Spec

from .devices import device_info, jax_devices
from .engine import HALVES, Array, engine_for, trial_of

PRODUCTS = ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id, ops.conv2d, ops.conv3d, ops.delta_rule
# "high" is TF32 on a GPU, which has as many bits as f16; "default" may be bf16.
ROUNDED = {"highest": DType.F32, "high": DType.F16, "default": DType.BF16}


def quotient(x: Array, divisor: Array) -> Array:
    """XLA multiplies by the reciprocal of what it broadcasts, which is 0 past 2^126. It does not see through a barrier."""
    return x / jax.lax.optimization_barrier(jnp.ones_like(x) * divisor)


def solve_triangular(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    """Row by row: JAX's own solve on a CPU is a call into jaxlib, which the plugins of others do not know."""
    others = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    diagonal = jnp.diagonal(a, axis1=-2, axis2=-1)

    def step(n: Array, x: Array) -> Array:
        row = n if lower else a.shape[-1] - 1 - n
        rest = b[..., row, :] - (others[..., row, None, :] @ x)[..., 0, :]
        return x.at[..., row, :].set(rest if unit_diagonal else quotient(rest, diagonal[..., row, None]))

    return jax.lax.fori_loop(0, a.shape[-1], step, jnp.zeros_like(b))


KERNELS = array_kernels(jnp, erfc=jax.lax.erfc, solve_triangular=solve_triangular, scan=jax.lax.scan)


def div(x: Array, t2: Array) -> Array:
    return quotient(x, KERNELS[ops.mul](jnp.ones_like(x), t2))


class JaxBackend(GraphBackend):
    """XLA: each graph runs on one device of JAX, compiled or op by op."""

    contract_version = "1.2"
    kernels = {**KERNELS, ops.div: div}
    options = {
        "platform": Option("", str, "a platform of JAX, such as cpu, cuda or tpu, or a PJRT plugin: its package, or its library, /path/plugin.so"),
        "mode": Option("compiled", choice_of("compiled", "eager"), "compiled: graph by graph; eager: op by op"),
        "precision": Option(
            "highest", choice_of(*ROUNDED), "of products, by JAX's names: a device may round operands unless highest"
        ),
    }  # fmt: skip

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        super().__init__(model, params)
        self.found = jax_devices(self.option_values["platform"])
        self.device = choose_device(
            params.gpu_layers, self.blocks.count, [*self.found], lambda name: trial_of(self.found[name])
        )
        device, compiles = self.found[self.device], self.option_values["mode"] == "compiled"
        self.trial = trial_of(device)
        self.engine = engine_for(device, compiles=compiles, precision=self.option_values["precision"])

    def devices(self) -> list[DeviceInfo]:
        return [
            device_info(id, device)
            for id, device in self.found.items()
            if id in (CPU, self.device) or not trial_of(device).reason
        ]

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        rounded = ROUNDED[self.option_values["precision"]] if op in PRODUCTS else DType.F32
        return Precision(rounded, DType.F32, self.trial.flushes_subnormals, rounded)

    def working_memory(self, node: Node) -> int:
        """XLA copies f16 and bf16 before it converts them."""
        copied = sum(operand.nbytes for operand in node.operands if operand.dtype in HALVES)
        return super().working_memory(node) + copied + 4 * count_temporaries(node)

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        return {"jax": jax.__version__, "devices": ", ".join(jax_devices(""))}
