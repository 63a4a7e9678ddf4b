"""Where an error comes from: the last place in the plugin's own files."""

from __future__ import annotations

import traceback
from typing import Any

SHARED = {"abc", "backbay", "backbay_conformance", "builtins"}
"""Packages that no plugin owns."""


def origin(error: BaseException, kind: type[Any]) -> str:
    """The last place in the files of a backend's class that an error passed, as "engine.py:58, in view"; or ""."""
    owners = {_package(base.__module__) for base in kind.__mro__} - SHARED
    places = [
        f"{frame.f_code.co_filename.rpartition('/')[2]}:{line}, in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _package(str(frame.f_globals.get("__name__"))) in owners
    ]
    return places[-1] if places else ""


def _package(module: str) -> str:
    return module.partition(".")[0]
