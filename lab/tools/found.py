"""Writes docs/reference/found.md from the docstrings of the scripts in found/; `make docs` runs it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "found.md"
OPTIONAL = ("needs", "timing")
FIELDS = ("project", *OPTIONAL, "effect", "workaround", "thread", "shown", "right")
HEAD = """# Faults found in other projects

The faults below are in the libraries that backbay runs on. The conformance suite, the plugins' fuzzers and work on
the plugins have found them. Each fault has a script in [found/](../../lab/found) that shows it without backbay. A script is
a single file, setup included, that can be pasted into a report. It prints the expected and the actual result, and
exits with

| status | meaning |
|---|---|
| 0 | the fault is there |
| 1 | the fault is not there |
| 77 | something that the script needs is missing |

`tests/test_found.py` runs every script and compares its outcome with this page. So the test fails after an upgrade
that mends a fault, and its message names the workaround that can be removed.

"Shown in" lists versions in which the script showed the fault, "right in" versions in which it did not. "Thread" is a
public report of the fault, or the change that mended or caused it; "none found" means that a search found none, and leads to
a report that somebody could file as it is, with what the program prints; nobody has sent it.
"Timing" says when a fault appears that does not appear in every run: the test does not fail after a run without it.

<!-- made by lab/tools/found.py from the scripts -->
"""
UNREPORTED = "none found"
COLUMNS = """| fault | effect | shown in | right in | workaround in backbay | thread |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Finding:
    """What the docstring of a script says: the fault in prose, then a field on each line."""

    path: Path
    fault: str
    fields: dict[str, str]

    def __getitem__(self, field: str) -> str:
        return self.fields.get(field, "none")

    def versions(self, field: str) -> list[str]:
        return [] if self[field] == "none" else self[field].split(", ")

    @property
    def workarounds(self) -> list[tuple[str, str]]:
        """Files with what to look for in them; empty if there is none, for the reason given."""
        if self["workaround"].startswith("none"):
            return []
        return [
            (path, name)
            for path, _, name in (each.partition(": ") for each in self["workaround"].split("; "))
        ]


def read(path: Path) -> Finding:
    """A finding; ValueError if a field is missing or unknown."""
    prose, _, listed = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")
    fields = dict(line.split(": ", 1) for line in listed.splitlines())
    missing, unknown = {*FIELDS} - {*OPTIONAL, *fields}, fields.keys() - {*FIELDS}
    if missing or unknown:
        raise ValueError(f"{path.name}: missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")
    return Finding(path, " ".join(prose.split()), fields)


def findings() -> list[Finding]:
    return [read(path) for path in sorted((ROOT / "lab" / "found").glob("*.py"))]


def page() -> str:
    found = findings()
    text = HEAD
    for project in sorted({each["project"] for each in found}, key=str.lower):
        text += f"\n## {project}\n\n{COLUMNS}"
        text += "".join(row(each) for each in found if each["project"] == project)
    return text


def row(finding: Finding) -> str:
    name = finding.path.name
    fault = f"{finding.fault} [{name}](../../lab/found/{name})"
    if "needs" in finding.fields:
        fault += f", needs {finding['needs']}"
    if "timing" in finding.fields:
        fault += f"; timing: {finding['timing']}"
    places = [f"[{name}](../../{path})" for path, name in finding.workarounds]
    cells = (
        fault,
        finding["effect"],
        finding["shown"],
        finding["right"],
        ", ".join(places) or finding["workaround"],
        thread(finding),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def thread(finding: Finding) -> str:
    """A link whose text is project#number, as in `microsoft/onnxruntime#1`, or one to the report that nobody has filed."""
    address = finding["thread"]
    if address == UNREPORTED:
        return f"[{address}](../../lab/found/reports/{finding.path.stem}.md)"
    if not address.startswith("https://github.com/"):
        return address
    owner, project, _, number = address.removeprefix("https://github.com/").split("/")
    return f"[{owner}/{project}#{number}]({address})"


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
