"""The parts of the backend that plans use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backbay import BackendParams
from backbay.internals import Ledger
from backbay.plugin import Entry, Workspace

from ..session.device import Device
from ..session.native import NativeCode
from ..weights.store import WeightStore


@dataclass(frozen=True)
class Services:
    """One of each for all contexts of a backend."""

    params: BackendParams
    device: Device
    ledger: Ledger
    weight_entry: Callable[[str], Entry]
    weights: WeightStore
    workspace: Workspace
    exact: bool  # activations stay float32
    shared_threads: bool
    native: NativeCode | None
