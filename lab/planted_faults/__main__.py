"""Plants faults at random places of the sources, and tells which tests see each.

python lab/planted_faults draw --seed 1 --count 300   # writes results/faults.json
python lab/planted_faults trace                       # runs all tests once; after `--` options of pytest
python lab/planted_faults hunt                        # hours; goes on where it was stopped
python lab/planted_faults table                       # writes results/table.md, with the verdicts of results/verdicts.json

The faults are planted in copies of the workspace, which lie in the folder WORK. `trace` makes the copies; what changes in
the sources after it has no effect on `hunt`. A verdict is a line `"17": "equivalent"`, by the number of the fault;
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
from places import PlantedFault, all_faults, draw
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
    commands = {"draw": draw_faults, "trace": trace_tests, "hunt": hunt, "table": write_table}
    try:
        return commands[given.command](given)
    except (KeyboardInterrupt, Stopped):
        print("stopped; `hunt` goes on from here", file=sys.stderr)
        return 130


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="planted_faults", description="Which tests see which fault?")
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the workspace")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "planted_faults")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="choose faults")
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--count", type=int, default=300)
    tracing = commands.add_parser("trace", help="run all tests once without a fault")
    tracing.add_argument("options", nargs="*", help="for pytest")
    hunting = commands.add_parser("hunt", help="look for the tests that see each fault")
    hunting.add_argument("--workers", type=int, default=2)
    hunting.add_argument("--budget", type=float, default=10, help="seconds of tests for a fault alone")
    commands.add_parser("table", help="write the table")
    return parser.parse_args()


def read_draw(given: argparse.Namespace) -> dict[str, Any]:
    return json.loads((given.results / "faults.json").read_text())


def faults_of(given: argparse.Namespace) -> dict[int, PlantedFault]:
    drawn = read_draw(given)["faults"]
    return {id: PlantedFault(**{**fault, "probe": tuple(fault["probe"])}) for id, fault in enumerate(drawn)}


def draw_faults(given: argparse.Namespace) -> int:
    if read_lines(given.results / "seen.jsonl"):
        print(f"{given.results} holds what was seen of another draw; remove it first", file=sys.stderr)
        return 1
    places = all_faults(given.root)
    drawn = draw(places, given.seed, given.count)
    lines = ",\n".join(json.dumps(asdict(fault)) for fault in drawn)
    head = f'{{"seed": {given.seed}, "places": {len(places)}, "faults": [\n'
    (given.results / "faults.json").write_text(f"{head}{lines}\n]}}\n")
    print(f"{len(drawn)} of {len(places)}: {dict(Counter(fault.kind for fault in drawn))}")
    return 0


def trace_tests(given: argparse.Namespace) -> int:
    (given.work / "progress.jsonl").unlink(missing_ok=True)
    found = trace(given.root, given.work, faults_of(given), given.options)
    print(f"{len(found.tests)} tests, {sum(test.seconds for test in found.tests):.0f} s")
    print(f"outcomes: {dict(Counter(test.outcome for test in found.tests))}")
    reached = found.imported.union(*(test.places for test in found.tests))
    print(f"places: {len(faults_of(given))}, run by tests: {len(reached)}, at import: {len(found.imported)}")
    return 0


def hunt(given: argparse.Namespace) -> int:
    hunt = Hunt(given.root, given.work, given.results / "seen.jsonl", faults_of(given), given.workers)
    hunt.single(given.budget)
    for selection in ("short", "thorough"):
        hunt.group(selection)
    for id in sorted(hunt.unseen()):
        hunt.record(id, None, None)
    return write_table(given)


def write_table(given: argparse.Namespace) -> int:
    seen = {line["fault"]: line["seen"] for line in read_lines(given.results / "seen.jsonl")}
    verdicts = read_verdicts(given.results / "verdicts.json")
    text = table(read_draw(given), faults_of(given), seen, verdicts)
    (given.results / "table.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
