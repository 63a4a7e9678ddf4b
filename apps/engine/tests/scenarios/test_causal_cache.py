"""Random lives of causal caches on every backend, against attention computed anew from the plain history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cache_lives import INSTALLED, LIVES, live, lives_on, permuted

import backbay
from backbay import DType
from backbay_conformance.plugin import Draw, Fault, Lab, lab_for, run_machine, walk
from backbay_engine.cache.cells.cell_table import CellTable
from backbay_engine.cache.cells.storage import CellMover, CellStorage
from backbay_engine.scenarios.causal_cache import CausalCacheMachine

DTYPES = (DType.F32, DType.F16, DType.BF16, DType.Q8_0)


def without_flash() -> Lab:
    return Lab(
        lambda params, model: backbay.open(model, "ggml", replace(params, flash_attention="off")), "ggml"
    )


@pytest.mark.parametrize("name", INSTALLED)
def test_caches_live_on_every_backend(name: str) -> None:
    live(CausalCacheMachine, lab_for(name), "caches", 0, lives_on(name))


def test_caches_live_where_values_are_permuted_and_masks_padded() -> None:
    live(CausalCacheMachine, lab_for(permuted(32, 32, *DTYPES)), "caches", 100, 8)


@pytest.mark.skipif("ggml" not in INSTALLED, reason="a way to run ggml")
def test_caches_live_on_ggml_without_flash_attention() -> None:
    live(CausalCacheMachine, without_flash(), "caches", 200, 6)


def test_caches_live_under_hypothesis() -> None:
    assert run_machine(CausalCacheMachine, "cpu_ref", seed=5, steps=25, examples=LIVES or 10) == []


def test_every_action_is_taken_in_a_few_lives() -> None:
    taken: set[str] = set()

    class Counted(CausalCacheMachine):
        def do(self, action: str, choose: object) -> None:
            taken.add(action)
            super().do(action, choose)  # type: ignore[arg-type]

    for turn in range(6):
        walk(Counted, lab_for("cpu_ref"), Draw(f"all/{turn}"), 40)
    assert taken == set(CausalCacheMachine.actions)


# -- faults that a life must notice ----------------------------------------------------------------------


def first_fault(lives: int = 40) -> Fault | None:
    for turn in range(lives):
        try:
            walk(CausalCacheMachine, lab_for("cpu_ref"), Draw(f"faults/{turn}"), 40)
        except Fault as fault:
            return fault
    return None


def rows_outlive_a_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CellTable, "_changed", CellTable.measure)


def keys_turn_the_other_way(patch: pytest.MonkeyPatch) -> None:
    run = CellMover.run
    patch.setattr(CellMover, "run", lambda self, a, b, offset=0: run(self, a, b, -offset))


def shared_cells_are_turned(patch: pytest.MonkeyPatch) -> None:
    share = CellTable.share

    def forgets_owners(self: CellTable, source: int, target: int, length: int) -> None:
        share(self, source, target, length)
        self.owners[:] = self.owners.clip(max=1)

    patch.setattr(CellTable, "share", forgets_owners)


def cells_move_without_their_values(patch: pytest.MonkeyPatch) -> None:
    mover = CellStorage.mover
    patch.setattr(CellStorage, "mover", lambda self, part, shift=None: mover(self, "keys", shift))


@pytest.mark.parametrize(
    "plant",
    [
        rows_outlive_a_change,
        keys_turn_the_other_way,
        shared_cells_are_turned,
        cells_move_without_their_values,
    ],
)
def test_a_life_notices_what_is_wrong(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_fault() is not None
