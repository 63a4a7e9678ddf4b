"""The class of the backend."""

from typing import Any

from backbay.plugin import GraphBackend, Option

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
