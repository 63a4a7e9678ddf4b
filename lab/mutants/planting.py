"""The text of a module with mutants, and with probes that note which test runs which place."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from importlib.util import cache_from_source
from pathlib import Path

from mutant import Mutant

LOADED = "exec(__import__('importlib.machinery').machinery.SourceFileLoader('probe', {!r}).get_code('probe'), {{}})"


def plant(root: Path, mutants: Mapping[int, Mutant], planted: Collection[int], probe: Path | None) -> None:
    """Write the mutants into a copy of the sources; with a probe, all places note that they run."""
    ids = mutants if probe else planted
    for path in {mutants[id].path for id in ids}:
        here = {id: mutants[id] for id in ids if mutants[id].path == path}
        file = root / path
        file.write_bytes(planted_text(file.read_bytes(), here, planted, probe))
        Path(cache_from_source(str(file))).unlink(missing_ok=True)  # a text of the same second and size


def planted_text(
    text: bytes, mutants: Mapping[int, Mutant], planted: Collection[int], probe: Path | None
) -> bytes:
    edits: list[tuple[int, int, int, int, bytes]] = []  # start, order among those that start there, end, text
    for id, mutant in mutants.items():
        if text[mutant.start : mutant.end].decode() != mutant.before:
            raise ValueError(
                f"{mutant.path}:{mutant.line} is not {mutant.before!r} any more: draw the mutants again"
            )
        start, end = mutant.probe
        if id in planted:
            edits.append((mutant.start, 2, 0, mutant.end, mutant.after.encode()))
            if mutant.start <= start and end <= mutant.end:
                start, end = mutant.start, mutant.end
        if probe:
            edits.append((start, 1, -end, start, b"(__ran__(%d) or (" % id))
            edits.append((end, 0, -start, end, b"))"))
    if probe:
        first = _after_future_imports(text)
        line = LOADED.format(str(probe)).encode()
        edits.append((first, 0, 0, first, b"; " + line if first else line + b"\n"))
    return _edited(text, edits)


def _edited(text: bytes, edits: list[tuple[int, int, int, int, bytes]]) -> bytes:
    """The text with all edits; of probes that begin at one place the longest comes first, and ends last."""
    parts, at = [], 0
    for start, _, _, end, new in sorted(edits):
        parts += [text[at:start], new]
        at = end
    return b"".join([*parts, text[at:]])


def _after_future_imports(text: bytes) -> int:
    """Where the first statement that may be code begins: after the docstring and `from __future__`."""
    lines, line, column = text.splitlines(keepends=True), 1, 0
    for number, node in enumerate(ast.parse(text).body):
        docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        line, column = node.end_lineno or 1, node.end_col_offset or 0
    return sum(map(len, lines[: line - 1])) + column
