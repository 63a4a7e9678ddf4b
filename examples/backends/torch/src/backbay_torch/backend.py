"""The class of the backend."""

from typing import Any

from backbay import ops
from backbay.plugin import GraphBackend, Node, Option

from .engine import ENGINES
from .kernels import kernel


def _mode(value: Any) -> str:
    if value not in ENGINES:
        raise ValueError(f"not one of {', '.join(ENGINES)}")
    return str(value)


class TorchBackend(GraphBackend):
    """PyTorch on the CPU."""

    contract_version = "1.2"
    kernels = kernel
    options = {"mode": Option("eager", _mode, "eager: op by op; compiled: by torch.compile")}

    def start(self) -> None:
        super().start()
        self.engine = ENGINES[self.option_values["mode"]]

    def working_memory(self, node: Node) -> int:
        return super().working_memory(node) + 4 * gathered(node)


def gathered(node: Node) -> int:
    """The elements that a kernel gathers: the matrices of chosen experts with their rows, or the windows of an image."""
    if node.op is ops.mulmat_id:
        w, x, ids = node.args
        return int(ids.size * w.dim(0) * w.dim(1) + ids.size * x.dim(0))
    if node.op in (ops.conv2d, ops.conv3d):
        weight = node.args[0]
        kernels = max(weight.dim(3) // (node.args[2] if node.op is ops.conv3d else 1), 1)
        return 2 * (node.size // kernels) * (weight.size // kernels)  # a product wants them in another order
    return 0
