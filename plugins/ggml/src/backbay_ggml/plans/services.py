"""The parts of the backend that plans use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backbay import BackendParams, Placement
from backbay.internals import Ledger

from ..devices.device import Device
from ..library.library import Library
from ..weights.model_weights import ModelWeights
from .stop_flag import StopFlag
from .thread_choice import ThreadChoices


@dataclass(frozen=True)
class Services:
    """One of each for all contexts of a backend."""

    library: Library
    ledger: Ledger
    params: BackendParams
    threads: int
    thread_choices: ThreadChoices
    flash: bool  # whether attention may use flash attention
    cpu: Device
    device_of: Callable[[Placement], Device]
    weights: ModelWeights | None
    stop: StopFlag

    def product_home(self, name: str) -> Device | None:
        """The device with a copy of a weight that lies on the host, for products."""
        return self.weights.product_home(name) if self.weights is not None else None
