"""The class of the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from array_api_compat import torch as xp

from backbay import BackendParams, OptionError, ops
from backbay.gguf import ModelFile
from backbay.internals import choice_of
from backbay.kernels import array_kernels, choose_device, count_temporaries, scan_steps
from backbay.plugin import CPU, DeviceInfo, DType, GraphBackend, Node, Op, Option, Precision, Spec

from .devices import device_info, torch_devices, trial_of
from .engine import EAGER, INDUCTOR, Array, engine_for, packed

PRODUCTS = ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id, ops.conv2d, ops.conv3d, ops.delta_rule


def solve_triangular(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    return torch.linalg.solve_triangular(a, b, upper=not lower, unitriangular=unit_diagonal)


def scan(step: Callable[..., Any], state: Array, sequences: Sequence[Array]) -> tuple[Array, Array]:
    """As `jax.lax.scan`: inductor compiles one step, where a loop would give it as many as there are tokens."""
    if len(sequences[0]) < 2:
        return scan_steps(xp, step, state, sequences)

    # Copies: inductor keeps the strides of the trace, and refuses an operand itself as a result.
    def step_of_copies(state: Array, *now: Array) -> list[Array]:
        return [packed(result) for result in step(state, now)]

    operands = [packed(state)], [packed(x) for x in sequences]
    last, results = torch.ops.higher_order.scan(step_of_copies, *operands, ())
    return last, results


_kernels = partial(array_kernels, xp, erfc=torch.special.erfc, solve_triangular=solve_triangular)
KERNELS = {**_kernels(), ops.sigmoid: torch.sigmoid, ops.softmax: partial(torch.softmax, dim=-1)}
SCANS = {op: _kernels(scan=scan)[op] for op in (ops.delta_rule, ops.ssm_scan)}


def imported(value: Any) -> str:
    try:
        import_module(value)
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return str(value)


class TorchBackend(GraphBackend):
    """PyTorch: each graph runs on one device of torch, op by op or compiled."""

    contract_version = "1.2"
    kernels = KERNELS
    options = {
        "mode": Option(
            "eager", choice_of("eager", "compiled"), "eager: op by op; compiled: by torch.compile"
        ),
        "compiler": Option(
            INDUCTOR, str, "with mode=compiled: the backend of torch.compile, such as openvino"
        ),
        "tf32": Option(
            "off", choice_of("off", "on"), "on: a GPU may round the operands of products to 10 bits"
        ),
        "extension": Option("", imported, "a module to import first, such as one that registers a device"),
    }

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        super().__init__(model, params)
        devices, tf32 = torch_devices(), self.option_values["tf32"] == "on"
        self.device = choose_device(
            params.gpu_layers, self.blocks.count, [*devices], lambda name: trial_of(devices[name])
        )
        device = devices[self.device]
        self.trial, self.engine = trial_of(device), engine_for(device, self.compiler(), tf32=tf32)
        if self.compiler() == INDUCTOR:
            self.kernels = {**KERNELS, **SCANS}  # type: ignore[misc]  # of this backend alone

    def compiler(self) -> str:
        """The name of the compiler; empty without one."""
        mode, name = self.option_values["mode"], self.option_values["compiler"]
        if mode == "eager":
            if "compiler" in self.params.options:
                raise OptionError("option compiler needs mode=compiled, as eager compiles nothing")
            return EAGER
        known = torch.compiler.list_backends(())
        if name not in known:
            raise OptionError(
                f"option compiler: torch.compile has no backend {name!r}; it has {', '.join(known)}"
            )
        return str(name)

    def start(self) -> None:
        super().start()
        if self.params.num_threads is not None:
            torch.set_num_threads(self.params.num_threads)

    def devices(self) -> list[DeviceInfo]:
        return [
            device_info(id, device)
            for id, device in torch_devices().items()
            if id in (CPU, self.device) or not trial_of(device).reason
        ]

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        # TF32 has as many bits as f16.
        rounded = DType.F16 if op in PRODUCTS and self.option_values["tf32"] == "on" else DType.F32
        return Precision(rounded, DType.F32, self.trial.flushes_subnormals, rounded)

    def working_memory(self, node: Node) -> int:
        return super().working_memory(node) + 4 * count_temporaries(node)

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        reasons = {id: trial_of(device).reason for id, device in torch_devices().items()}
        unused = {id: f"not used: {reason}" for id, reason in reasons.items() if reason}
        return {"torch": torch.__version__, **unused}
