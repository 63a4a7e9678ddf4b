"""The machines find no fault with the reference."""

from __future__ import annotations

import pytest

from backbay_conformance import lab_for
from backbay_conformance.draw.draw import Draw
from backbay_conformance.machines import BackendMachine, CacheMachine
from backbay_conformance.machines.machine import Machine
from backbay_conformance.plugin import run_machine, walk

MACHINES: dict[str, type[Machine]] = {"backend_life": BackendMachine, "cache_life": CacheMachine}
KINDS = sorted(MACHINES)


@pytest.mark.parametrize("name", KINDS)
def test_the_reference_lives_under_hypothesis(name: str) -> None:
    assert run_machine(MACHINES[name], "cpu_ref", seed=11, steps=20, examples=15) == []


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("turn", range(12))
def test_the_reference_lives_by_recorded_choices(name: str, turn: int) -> None:
    walk(MACHINES[name], lab_for("cpu_ref"), Draw(f"life/{turn}"), 40)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.few(1)
def test_every_action_is_taken_in_a_few_lives(name: str) -> None:
    taken: set[str] = set()

    class Counted(MACHINES[name]):  # type: ignore[name-defined, misc]
        def do(self, action: str, choose: Draw) -> None:
            taken.add(action)
            super().do(action, choose)

    for turn in range(30):
        walk(Counted, lab_for("cpu_ref"), Draw(f"all/{turn}"), 40)
    assert taken == set(MACHINES[name].actions)


def story(machine: type[Machine], seed: str) -> list[str]:
    told: list[str] = []

    class Told(machine):  # type: ignore[valid-type, misc]
        def tell(self, text: str) -> None:
            told.append(text)
            super().tell(text)

    walk(Told, lab_for("cpu_ref"), Draw(seed), 30)
    return told


@pytest.mark.parametrize("name", KINDS)
def test_the_same_choices_give_the_same_life(name: str) -> None:
    assert story(MACHINES[name], "again") == story(MACHINES[name], "again")
    assert story(MACHINES[name], "again") != story(MACHINES[name], "another")
