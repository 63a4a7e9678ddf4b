"""Writes the libraries of the server's page, from their packages on npm, and their licences.

python lab/server/page_libraries.py            write them
python lab/server/page_libraries.py --check    exit with status 1 if a file differs
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "apps/server/src/backbay_server/page/libraries"
LIBRARIES = {  # the file here: its package and version, and its place in the package
    "markdown-it.js": ("markdown-it@15.0.3", "dist/browser/markdown-it.esm.min.mjs"),
    "highlight.js": ("@highlightjs/cdn-assets@11.12.0", "es/highlight.min.js"),
}
MAP = re.compile(rb"\n//# sourceMappingURL=.*\n?\Z")


def libraries() -> dict[str, bytes]:
    """The files by name."""
    found, licences = {}, b""
    with tempfile.TemporaryDirectory() as folder:
        for name, (package, place) in LIBRARIES.items():
            packing = subprocess.run(
                ["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True, text=True
            )
            with tarfile.open(Path(folder, packing.stdout.strip())) as packed:
                code, licence = (_read(packed, f"package/{each}") for each in (place, "LICENSE"))
            found[name] = MAP.sub(b"\n", code)
            licences += f"{name} is {place} of {package}:\n\n".encode() + licence.strip() + b"\n\n\n"
    return {**found, "LICENSES.txt": licences.rstrip() + b"\n"}


def _read(packed: tarfile.TarFile, place: str) -> bytes:
    file = packed.extractfile(place)
    assert file is not None, place
    return file.read()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    checking = parser.parse_args().check
    differing = [
        (FOLDER / name, content)
        for name, content in libraries().items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_bytes() != content
    ]
    for path, content in differing:
        print(path)
        if not checking:
            path.write_bytes(content)
    return 1 if checking and differing else 0


if __name__ == "__main__":
    sys.exit(main())
