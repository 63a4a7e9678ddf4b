"""The suite tells wrong backends from right ones, in its smallest size."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from backbay_conformance import run
from backbay_selftest import FAULTS, FaultKind, reference
from backbay_selftest.__main__ import main, share
from backbay_selftest.correct import variants
from backbay_selftest.detection import detect, passes_nmse, passes_tolerance

ONE_OF_EACH = (
    "rows_ignores_the_row_stride_of_its_table",
    "norms_ignore_the_offset_of_a_view",
    "mulmat_repeats_slices_modulo",
    "mulmat_rounds_its_activations_in_place",
    "set_rows_counts_destination_rows_in_8_bits",
    "products_take_10_bits_of_each_input",
    "softmax_takes_minus_infinity_for_a_number",
    "padding_of_a_bitonic_sort_takes_part",
    "a_product_over_nothing_is_not_written",
    "mulmat_drops_the_tail_of_its_sum",
    "softmax_reads_one_element_too_many",
    "partial_rope_clears_the_rest",
    "nibbles_are_unpacked_in_pairs",
    "sums_are_added_in_an_order_of_chance",
    "layer_norm_adds_eps_after_the_root",
    "writes_that_nobody_reads_are_dropped",
    "an_op_without_a_kernel_is_claimed",
    "long_sums_are_split_and_lose_the_rest",
    "subnormal_operands_are_zeros_and_nothing_says_so",
    "more_than_subnormal_operands_are_zeros",
)


def test_the_quick_selection_covers_every_class() -> None:
    assert {FAULTS[name].kind for name in ONE_OF_EACH} == set(FaultKind)


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.few(2)
def test_a_fault_of_each_class_is_caught(name: str) -> None:
    found = detect(name, "smoke", rivals=False, budget=math.inf)
    assert found.caught, f"{name} was not noticed in {found.items} items"
    assert found.check and found.item


@pytest.mark.parametrize("name", [name for name in variants(reference()) if name != "reference"])
@pytest.mark.thorough
def test_a_backend_that_is_different_and_right_passes(name: str) -> None:
    report = run(variants(reference())[name], size="smoke", seed=3)
    assert not report.failures, report.failures[0].message
    assert report.ok


@pytest.mark.parametrize("seed", [1, 4])
@pytest.mark.thorough
def test_sums_in_another_order_pass_in_the_default_size(seed: int) -> None:
    """Exact comparison asks only for sums that no order rounds."""
    changed = ["mean", "sum_rows", "softmax", "rms_norm"]
    report = run(variants(reference())["sums_from_the_end"], ops=changed, seed=seed, size="default")
    assert not report.failures, report.failures[0].message


def test_rivals_let_through_what_the_suite_catches() -> None:
    found = detect("mulmat_is_off_by_a_thousandth", "smoke", budget=math.inf)
    assert found.caught
    assert found.nmse is False
    assert found.tolerance is not None


def test_rivals_judge_as_they_are_known_to() -> None:
    want = np.array([1.0, -2.0, np.inf, 100.0])
    assert passes_nmse(want * 1.02, want, 5e-4)
    assert not passes_nmse(want * 1.03, want, 5e-4)
    assert not passes_nmse(np.array([1.0, -2.0, -np.inf, 100.0]), want, 5e-4)
    assert passes_tolerance(want * 1.2, want)
    assert passes_tolerance(np.array([0.0, -1.0, np.inf, 124.0]), want)
    assert not passes_tolerance(np.array([1.0, -2.0, np.inf, 127.0]), want)


def test_the_command_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mutants.json"
    name = "mulmat_sums_in_half_precision"
    assert main([name, "--size", "smoke", "--no-rivals", "--json", str(path)]) == 0
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["caught"] == 1.0 and written["rows"][0]["fault"] == name
    assert name in capsys.readouterr().out


def test_the_command_refuses_faults_that_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_fault"]) == 2
    assert "no_such_fault" in capsys.readouterr().err


def test_the_share_of_nothing_is_not_a_number() -> None:
    assert share([]) is None
    assert share([True, False]) == 0.5


RARE = [
    ("small_decoded_weights_are_found_by_their_beginning", "weights_that_begin_alike"),
    ("small_float_weights_are_found_by_their_ends", "weights_that_begin_alike"),
    ("large_float_weights_are_found_by_their_ends", "weights_that_begin_alike"),
    ("a_copy_of_the_largest_weight_stays", "the_report_agrees_with_the_process"),
    ("programs_keep_their_last_results", "closed_graphs_leave_no_memory"),
    ("a_dry_run_counts_64_results", "dry_run_tells_what_a_real_run_takes"),
    ("images_past_the_last_whole_group_repeat", "conv2d"),
    ("attributes_are_kept_to_three_digits", "rms_norm"),
    ("attributes_are_kept_to_three_digits", "layer_norm"),
    ("attributes_are_kept_to_three_digits", "l2_norm"),
    ("attributes_are_kept_to_three_digits", "clamp"),
    ("attributes_are_kept_to_three_digits", "rope"),
    ("positions_are_rounded_to_f32_and_sums_to_f64", "rope"),
    ("long_sums_saturate", "mean"),
    ("long_sums_saturate", "sum_rows"),
    ("long_sums_saturate", "cumsum"),
    ("two_outer_dimensions_repeat_in_different_ways", "add"),
    ("a_nan_of_low_bits_is_written_as_an_infinity", "copy"),
    ("a_nan_of_low_bits_is_cast_to_an_infinity", "cast"),
]
"""Faults that only the default size shows, each with an op or a scenario that does."""


@pytest.mark.parametrize(("name", "op"), RARE)
@pytest.mark.thorough
def test_the_default_size_catches_a_rare_fault(name: str, op: str) -> None:
    report = run(FAULTS[name].plant(reference()), ops=[op], size="default")
    assert report.failures
