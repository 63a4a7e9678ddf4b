"""The page of the comparison: the errors of llama.cpp and of each backend by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from differences import DIFFERENCES

LLAMA_CPP, CHANGED = "llama.cpp", "llama.cpp, changed"
NONE = "-"
INTRODUCTION = """# Kinds of models, beside transformers and llama.cpp

Each kind is a small random model of transformers, as llama.cpp's converter writes it in f32. The numbers are mean square
errors over the mean square of the results of transformers. Backends run long prompts, prompts in pieces, parallel
sequences and reused prefixes, and the largest error of all counts; llama.cpp computes each sequence in one step. All have
f32 caches. A number over the limit, {limits}, is bold; `-` stands for a result that did not come.

Where llama.cpp differs, one thing is changed until it agrees with transformers: the last number is its error then. The
reasons and the changes are in `lab/engine/compare_kinds/differences.py`. The speeds of some kinds beside llama.cpp's, and
the host's part of them, are in [speed.md](../speed.md#recurrent-kinds).

Last written on {day} by `python lab/engine/compare_kinds --llama --page docs/reference/kinds.md`, row by row, with
{versions}.
"""
VERSIONS = ("llama-cpp-python", "transformers", "torch", "backbay", "ggml-python", "onnxruntime")

Found = Mapping[str, Mapping[str, Mapping[str, float] | str]]
"""By kind and side: the errors by script, or what went wrong."""


def cell(error: float, limit: float) -> str:
    return f"{error:.1e}" if error < limit else f"**{error:.1e}**"


def page(found: Found, limits: Mapping[str, float], backends: Sequence[str], before: str = "") -> str:
    """The page in Markdown. Kinds that were not compared now keep their rows of the page as it was before."""
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    most = max(limits.values())
    text = (
        f"{min(limits.values()):.0e}, or {most:.0e} for recurrent kinds"
        if len({*limits.values()}) > 1
        else f"{most:.0e}"
    )
    sides = [LLAMA_CPP, *backends]
    lines = [
        INTRODUCTION.format(
            day=datetime.now(UTC).date(), versions=versions, limits=text.replace("e-0", "e-")
        ),
        f"| kind | {' | '.join(sides)} | where llama.cpp differs |",
        "|---" * (len(sides) + 2) + "|",
    ]
    rows = dict(_rows(before)) if lines[1] in before else {}
    for name, errors in found.items():
        cells = [_worst(errors.get(side, "not run"), limits[name]) for side in sides]
        why = _reason(name, errors, limits[name]) if cells[0] == NONE or "**" in cells[0] else ""
        rows[name] = f"| `{name}` | {' | '.join(cells)} | {why} |"
    return "\n".join([*lines, *rows.values()]) + "\n"


def _rows(page: str) -> Iterator[tuple[str, str]]:
    """The rows of a page by kind."""
    for line in page.splitlines():
        if line.startswith("| `"):
            yield line.split("`")[1], line


def _reason(name: str, errors: Mapping[str, Mapping[str, float] | str], limit: float) -> str:
    """Why llama.cpp differs, with the error that is left without the reason."""
    known = DIFFERENCES.get(name)
    if known is None:
        return "not known"
    changed = errors.get(CHANGED)
    return known.why if changed is None else f"{known.why}; {known.change}: {_worst(changed, limit)}"


def _worst(errors: Mapping[str, float] | str, limit: float) -> str:
    return NONE if isinstance(errors, str) else cell(max(errors.values()), limit)
