"""A level follows from what a certificate holds, and what lessens it stands beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from register_entries import line_of, summed

from backbay_conformance.report.certificate import TITLE
from backbay_conformance.suite.profiles import STANDARD
from backbay_register.adding import earned_level
from backbay_register.entry import OTHER_SEEDS, VERIFICATION
from backbay_register.levels import KEEPS, LEVELS, NONE, PROVEN, READS, badge, level_of, waivers

Said = dict[str, Any]


def run_of(size: str = "default", seed: int = 0, **more: Any) -> Said:
    said = {
        "size": size,
        "seed": seed,
        "backend": "some",
        "profiles": list(STANDARD),
        "digests": {"plugin": "1", "suite": "2"},
        "facts": {},
        "ops": [line_of("core/add", "f32", 9), line_of("graph/random_graph", "", 3)],
        **more,
    }
    return summed(said)


def failing(said: Said, profile: str) -> Said:
    own = next(each for each in said["ops"] if each["profile"] == profile)
    own |= {"failed": 1, "state": "failing"}
    return summed(said)


@pytest.mark.parametrize(
    ("said", "level"),
    [
        (run_of("tiny"), NONE),
        (run_of("smoke"), READS),
        (run_of("default"), KEEPS),
        (run_of("nightly"), KEEPS),
        (failing(run_of("default"), "graph"), READS),
        (failing(run_of("default"), "core"), NONE),
        (run_of("default", profiles=["core", "quant"]), READS),
        (run_of("default", profiles=["quant"]), NONE),
    ],
)
def test_a_run_earns_the_level_that_its_size_and_failures_allow(said: Said, level: str) -> None:
    assert level_of(said) == level


def test_three_nightly_runs_that_were_verified_are_proof() -> None:
    first, *others = (run_of("nightly", seed) for seed in (0, 1, 2))
    assert level_of(first, others, verified=True) == PROVEN
    assert level_of(first, others, verified=False) == KEEPS
    assert level_of(first, others[:1], verified=True) == KEEPS
    assert level_of(first, [others[0], failing(others[1], "core")], verified=True) == KEEPS
    assert level_of(first, [run_of("default", 1), run_of("nightly", 2)], verified=True) == KEEPS
    another = run_of("nightly", 2, digests={"plugin": "9", "suite": "2"})
    assert level_of(first, [run_of("nightly", 1), another], verified=True) == KEEPS


def test_the_files_of_other_seeds_and_of_a_verification_raise_the_level(tmp_path: Path) -> None:
    runs = [run_of("nightly", seed, issued="2026-11-29", certificate=TITLE) for seed in (0, 1, 2)]
    for name, said in zip(OTHER_SEEDS, runs[1:], strict=True):
        (tmp_path / name).write_text(json.dumps(said))
    assert earned_level(tmp_path, runs[0]) == KEEPS
    verified = {"certificate": {"issued": "2026-11-29"}, "holds": True}
    (tmp_path / VERIFICATION).write_text(json.dumps(verified))
    assert earned_level(tmp_path, runs[0]) == PROVEN
    (tmp_path / VERIFICATION).write_text(json.dumps({**verified, "holds": False}))
    assert earned_level(tmp_path, runs[0]) == KEEPS
    (tmp_path / VERIFICATION).write_text(json.dumps({**verified, "certificate": {"issued": "2026-11-28"}}))
    assert earned_level(tmp_path, runs[0]) == KEEPS


def test_what_lessens_a_level_is_told_beside_it() -> None:
    said = failing(run_of(few_shapes=True, profiles=["core"]), "core")
    said["facts"] = {"avoidances": {"concat q4_0": "it crashes"}}
    said["ops"].append(line_of("core/tri", "f32", 9, supported=False))
    told = " ".join(waivers(said))
    for part in (
        "1 calls fail as known",
        "1 of them in core",
        "few shapes",
        "profiles left out: quant",
        "1 of 2 ops",
        "1 calls of the",
    ):
        assert part in told


def test_each_level_has_a_badge_that_names_it_in_words() -> None:
    badges = {badge(level, "1.2") for level in LEVELS}
    assert len(badges) == len(LEVELS)
    assert 'aria-label="backbay: proven 1.2"' in badge(PROVEN, "1.2")
