"""Which tests see each mutant: first one mutant at a time by few tests, then all that are left at once by all tests.

A test that passes with many mutants planted sees none of them, if it has come to their places. One mutant can keep it from
the place of another, so the probes note in that run too which test runs which place. A test that misses a place runs
again with that mutant alone. A test that fails is run alone with halves of the mutants until one is found, which then
leaves the group; the tests that failed run again without it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from copies import Copy, Run, stopped
from mutant import Mutant
from tracing import ALL, Test, Trace

CHUNK = 240  # seconds of tests in a run of a group


class Hunt:
    """The hunt for all mutants; what is known stands in two files of JSON lines, and is not looked for again."""

    def __init__(
        self, root: Path, work: Path, results: Path, mutants: Mapping[int, Mutant], workers: int
    ) -> None:
        self.mutants, self.workers, self.trace = mutants, workers, Trace.read(work / "trace.json")
        if not self.trace.sound:
            raise RuntimeError(f"no test passes without a mutant; pytest's output: {work / '0' / 'output'}")
        self.results, self.progress = results, work / "progress.jsonl"
        self.tests = {test.name: test for test in self.trace.tests}
        self.rows = {name: number + 1 for number, name in enumerate(self.tests)}
        self.passes_alone: dict[str, bool] = {}
        self.copies = SimpleQueue[Copy]()
        for number in range(workers):
            self.copies.put(Copy(root, work, str(number), mutants))

    def unseen(self) -> set[int]:
        return self.mutants.keys() - {line["mutant"] for line in read_lines(self.results)}

    def single(self, budget: float) -> None:
        """Phase 1: each mutant alone, and those of the short tests that are likely to see it."""
        tried = {line["single"] for line in read_lines(self.progress) if "single" in line}
        with ThreadPoolExecutor(self.workers) as pool:
            hunts = [pool.submit(self._single, id, budget) for id in sorted(self.unseen() - tried)]
            try:
                for number, hunt in enumerate(as_completed(hunts), 1):
                    id, test = hunt.result()
                    if test is not None:
                        self.record(id, "short", test)
                    append(self.progress, single=id)
                    print(f"{number} of {len(hunts)}: mutant {id}: {test or 'not seen'}", flush=True)
            except BaseException:
                stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _single(self, id: int, budget: float) -> tuple[int, str | None]:
        tests = self.trace.choose(id, self.mutants[id], budget)
        run = self.run(tests, [id], "-x") if tests else Run()
        test = next(filter(run.failed, tests), None)
        return id, test if test and self.fails(test, [id]) else None

    def group(self, selection: str) -> None:
        """Phase 2: all mutants that are left at once, and all tests of a selection, in chunks."""
        done = {
            line["chunk"]: line for line in read_lines(self.progress) if line.get("selection") == selection
        }
        tests = [test for test in self.trace.sound if test.thorough == (selection == "thorough")]
        left: dict[int, list[str]] = defaultdict(list)
        for number, chunk in enumerate(_chunks(tests)):
            if number not in done and self.unseen():
                missed = self._hunt_chunk([test.name for test in chunk], selection)
                append(self.progress, selection=selection, chunk=number, left=missed)
                done[number] = {"left": missed}
            print(f"{selection} tests, chunk {number}: {len(self.unseen())} mutants are not seen", flush=True)
            for id, names in done.get(number, {"left": {}})["left"].items():
                left[int(id)] += names
        for id in sorted(left.keys() & self.unseen()):
            self._hunt_alone(id, left[id], selection)

    def _hunt_chunk(self, tests: list[str], selection: str) -> dict[int, list[str]]:
        """The mutants with the tests that missed their places."""
        left: dict[int, list[str]] = defaultdict(list)
        while tests and (group := self.unseen()):
            run = self.run(tests, group, probed=True)
            undone = [test for test in tests if run.outcome(test) is None]
            for test in tests:
                if run.outcome(test) in {"passed", "skipped"}:
                    passed = run.outcome(test) == "passed"
                    ran = self.trace.row(run.hits, self.rows[test]) if passed else set()
                    self._miss(left, test, (self.tests[test].places & group) - ran)
            again = self._attribute([test for test in tests if run.failed(test)], group, selection, left)
            if undone and len(undone) == len(tests):
                for test in undone:
                    self._miss(left, test, self.tests[test].places & group)
                undone = []
            tests = [*again, *undone]
        return left

    @staticmethod
    def _miss(left: dict[int, list[str]], test: str, mutants: Collection[int]) -> None:
        for id in mutants:
            left[id].append(test)

    def _attribute(
        self, failing: Sequence[str], group: set[int], selection: str, left: dict[int, list[str]]
    ) -> list[str]:
        """Find mutants that make tests fail; give the tests that have to run again without them."""
        found, again, searched = set[int](), [], True
        for test in failing:
            places = self.tests[test].places
            culprit = None
            if searched and not found & (places | self.trace.imported):
                culprit = self.culprit(test, group - found)
                # None: a mutant that was found has changed what a cache keeps.
                searched = culprit is not None or not found
            if culprit is not None:
                self.record(culprit, selection, test)
                found.add(culprit)
            if found:
                again.append(test)
            else:
                self._miss(left, test, places & group)
        return again

    def culprit(self, test: str, group: set[int]) -> int | None:
        """One mutant that a test sees alone; None if it sees none, or only several together."""
        near = (self.tests[test].places | self.trace.imported) & group
        mutants = next((sorted(each) for each in (near, group) if each and self.fails(test, each)), [])
        while len(mutants) > 1:
            half = mutants[: len(mutants) // 2], mutants[len(mutants) // 2 :]
            mutants = next((each for each in half if self.fails(test, each)), [])
        return mutants[0] if mutants else None

    def _hunt_alone(self, id: int, tests: Sequence[str], selection: str) -> None:
        key = f"{selection} {id}"
        if key not in {line.get("alone") for line in read_lines(self.progress)}:
            run = self.run(tests, [id])
            test = next((test for test in tests if run.failed(test) and self.fails(test, [id])), None)
            if test is not None:
                self.record(id, selection, test)
            append(self.progress, alone=key)

    def fails(self, test: str, planted: Collection[int]) -> bool:
        """Whether a test fails alone with the mutants, and passes alone without."""
        if not self.run([test], planted).failed(test):
            return False
        if test not in self.passes_alone:
            self.passes_alone[test] = self.run([test], ()).outcome(test) == "passed"
        return self.passes_alone[test]

    def run(self, tests: Sequence[str], planted: Collection[int], *options: str, probed: bool = False) -> Run:
        """Run tests on a free copy; probed ones in parallel. The bounds are wide: a test that hangs sees the mutant."""
        seconds = [self.tests[test].seconds for test in tests]
        workers = ("-n", str(self.workers), "--continue-on-collection-errors") if probed else ("-n0",)
        copy = self.copies.get()
        try:
            return copy.run(
                tests,
                planted,
                options=[*ALL, *workers, *options],
                rows=list(self.tests) if probed else None,
                bound=300 + 10 * sum(seconds),
                patience=60 + 10 * max(seconds),
            )
        finally:
            self.copies.put(copy)

    def record(self, id: int, selection: str | None, test: str | None) -> None:
        append(self.results, mutant=id, seen=selection, test=test)


def _chunks(tests: Sequence[Test]) -> Iterator[list[Test]]:
    chunk: list[Test] = []
    for test in tests:
        chunk.append(test)
        if sum(each.seconds for each in chunk) > CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def append(path: Path, **line: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
