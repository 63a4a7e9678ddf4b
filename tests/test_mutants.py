"""lab/mutants: what a mutant can change, and how a test is found that sees one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from doc_blocks import ROOT

TOOL = ROOT / "lab" / "mutants"
MODULE = '''"""A module."""

from __future__ import annotations

LIMIT: int = 10


def clamp(x: int, low: float = 0.5) -> int:
    """At most 10."""
    if x > LIMIT and not low:
        raise ValueError(f"{x} is more than {LIMIT + 1}")
    x += 1
    print(x, LIMIT)
    return x - 1
'''
TESTS = """import subprocess, sys
import pytest
from toy import sums

def test_a_child_clamps():
    code = "import sys; sys.path.insert(0, sys.argv[1]); from toy import sums; print(sums.clamp(50))"
    folder = sums.__file__.rpartition("/toy/")[0]
    assert subprocess.check_output([sys.executable, "-I", "-S", "-c", code, folder]) == b"10\\n"

@pytest.mark.thorough
def test_double():
    assert sums.double(2) == 4

def test_that_fails_anyway():
    assert sums.half(2) == 3
"""
SUMS = """LIMIT = 10

def clamp(x):
    return min(x, LIMIT)

def double(x):
    return x * 2

def half(x):
    return x // 2
"""
SETTINGS = """[tool.pytest.ini_options]
testpaths = ["core/tests"]
pythonpath = ["core/src"]
addopts = ["--import-mode=importlib"]
markers = ["thorough: not in the short selection"]
"""


@pytest.fixture(scope="module")
def tool() -> SimpleNamespace:
    """The modules of the tool, which is a script."""
    sys.path.insert(0, str(TOOL))
    try:
        import hunting
        import mutant
        import planting
        import tracing
    finally:
        sys.path.pop(0)
    return SimpleNamespace(hunting=hunting, mutant=mutant, planting=planting, tracing=tracing)


@pytest.fixture(scope="module")
def mutants(tool) -> dict:
    return dict(enumerate(tool.mutant.mutants_of("module.py", MODULE.encode())))


def test_mutants_stand_where_running_code_can_show_them(mutants):
    assert {(mutant.line, mutant.kind, mutant.before, mutant.after) for mutant in mutants.values()} == {
        (5, "constant", "10", "11"),
        (8, "constant", "0.5", "1.0"),
        (10, "comparison", ">", ">="),
        (10, "and, or", "and", "or"),
        (10, "not", "not", ""),
        (10, "branch", "x > LIMIT and not low", "True"),
        (10, "branch", "x > LIMIT and not low", "False"),
        (12, "statement", "x += 1", "None"),
        (12, "constant", "1", "2"),
        (13, "statement", "print(x, LIMIT)", "None"),
        (13, "arguments", "x, LIMIT", "LIMIT, x"),
        (14, "operator", "-", "+"),
        (14, "constant", "1", "2"),
        (14, "return", "x - 1", "None"),
    }


def test_only_the_mutants_change_the_text(tool, mutants):
    wanted = {id for id, mutant in mutants.items() if mutant.kind in {"comparison", "arguments"}}
    text = tool.planting.planted_text(MODULE.encode(), mutants, wanted, None).decode()
    assert text == MODULE.replace("x > LIMIT", "x >= LIMIT").replace("(x, LIMIT)", "(LIMIT, x)")


def test_a_changed_source_is_refused(tool, mutants):
    with pytest.raises(ValueError, match="draw the mutants again"):
        tool.planting.planted_text(MODULE.replace("> LIMIT", "< LIMIT").encode(), mutants, (), None)


def test_probes_change_neither_results_nor_lines(tool, mutants, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("builtins.__ran__", ran.append, raising=False)
    (tmp_path / "probe.py").write_text("")
    text = tool.planting.planted_text(MODULE.encode(), mutants, (), tmp_path / "probe.py")
    assert len(text.splitlines()) == len(MODULE.splitlines())
    names = {}
    exec(text, names)
    at_import = {mutants[id].line for id in ran}
    assert names["clamp"](3) == 3
    assert (at_import, {mutants[id].line for id in ran}) == ({5, 8}, {5, 8, 10, 12, 13, 14})


def test_a_source_can_hold_all_of_its_probes(tool, monkeypatch):
    monkeypatch.setattr(tool.mutant, "SOURCES", ("core/src",))
    drawn = tool.mutant.draw(tool.mutant.all_mutants(ROOT), 7, 200)
    assert len({mutant.kind for mutant in drawn}) == 9
    for path in sorted({mutant.path for mutant in drawn}):
        here = {id: mutant for id, mutant in enumerate(drawn) if mutant.path == path}
        text = (ROOT / path).read_bytes()
        for planted in ((), here):
            compile(tool.planting.planted_text(text, here, planted, Path("probe.py")), path, "exec")


def test_a_draw_can_be_repeated(tool, mutants):
    drawn = tool.mutant.draw(list(mutants.values()), 3, 5)
    assert drawn == tool.mutant.draw(list(mutants.values()), 3, 5)
    assert len(drawn) == 5


class Simulated:
    """A copy in which a test is a walk over places: `+` sees the mutant of a place, `/` is led away
    by it, `&` sees two; a `!` fails alone."""

    def __init__(self, tool, walks: dict[str, str]) -> None:
        self.tool, self.walks, self.runs = tool, walks, []

    def run(self, tests, planted, *, options, rows, bound, patience):
        self.runs.append((list(tests), set(planted)))
        run, hits = self.tool.Run(status=0), bytearray(10 * (1 + len(self.walks)))
        for test in tests:
            steps = list(zip(self.walks[test][::2], self.walks[test][1::2], strict=True))
            pair = [place for place, does in steps if does == "&" and int(place) in planted]
            run.outcomes[test] = "failed" if len(pair) > 1 else "passed"
            for place, does in steps:
                if does == "!" and len(tests) == 1:
                    run.outcomes[test] = "failed"
                hits[10 * (1 + list(self.walks).index(test)) + int(place)] = 1
                if int(place) in planted and does == "+":
                    run.outcomes[test] = "failed"
                if int(place) in planted and does in "+/":
                    break
        run.hits = bytes(hits)
        return run


@pytest.fixture
def hunt(tool, tmp_path, monkeypatch):
    """A hunt for the mutants 0 to 9 in simulated tests."""

    def hunt(**walks: str):
        copy = Simulated(tool.hunting, walks)
        monkeypatch.setattr(tool.hunting, "Copy", lambda *_: copy)
        tests = [
            tool.tracing.Test(
                name, name.startswith("long"), "passed", 1.0, {int(place) for place in walk[::2]}
            )
            for name, walk in walks.items()
        ]
        tool.tracing.Trace(tests, set()).write(tmp_path / "trace.json")
        mutant = tool.mutant.Mutant("core/src/module.py", 1, "constant", "1", "2", 0, 1, (0, 1))
        return tool.hunting.Hunt(
            tmp_path, tmp_path, tmp_path / "seen.jsonl", dict.fromkeys(range(10), mutant), 1
        ), copy

    return hunt


def seen(tmp_path: Path) -> dict[int, tuple[str, str]]:
    lines = map(json.loads, (tmp_path / "seen.jsonl").read_text().splitlines())
    return {line["mutant"]: (line["seen"], line["test"]) for line in lines}


def test_a_mutant_alone_is_tried_by_short_tests_that_run_its_place(hunt, tmp_path):
    hunted, copy = hunt(a="0+1-", b="1-", long="1+")
    hunted.single(budget=10)
    assert seen(tmp_path) == {0: ("short", "a")}
    assert copy.runs == [(["a"], {0}), (["a"], {0}), (["a"], set()), (["a", "b"], {1})]


def test_a_test_that_fails_without_a_mutant_sees_none(hunt):
    hunted, _ = hunt(a="0!", long="0!")
    hunted.single(budget=10)
    hunted.group("short")
    hunted.group("thorough")
    assert 0 in hunted.unseen()


def test_each_mutant_of_a_group_is_found(hunt, tmp_path):
    hunted, _ = hunt(a="0-1+2-", b="1-3+", c="3-", long="4+5-6+")
    hunted.group("short")
    assert seen(tmp_path) == {1: ("short", "a"), 3: ("short", "b")}
    hunted.group("thorough")
    assert hunted.unseen() == {0, 2, 5, 7, 8, 9}


def test_a_mutant_that_another_hides_is_found(hunt, tmp_path):
    hunted, copy = hunt(a="0/1+", b="0-")
    hunted.group("short")
    assert seen(tmp_path) == {1: ("short", "a")}
    assert (["a"], {1}) in copy.runs


def test_mutants_that_only_show_together_are_not_seen(hunt, tmp_path):
    hunted, copy = hunt(a="0&1&2-", b="2+")
    hunted.group("short")
    assert seen(tmp_path) == {2: ("short", "b")}
    assert {frozenset(planted) for tests, planted in copy.runs if tests == ["a"]} >= {
        frozenset({0}),
        frozenset({1}),
    }


def test_what_is_known_is_not_hunted_again(hunt, tmp_path):
    walks = {"a": "0+1/2-", "b": "3-"}
    hunted, _ = hunt(**walks)
    hunted.single(budget=10)
    hunted.group("short")
    again, copy = hunt(**walks)
    again.single(budget=10)
    again.group("short")
    assert not copy.runs


@pytest.mark.thorough
def test_mutants_of_a_package_from_the_draw_to_the_table(tmp_path):
    for name, text in (
        ("core/src/toy/sums.py", SUMS),
        ("core/tests/test_sums.py", TESTS),
        ("pyproject.toml", SETTINGS),
    ):
        (tmp_path / "toy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / name).write_text(text)
    folders = ["--root", tmp_path / "toy", "--results", tmp_path / "results", "--work", tmp_path / "work"]
    for command in (["draw", "--seed", "1", "--count", "300"], ["trace"], ["hunt"]):
        subprocess.run([sys.executable, TOOL, *folders, *command], check=True, stdout=subprocess.DEVNULL)
    drawn = json.loads((tmp_path / "results" / "mutants.json").read_text())["mutants"]
    by_line = {(drawn[id]["line"], how) for id, (how, _) in seen(tmp_path / "results").items()}
    assert by_line == {(1, "short"), (4, "short"), (7, "thorough"), (10, None)}
    assert (tmp_path / "toy" / "core/src/toy/sums.py").read_text() == SUMS
    assert "| all |" in (tmp_path / "results" / "table.md").read_text()
