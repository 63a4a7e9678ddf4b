"""A run of few shapes has as many calls as a usual one, of few graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import run_command

from backbay_conformance import CASES, Draw, lab_for, run
from backbay_conformance.command import command
from backbay_conformance.draw.choices import seeded
from backbay_conformance.report.certificate import badge, certificate
from backbay_conformance.report.digests import own_files
from backbay_conformance.report.html import page
from backbay_conformance.runner.items.few_shapes import MOST, with_few_shapes
from backbay_conformance.runner.items.item_run import draw_of, run_item
from backbay_conformance.runner.selection import Item, items, select
from backbay_conformance.runner.verification import verify

MOST_GRAPHS = 300


def own_items(size: str, seed: int = 0) -> list[Item]:
    """The items of a run of few shapes, without the scenarios of other packages."""
    planned = with_few_shapes(items(select(), size), seed)
    return [item for item in planned if not item.name.startswith("engine_")]


def test_a_case_has_as_many_calls_of_few_structures() -> None:
    usual = items(select(), "default")
    few = with_few_shapes(usual, 0)
    calls = [[item for item in each if (item.profile, item.name) in CASES] for each in (usual, few)]
    assert sorted(map(str, calls[0])) == sorted(map(str, calls[1]))
    for key in CASES:
        assert 2 <= len({item.structure for item in few if (item.profile, item.name) == key}) <= MOST


@pytest.mark.parametrize(
    "key", [("core", "add"), ("core", "layer_norm"), ("core", "cast"), ("quant", "mulmat")]
)
def test_calls_of_a_structure_differ_in_data_alone(key: tuple[str, str]) -> None:
    found: dict[int | None, set[str]] = {}
    data = set()
    planned = with_few_shapes(items([key], "default"), 0)
    for item in planned:
        draw = draw_of(item, seeded(str(item)))
        call = CASES[key].draw(draw)
        found.setdefault(item.structure, set()).add(str(call))
        data.add(tuple(draw.choices))
    assert all(len(calls) == 1 for calls in found.values())
    assert len(data) == len(planned)


def test_another_seed_has_other_structures() -> None:
    first, second = ({item.structure for item in own_items("smoke", seed)} for seed in (0, 1))
    assert not first & second


def test_the_modes_of_a_structure_come_by_turn() -> None:
    planned = with_few_shapes(items([("core", "exp")], "smoke"), 0)
    modes = {(item.structure, draw_of(item, seeded("x")).mode) for item in planned}
    assert len(modes) == 3 * len({item.structure for item in planned})


def test_a_failing_call_is_run_again_by_its_choices_alone() -> None:
    (item, *_) = with_few_shapes(items([("core", "tanh")], "smoke"), 0)
    failed = run_item(lab_for("broken_backends:WrongEverywhere"), item, seeded("x"))
    assert failed.failed
    choices = iter(failed.choices)
    call = CASES["core", "tanh"].draw(Draw(lambda n, by_turn: next(choices), item.turn))
    assert failed.call == str(call)


@pytest.mark.thorough
def test_a_default_run_has_at_most_300_graphs() -> None:
    report = run("cpu_ref", few_shapes=True, expression="not engine_")
    assert report.ok, report.failures[:3]
    assert len(report.graphs) <= MOST_GRAPHS


def test_report_page_badge_and_certificate_say_so(tmp_path: Path) -> None:
    name = "broken_backends:Three"
    report = run(name, ["core"], ops=["add", "neg"], few_shapes=True)
    few, usual = report.graphs, run(name, ["core"], ops=["add", "neg"], size="smoke").graphs
    assert 4 <= len(few) < len(usual)
    assert f"few shapes: {len(few)} different graphs" in page(report)
    assert "few shapes" in badge(report)
    said = certificate(report, own_files(name))
    assert (said["few_shapes"], said["graphs"]) == (True, len(few))
    found = verify(said, sample=None)
    assert [each.found for each in found.findings if each.what == "the sample's calls"] == ["the same"]
    usual_calls = verify({**said, "few_shapes": False}, sample=None)
    assert "the sample's calls" in {each.what for each in usual_calls.findings if each.agrees is False}


def test_the_command_runs_few_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    words = ["cpu_ref", "--few-shapes", "--op", "exp", "--size", "smoke", "--json", str(path)]
    assert run_command(command, *words) == 0
    found = json.loads(path.read_text())
    assert found["few_shapes"]
    assert f"few shapes: {found['graphs']} different graphs" in capsys.readouterr().out
