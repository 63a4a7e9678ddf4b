"""Programs measured side by side, each in a process of its own, in turns, so that noise affects all alike."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
REST = 0.02  # seconds until the threads of the previous side stop spinning


class Side:
    """A process that prints a greeting, one line of JSON, and answers each line of input with one line of JSON."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.greeting = self._answer()

    def ask(self, request: str) -> Answer:
        assert self._process.stdin is not None
        time.sleep(REST)
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}")
        answer: Answer = json.loads(line)
        return answer


def library_of(name: str) -> dict[str, str]:
    """The environment of a side that names a folder with libggml, as in `ggml@.../ggml/lib`."""
    folder = name.partition("@")[2].partition("*")[0]
    return {"BACKBAY_GGML_LIB": folder} if folder else {}


def serve(greeting: Answer, answer: Callable[[str], Answer]) -> None:
    """Answer requests as a side, until standard input ends."""
    print(json.dumps(greeting), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)


def take_turns(sides: Sequence[Side], request: str, rounds: int) -> dict[str, list[float]]:
    """The answers of each side to a request (seconds, or a rate) by round; another side begins each round."""
    return take_all_turns(sides, request, [request], rounds)[request]


def take_all_turns(
    sides: Sequence[Side], request: str, parts: Sequence[str], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """The same for answers of several parts, by part."""
    answers: dict[str, dict[str, list[float]]] = {part: {side.name: [] for side in sides} for part in parts}
    for n in range(rounds):
        for side in (*sides[n % len(sides) :], *sides[: n % len(sides)]):
            answer = side.ask(request)
            for part in parts:
                answers[part][side.name].append(answer[part])
    return answers


def against(answers: Mapping[str, list[float]], reference: str) -> dict[str, dict[str, float]]:
    """Each side's median, and the median of its ratios to the reference in each round."""
    base = answers[reference]
    return {
        name: {
            "median": statistics.median(values),
            "ratio": statistics.median(value / other for value, other in zip(values, base, strict=True)),
            "low": min(value / other for value, other in zip(values, base, strict=True)),
            "high": max(value / other for value, other in zip(values, base, strict=True)),
        }
        for name, values in answers.items()
    }


def table(title: str, unit: str, found: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"{title:<44}{unit:>12}{'ratio':>9}   of single rounds"]
    for name, told in found.items():
        spread = f"{told['low']:.3f} .. {told['high']:.3f}"
        lines.append(f"  {name:<42}{told['median']:>12.2f}{told['ratio']:>9.3f}   {spread}")
    return "\n".join(lines)


def side_arguments(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The arguments that all comparisons share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", help="run as this side of the comparison")
    return parser


def write_json(path: Path | None, results: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n")


def evict(path: Path) -> None:
    """Drop a file from the system's cache, if the system supports it."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
