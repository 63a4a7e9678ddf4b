"""Writes a report for each fault in lab/found that nobody has reported, as a person could file it: lab/found/reports.

python lab/tools/found_reports.py                      # the texts; what programs printed stays as it was recorded
python lab/tools/found_reports.py --run ggml_nearest   # runs these programs anew with this Python, and records what they print
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import found

REPORTS = found.ROOT / "lab" / "found" / "reports"
SHOWN = 0
PRINTED = re.compile(r"## What it prints\n\n```text\n(.*?)```\n", re.DOTALL)
LONGEST = 110
"""Characters of a title."""
SECONDS = 120


def unreported() -> list[found.Finding]:
    return [each for each in found.findings() if each["thread"] == found.UNREPORTED]


def path_of(finding: found.Finding) -> Path:
    return REPORTS / f"{finding.path.stem}.md"


def title_and_cause(finding: found.Finding) -> tuple[str, str]:
    """The first sentence, up to a colon, or to a semicolon if it is long; and the rest, which says how the fault comes about."""
    first, _, rest = finding.fault.partition(". ")
    sign = ": " if ": " in first or len(first) <= LONGEST else "; "
    head, _, cause = first.partition(sign)
    told = " ".join(filter(None, (cause[:1].upper() + cause[1:] + "." if cause else "", rest)))
    return head.rstrip("."), told.replace("..", ".")


def program(finding: found.Finding) -> str:
    """The script, whose docstring says nothing of backbay."""
    text = finding.path.read_text()
    docstring = ast.parse(text).body[0]
    assert docstring.end_lineno is not None
    code = "\n".join(text.splitlines()[docstring.end_lineno :]).strip()
    return f"{code}\n"


def recorded(finding: found.Finding) -> str:
    """What the program printed when it ran last; empty if it never ran for a report."""
    path = path_of(finding)
    match = PRINTED.search(path.read_text()) if path.is_file() else None
    return match[1] if match else ""


def run(finding: found.Finding) -> str:
    """What the program prints here; empty if the fault does not show."""
    command = [sys.executable, str(finding.path)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    return ended.stdout if ended.returncode == SHOWN else ""


def report(finding: found.Finding, printed: str) -> str:
    title, cause = title_and_cause(finding)
    rows = [("Versions that show it", finding["shown"]), ("Versions that do not", finding["right"])]
    rows += [("Needs", finding["needs"]), ("When", finding["timing"])]
    told = "".join(f"- {name}: {value}\n" for name, value in rows if value != "none")
    output = (
        f"## What it prints\n\n```text\n{printed.rstrip()}\n```\n"
        if printed
        else "The program prints the version, what is expected, and what came. No output is recorded here.\n"
    )
    parts = [
        f"# {finding['project']}: {title}\n",
        f"{cause}\n" if cause else "",
        f"Effect: {finding['effect']}.\n",
        told,
        "## Program\n\nIt ends with status 0 if the fault is there.\n",
        f"```python\n{program(finding)}```\n",
        output,
    ]
    return "\n".join(filter(None, parts))


def texts() -> dict[Path, str]:
    return {path_of(each): report(each, recorded(each)) for each in unreported()}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--run", nargs="*", default=[], help="names of scripts, or parts of them")
    wanted = parser.parse_args().run
    REPORTS.mkdir(exist_ok=True)
    for each in unreported():
        printed = run(each) if any(part in each.path.stem for part in wanted) else ""
        if wanted and printed:
            print(each.path.stem)
        path_of(each).write_text(report(each, printed or recorded(each)))
    for path in REPORTS.glob("*.md"):
        if path not in texts():
            path.unlink()


if __name__ == "__main__":
    main()
