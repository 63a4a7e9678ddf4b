"""Writes src/backbay_ggml/library/_abi.py: the declarations of ggml.cdef.h, parsed in advance for a fast import."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cffi

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "backbay_ggml" / "library" / "_abi.py"


def generate() -> str:
    """The text of the module."""
    ffi = cffi.FFI()
    ffi.set_source("backbay_ggml.library._abi", None)
    ffi.cdef((HERE / "ggml.cdef.h").read_text())
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "_abi.py"
        ffi.emit_python_code(str(made))
        return "# ruff: noqa\n# mypy: ignore-errors\n" + made.read_text()


def main() -> int:
    """Write the module; with --check, only compare it, and return 1 if it differs."""
    text = generate()
    if "--check" in sys.argv:
        return int(TARGET.read_text() != text)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
