"""Writes what commands print, and the register's entries, into the documents. `make docs` runs it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BACKENDS = re.compile(r"(list --markdown` -->\n).*?(<!-- end -->)", re.DOTALL)
ENTRIES = re.compile(r"(made by `make docs` -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = ["engine", "version", "run", "calls right", "wrong", "not computed", "level"]


def printed(*words: str) -> str:
    command = [sys.executable, "-m", "backbay", *words, "--markdown"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def entries() -> str:
    """The table of the register's entries."""
    return "".join(
        f"| {' | '.join(row)} |\n" for row in [HEAD, ["---"] * 3 + ["---:"] * 3 + ["---"], *_rows()]
    )


def _rows() -> Iterator[list[str]]:
    for path in sorted(ROOT.glob("register/*/*/entry.json"), key=_by_version):
        entry, record = (
            json.loads((path.parent / name).read_text()) for name in (path.name, "certificate.json")
        )
        counts = record["counts"]
        wrong = counts["failed"] + counts["known"]
        link = f"[{entry['version']}]({path.parent.relative_to(ROOT / 'register')})"
        numbers = [f"{n:,}" for n in (counts["passed"], wrong, counts["unsupported"])]
        yield [entry["title"], link, record["size"], *numbers, entry["level"]]


def _by_version(path: Path) -> tuple[str, list[int]]:
    return path.parts[-3], [int(number) for number in re.findall(r"\d+", path.parts[-2])]


def replace(path: Path, place: re.Pattern[str], table: str) -> None:
    path.write_text(place.sub(lambda found: found[1] + table + found[2], path.read_text()))


def main() -> None:
    replace(ROOT / "README.md", BACKENDS, printed("list"))
    replace(ROOT / "register" / "README.md", ENTRIES, entries())
    (ROOT / "docs" / "reference" / "ops.md").write_text(printed("ops"))


if __name__ == "__main__":
    main()
