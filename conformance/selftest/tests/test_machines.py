"""The machines find no fault with correct backends, and notice planted faults."""

from __future__ import annotations

import pytest

from backbay_conformance.draw.choices import replayed
from backbay_conformance.machines import BackendMachine, CacheMachine
from backbay_conformance.plugin import Draw, Fault, Machine, lab_for, run_machine, walk
from backbay_selftest import FAULTS, reference
from backbay_selftest.correct import variants


@pytest.mark.parametrize("variant", [name for name in variants(reference()) if name != "reference"])
@pytest.mark.few(5)
def test_caches_live_on_backends_that_are_different_and_right(variant: str) -> None:
    for turn in range(6):
        walk(CacheMachine, lab_for(variants(reference())[variant]), Draw(f"cache/{turn}"), 25)


def first_fault(machine: type[Machine], name: str, lives: int = 40) -> tuple[Fault, Draw] | None:
    lab = lab_for(FAULTS[name].plant(reference()))
    for turn in range(lives):
        draw = Draw(f"{name}/{turn}")
        try:
            walk(machine, lab, draw, 40)
        except Fault as fault:
            return fault, draw
    return None


NOTICED_BY_LIFE = (
    "a_run_reads_what_the_leaves_held_before",
    "writes_that_nobody_reads_are_dropped",
    "contexts_share_their_compute_memory",
    "an_output_that_others_read_is_recycled",
    "what_was_reserved_is_allocated_again",
)
NOTICED_BY_CACHES = (
    "reads_of_a_cache_do_not_wait_for_its_writes",
    "views_of_a_cache_ignore_their_offset",
    "set_rows_clears_the_row_behind",
    "negative_positions_count_as_zero",
    "quantizing_clips_a_step_early",
    "overlapping_copies_read_what_they_wrote",
    "a_cache_dtype_is_offered_that_cannot_be_written",
)


@pytest.mark.parametrize("name", NOTICED_BY_LIFE)
def test_a_backends_life_shows(name: str) -> None:
    assert first_fault(BackendMachine, name) is not None


@pytest.mark.parametrize("name", NOTICED_BY_CACHES)
def test_a_caches_life_shows(name: str) -> None:
    assert first_fault(CacheMachine, name) is not None


def test_a_failure_is_replayed_by_its_choices_alone() -> None:
    found = first_fault(CacheMachine, "set_rows_clears_the_row_behind")
    assert found is not None
    fault, draw = found
    lab = lab_for(FAULTS["set_rows_clears_the_row_behind"].plant(reference()))
    with pytest.raises(Fault) as again:
        walk(CacheMachine, lab, Draw(replayed(draw.choices)), 40)
    assert again.value.message == fault.message


@pytest.mark.thorough
def test_hypothesis_makes_a_failing_life_short() -> None:
    kind = FAULTS["what_was_reserved_is_allocated_again"].plant(reference())
    (failure,) = run_machine(BackendMachine, kind, seed=1, steps=25, examples=60)
    assert len(failure.story) <= 10
    assert "compute" in "".join(failure.story)
    assert "run_machine(BackendMachine" in str(failure)
