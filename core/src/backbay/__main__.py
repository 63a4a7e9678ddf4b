"""`python -m backbay` is the command `backbay`."""

from __future__ import annotations

from .cli.program import console

console()
