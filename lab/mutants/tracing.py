"""Which test runs which place: one run of all tests without a mutant, in which the places note it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from copies import Copy, Run, mirror
from mutant import Mutant

ALL = ("-m", "")  # the long tests too


@dataclass
class Test:
    """A test without a mutant."""

    name: str
    thorough: bool
    outcome: str | None = None
    seconds: float = 0
    places: set[int] = field(default_factory=set)


@dataclass
class Trace:
    """All tests, and the places that run outside of any: when a module is imported.

    What a fixture of a module does, or what a cache keeps, counts for the first test that uses it.
    """

    tests: list[Test]
    imported: set[int]

    @property
    def sound(self) -> list[Test]:
        """The tests that pass without a mutant; others can see none."""
        return [test for test in self.tests if test.outcome == "passed"]

    def row(self, hits: bytes, number: int) -> set[int]:
        """The places of a row of the table of hits."""
        places = len(hits) // (1 + len(self.tests))
        return {place for place in range(places) if hits[number * places + place]}

    def choose(self, id: int, mutant: Mutant, budget: float) -> list[str]:
        """The short tests that run a place, the nearest and cheapest first, until the seconds are spent.

        What runs while a module is imported can be seen by any test, as can what the first test has left in a cache.
        """
        tests = [t for t in self.sound if not t.thorough and (id in t.places or id in self.imported)]
        tests.sort(key=lambda test: (id not in test.places, -_nearness(mutant.path, test.name), test.seconds))
        chosen: list[str] = []
        for test in tests:
            if test.seconds <= budget or not chosen:
                budget -= test.seconds
                chosen.append(test.name)
        return chosen

    def write(self, path: Path) -> None:
        tests = [{**asdict(test), "places": sorted(test.places)} for test in self.tests]
        path.write_text(json.dumps({"tests": tests, "imported": sorted(self.imported)}))

    @staticmethod
    def read(path: Path) -> Trace:
        read = json.loads(path.read_text())
        tests = [Test(**{**test, "places": set(test["places"])}) for test in read["tests"]]
        return Trace(tests, set(read["imported"]))


def _nearness(path: str, test: str) -> int:
    """How many rooms a module and a test's file share by name."""
    rooms = set(Path(path).with_suffix("").parts)
    return len(rooms & set(test.partition("::")[0].removesuffix(".py").replace("test_", "").split("/")))


def trace(root: Path, work: Path, mutants: Mapping[int, Mutant], options: Sequence[str]) -> Trace:
    """Copy the workspace, and run all tests of the copy once; those that fail then run again without probes."""
    shutil.rmtree(work / "base", ignore_errors=True)
    mirror(root, work / "base")
    copy = Copy(root, work, "0", mutants)
    (copy.folder / "collected").unlink(missing_ok=True)
    copy.run(None, options=[*ALL, "--collect-only", "-n0", *options])
    if not (copy.folder / "collected").exists():
        raise RuntimeError(f"tests cannot be collected; pytest's output: {copy.folder / 'output'}")
    collected = json.loads((copy.folder / "collected").read_text())
    found = Trace([Test(*each) for each in collected], set())
    names = [test.name for test in found.tests]
    run = copy.run(None, options=[*ALL, "-n", "auto", *options], rows=names)
    failing = [name for name in names if run.failed(name)]
    again = copy.run(failing, options=[*ALL, "-n", "1"]) if failing else Run()
    found.imported = found.row(run.hits, 0)
    for number, test in enumerate(found.tests):
        test.outcome = again.outcome(test.name) if test.name in failing else run.outcome(test.name)
        test.seconds, test.places = run.seconds.get(test.name, 0), found.row(run.hits, number + 1)
    found.write(work / "trace.json")
    return found
