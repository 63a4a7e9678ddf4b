"""Working memory: the largest is booked, and only growth is taken from the system to see whether it is there."""

import numpy as np
import pytest

from backbay import DType, NoMemoryError
from backbay.backend.kernels import kernel_backend
from backbay.memory.ledger import Entry, Ledger
from backbay.memory.workspace_booking import Workspace


@pytest.mark.parametrize("holds", [True, False])
def test_growth_is_booked_and_tried(holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr("backbay.memory.workspace_booking._try", tried.append)
    ledger = Ledger([("CPU:0", "CPU")], 1, {}, holds=holds)
    space, plans = Workspace(ledger, Entry("CPU:0", "graph")), [object() for _ in range(3)]
    for plan, nbytes in zip(plans, (1000, 400, 1500), strict=True):
        space.take(plan, nbytes)
    assert ledger.report().total() == space.booked == 1500
    assert tried == ([1000, 500] if holds else [])
    space.give_back(plans[2])
    assert ledger.report().total() == space.booked == 1000


def test_a_plan_whose_first_booking_is_refused_gives_back_nothing() -> None:
    ledger = Ledger([("CPU:0", "CPU"), ("GPU:0", "GPU")], 1, {"GPU:0": 100}, holds=True)
    space, plan = Workspace(ledger, Entry("GPU:0", "graph")), object()
    with pytest.raises(NoMemoryError):
        space.take(plan, 1000)
    space.give_back(plan)
    assert ledger.report().total() == space.booked == 0


def test_a_large_operand_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    monkeypatch.setattr(kernel_backend, "CHUNK", 20)
    monkeypatch.setattr(kernel_backend, "decode", lambda rows, dtype: parts.append(len(rows)) or rows)
    kernel_backend.convert(np.zeros((5, 8), np.uint16), DType.BF16, np.empty((5, 8), np.float32))
    assert parts == [2, 2, 1]
