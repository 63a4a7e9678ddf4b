"""Prints the path of the sdist that source.txt names; pip fetches it if it is not there yet.

It lies in the folder that BACKBAY_GGML_SOURCES names, else beside this file. The sdist of this package brings it along.
Without a package index, put the file there.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VARIABLE = "BACKBAY_GGML_SOURCES"


def source(folder: Path) -> Path:
    """The file, with the hash of source.txt; a SystemExit says what is missing."""
    name, version, digest = pinned(HERE / "source.txt")
    path = folder / f"{name}-{version}.tar.gz"
    if not path.exists():
        sys.stderr.write(
            f"pip downloads {path.name}, which holds ggml's sources, into {folder}; {VARIABLE} names another\n"
        )
        fetch(folder)
    if not path.exists():
        raise SystemExit(
            f"no {path.name}: pip could not download it (see above). Put it into {folder}, or give pip an index that has it"
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise SystemExit(f"{path} has the SHA-256 {found}; source.txt asks for {digest}. Remove the file")
    return path


def pinned(path: Path) -> tuple[str, str, str]:
    """Name, version and SHA-256 of the sdist."""
    found = re.search(r"^(\w+)==(\S+) --hash=sha256:(\w{64})$", path.read_text(), re.MULTILINE)
    if not found:
        raise SystemExit(f"{path}: no line NAME==VERSION --hash=sha256:DIGEST")
    return found[1], found[2], found[3]


def fetch(folder: Path) -> None:
    """Let pip download the sdist, from the index that its settings name."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    # pip asks the sdist for its name; this build's environment already has what the sdist needs for the answer.
    command += ["--no-build-isolation", "--require-hashes", "-r", str(HERE / "source.txt"), "-d", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    subprocess.run(command, env=environment, stdout=sys.stderr, check=False)


if __name__ == "__main__":
    sys.stdout.write(str(source(Path(os.environ.get(VARIABLE) or HERE).absolute())))
