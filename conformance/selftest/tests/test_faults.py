"""The register of faults: enough of them, of every class, and few that anybody would see."""

from __future__ import annotations

from collections import Counter

import pytest

from backbay import BackbayError
from backbay_selftest import CORRECT, FAULTS, FaultKind, reference
from backbay_selftest.trivial_test import ON_ONES, differs, on_ones


def test_every_class_of_the_table_has_several_faults() -> None:
    counts = Counter(fault.kind for fault in FAULTS.values())
    assert set(counts) == set(FaultKind) and len(FaultKind) == 18
    assert min(counts.values()) >= 5
    assert len(FAULTS) >= 80
    assert len(CORRECT) >= 5


def test_every_fault_says_in_a_sentence_what_is_wrong_and_its_class_what_it_is_like() -> None:
    for fault in FAULTS.values():
        assert fault.text.endswith("."), fault.name
        assert all(link.startswith("https://github.com/") for link in fault.kind.reports)
        assert fault.kind.reports, fault.name


def test_a_backend_with_a_fault_opens_under_its_name_and_leaves_the_reference_as_it_was() -> None:
    right = reference()
    kernels = dict(right.kernels)
    for fault in FAULTS.values():
        with fault.plant(right)() as backend:
            assert backend.name == fault.name
    assert dict(right.kernels) == kernels


def test_each_op_on_ones_runs_on_the_reference() -> None:
    with reference()() as backend:
        failed = [n for n, y in zip(ON_ONES, on_ones(backend), strict=True) if isinstance(y, str)]
    assert not failed


@pytest.mark.thorough
def test_at_most_a_fifth_of_the_faults_shows_on_ones() -> None:
    with reference()() as backend:
        right = on_ones(backend)
    seen = []
    for fault in FAULTS.values():
        backend = fault.plant(reference())()
        if differs(on_ones(backend), right):
            seen.append(fault.name)
        backend.close()
    assert 0 < len(seen) <= len(FAULTS) / 5, seen


def test_a_fault_of_an_unknown_class_is_refused() -> None:
    from backbay_selftest.fault import fault

    with pytest.raises(ValueError, match="gremlins"):
        fault("gremlins", "run_node")(test_a_fault_of_an_unknown_class_is_refused)


def test_a_fault_can_be_told_from_the_reference_by_what_it_raises() -> None:
    with FAULTS["an_op_that_is_claimed_raises"].plant(reference())() as backend, backend.new_context() as ctx:
        y = ctx.from_floats([[1.0, 2.0]]).interpolate(ctx, (4, 1))
        with pytest.raises(NotImplementedError) as caught:
            ctx.compute(y)
        assert not isinstance(caught.value, BackbayError)
