"""Plots of the documents, which are drawn from what benchmarks measured; and the guard against slower code."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest

BENCH = Path(__file__).parents[1] / "lab" / "bench"
DOCS = BENCH.parents[1] / "docs"


@pytest.fixture(autouse=True)
def modules_of_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def drawn(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["plots.py", "--out", str(folder), *arguments])
    loaded("plots").main()
    return sorted(path.name for path in folder.iterdir())


def test_the_plots_of_the_documents_are_drawn_from_the_kept_measurements(tmp_path, monkeypatch):
    names = drawn(tmp_path, monkeypatch)
    assert names == sorted(f"{path.stem}.svg" for path in (BENCH / "measured").glob("*.json"))
    for name in names:
        assert (DOCS / name).read_text() == (tmp_path / name).read_text(), "run `python lab/bench/plots.py`"


def test_a_plot_shows_each_number_that_was_measured(tmp_path, monkeypatch):
    def side(value: float) -> dict[str, float]:
        return {"median": value, "ratio": 1.0, "low": 1.0, "high": 1.0}

    columns: dict[str, Any] = {"shape": "small", "dtype": "q4_0", "threads": 2, "prompt": {"a": side(1)}}
    columns |= {str(n): {"a": side(10.0 * n), "b": side(7.0)} for n in (8, 1)}
    depth: dict[str, Any] = {"cache": "f16", "threads": 2, "rate": 1.0, "wall": 2.0, "slope 1": {"a": 3.0}}
    depth |= {"1": {"64": {"a": side(21.5)}, "1900": {"a": side(33.25)}}}
    for name, found in (("columns", columns), ("depth", depth)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    given = [f"--{name}={tmp_path / name}.json" for name in ("columns", "depth")]
    out = tmp_path / "out"
    out.mkdir()
    assert drawn(out, monkeypatch, *given) == ["columns.svg", "depth.svg"]
    titles = [
        [title.text for title in ET.parse(out / name).iter("{http://www.w3.org/2000/svg}title")]
        for name in ("columns.svg", "depth.svg")
    ]
    assert titles == [
        ["a, 1: 10", "a, 8: 80", "b, 1: 7", "b, 8: 7"],
        ["a, 1 at once, 64: 21.5", "a, 1 at once, 1900: 33.25"],
    ]


class Scripted:
    """A side that answers with the same rates in each round, but for one slow round."""

    def __init__(self, name: str, rate: float) -> None:
        self.name, self.rate, self.asked = name, rate, 0

    def ask(self, request: str) -> dict[str, float]:
        self.asked += 1
        rate = self.rate if self.asked != 2 else self.rate / 5
        return dict.fromkeys(loaded("guard").MEASURES, rate)


@pytest.mark.parametrize(("now", "lost"), [(100, 0), (95, 0), (91, 0), (89, 3), (50, 3), (300, 0)])
def test_the_guard_sees_what_is_slower_than_its_slack(now, lost):
    guard = loaded("guard")
    found = guard.ratios([Scripted(guard.NOW, now), Scripted(guard.BEFORE, 100)], rounds=3)
    assert set(found.values()) == {now / 100}
    assert len(guard.lost(found, 0.10)) == lost


def test_the_guard_refuses_a_revision_that_does_not_exist(tmp_path):
    with pytest.raises(SystemExit, match="git has no revision 'nothing-of-this-name'"):
        loaded("guard").checked_out("nothing-of-this-name", tmp_path / "files")


def test_without_a_tag_the_guard_says_that_it_compares_nothing(monkeypatch, capsys):
    guard = loaded("guard")
    monkeypatch.setattr(guard, "last_tag", lambda: None)
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    with pytest.raises(SystemExit) as ended:
        guard.main()
    assert ended.value.code == 0
    assert "nothing is compared" in capsys.readouterr().out
