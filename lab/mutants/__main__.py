"""Plants mutants at random places of the sources, and tells which tests see each.

python lab/mutants draw --seed 1 --count 300   # writes results/mutants.json
python lab/mutants trace                       # runs all tests once; after `--` options of pytest
python lab/mutants hunt                        # hours; goes on where it was stopped
python lab/mutants table                       # writes results/table.md, with the verdicts of results/verdicts.json

The mutants are planted in copies of the workspace, which lie in the folder WORK. `trace` makes the copies; what changes in
the sources after it has no effect on `hunt`. A verdict is a line `"17": "equivalent"`, by the number of the mutant;
table.py lists the words.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from copies import Stopped
from hunting import Hunt, read_lines
from mutant import Mutant, all_mutants, draw
from table import read_verdicts, table
from tracing import trace

HERE = Path(__file__).parent


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    given = arguments()
    given.root, given.results, given.work = map(Path.resolve, (given.root, given.results, given.work))
    given.work.mkdir(parents=True, exist_ok=True)
    given.results.mkdir(parents=True, exist_ok=True)
    commands = {"draw": draw_mutants, "trace": trace_tests, "hunt": hunt, "table": write_table}
    try:
        return commands[given.command](given)
    except (KeyboardInterrupt, Stopped):
        print("stopped; `hunt` goes on from here", file=sys.stderr)
        return 130


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description="Which tests see which mutant?")
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the workspace")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "mutants")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="choose mutants")
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--count", type=int, default=300)
    tracing = commands.add_parser("trace", help="run all tests once without a mutant")
    tracing.add_argument("options", nargs="*", help="for pytest")
    hunting = commands.add_parser("hunt", help="look for the tests that see each mutant")
    hunting.add_argument("--workers", type=int, default=2)
    hunting.add_argument("--budget", type=float, default=10, help="seconds of tests for a mutant alone")
    commands.add_parser("table", help="write the table")
    return parser.parse_args()


def read_draw(given: argparse.Namespace) -> dict[str, Any]:
    return json.loads((given.results / "mutants.json").read_text())


def mutants_of(given: argparse.Namespace) -> dict[int, Mutant]:
    drawn = read_draw(given)["mutants"]
    return {id: Mutant(**{**mutant, "probe": tuple(mutant["probe"])}) for id, mutant in enumerate(drawn)}


def draw_mutants(given: argparse.Namespace) -> int:
    if read_lines(given.results / "seen.jsonl"):
        print(f"{given.results} holds what was seen of another draw; remove it first", file=sys.stderr)
        return 1
    places = all_mutants(given.root)
    drawn = draw(places, given.seed, given.count)
    lines = ",\n".join(json.dumps(asdict(mutant)) for mutant in drawn)
    head = f'{{"seed": {given.seed}, "places": {len(places)}, "mutants": [\n'
    (given.results / "mutants.json").write_text(f"{head}{lines}\n]}}\n")
    print(f"{len(drawn)} of {len(places)}: {dict(Counter(mutant.kind for mutant in drawn))}")
    return 0


def trace_tests(given: argparse.Namespace) -> int:
    (given.work / "progress.jsonl").unlink(missing_ok=True)
    found = trace(given.root, given.work, mutants_of(given), given.options)
    print(f"{len(found.tests)} tests, {sum(test.seconds for test in found.tests):.0f} s")
    print(f"outcomes: {dict(Counter(test.outcome for test in found.tests))}")
    reached = found.imported.union(*(test.places for test in found.tests))
    print(f"places: {len(mutants_of(given))}, run by tests: {len(reached)}, at import: {len(found.imported)}")
    return 0


def hunt(given: argparse.Namespace) -> int:
    hunt = Hunt(given.root, given.work, given.results / "seen.jsonl", mutants_of(given), given.workers)
    hunt.single(given.budget)
    for selection in ("short", "thorough"):
        hunt.group(selection)
    for id in sorted(hunt.unseen()):
        hunt.record(id, None, None)
    return write_table(given)


def write_table(given: argparse.Namespace) -> int:
    seen = {line["mutant"]: line["seen"] for line in read_lines(given.results / "seen.jsonl")}
    verdicts = read_verdicts(given.results / "verdicts.json")
    text = table(read_draw(given), mutants_of(given), seen, verdicts)
    (given.results / "table.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
