"""Writes what commands print into the documents: docs/reference/ops.md, and README's table of backends. `make docs` runs it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"(list --markdown` -->\n).*?(<!-- end -->)", re.DOTALL)


def printed(*words: str) -> str:
    command = [sys.executable, "-m", "backbay", *words, "--markdown"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    readme = ROOT / "README.md"
    table = printed("list")
    readme.write_text(TABLE.sub(lambda found: found[1] + table + found[2], readme.read_text()))
    (ROOT / "docs" / "reference" / "ops.md").write_text(printed("ops"))


if __name__ == "__main__":
    main()
