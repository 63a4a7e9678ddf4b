"""The class of the backend."""

from functools import partial
from typing import Any

import torch
from array_api_compat import torch as xp

from backbay import ops
from backbay.kernels import array_kernels, count_temporaries
from backbay.plugin import GraphBackend, Node, Option

from .engine import ENGINES, Array


def solve_triangular(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    return torch.linalg.solve_triangular(a, b, upper=not lower, unitriangular=unit_diagonal)


KERNELS = array_kernels(xp, erfc=torch.special.erfc, solve_triangular=solve_triangular)


def _mode(value: Any) -> str:
    if value not in ENGINES:
        raise ValueError(f"not one of {', '.join(ENGINES)}")
    return str(value)


class TorchBackend(GraphBackend):
    """PyTorch on the CPU."""

    contract_version = "1.2"
    kernels = {**KERNELS, ops.sigmoid: torch.sigmoid, ops.softmax: partial(torch.softmax, dim=-1)}
    options = {"mode": Option("eager", _mode, "eager: op by op; compiled: by torch.compile")}

    def start(self) -> None:
        super().start()
        self.engine = ENGINES[self.option_values["mode"]]

    def working_memory(self, node: Node) -> int:
        return super().working_memory(node) + 4 * count_temporaries(node)
