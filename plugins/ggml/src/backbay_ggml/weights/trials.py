"""Trials of arrangements: whether one works on this machine, and for which dtypes it pays."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backbay import BackbayError
from backbay.plugin import replacing

from ..library.library import Library
from ..library.location import VARIABLE
from .arrangements import AMX, REPACK, TYPES, Arrangement, buffer_types

TIMEOUT = 120.0  # seconds

logger = logging.getLogger("backbay.ggml")


@dataclass(frozen=True)
class TrialResult:
    """Why an arrangement cannot be used (empty if it can), and the dtypes for which it pays.

    `spaced` are the dtypes whose products need more rows; see `Arrangement`.
    """

    why_not: str = ""
    types: tuple[str, ...] = ()
    spaced: tuple[str, ...] = ()


def usable_arrangements(library: Library) -> list[Arrangement]:
    """The arrangements that work here, for the dtypes for which they pay, the best first."""
    found = []
    for name in (AMX, REPACK):
        if name not in buffer_types(library):
            continue
        result = trial_result(library, name)
        types, spaced = (
            [dtype for dtype in TYPES if str(dtype) in names] for names in (result.types, result.spaced)
        )
        if not result.why_not and types:
            found.append(Arrangement(library, name, types, spaced))
    return found


def trial_result(library: Library, name: str) -> TrialResult:
    """The result of an arrangement's trial, remembered for this library on this machine."""
    path = _cache_file(library, name)
    result = _remembered(path)
    if result is None:
        result = run_trial(library, name)
        _remember(path, result)
    return result


def run_trial(library: Library, name: str) -> TrialResult:
    """Try an arrangement in a child process: if the CPU lacks a promised instruction, only the child dies."""
    command = [sys.executable, "-m", "backbay_ggml.weights.trial_process", name]
    environment = {**os.environ, VARIABLE: str(library.path), "GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return TrialResult(f"the trial did not end: {error}")
    if done.returncode == 0:
        try:
            return _parsed({"why_not": "", **json.loads(done.stdout)})
        except (ValueError, KeyError, TypeError):
            return TrialResult(f"the trial's output cannot be read: {done.stdout!r}")
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    return TrialResult(
        f"signal {-done.returncode}" if done.returncode < 0 else f"{last[0]} (exit {done.returncode})"
    )


def _cache_file(library: Library, name: str) -> Path:
    """A file whose name depends on the arrangement, the library and the CPU."""
    files = sorted(library.path.parent.glob("libggml*"))
    facts: list[Any] = [name, library.version, str(library.path), platform.machine(), _processor()]
    facts += [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "backbay" / f"ggml-{name.lower()}-{digest}.json"


def _processor() -> str:
    """The model and flags of the CPU, where the system tells them."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return "\n".join(
        line for line in lines[:40] if line.startswith(("model name", "flags", "microcode", "Features"))
    )


def _remembered(path: Path) -> TrialResult | None:
    try:
        return _parsed(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _parsed(fields: dict[str, Any]) -> TrialResult:
    types, spaced = (tuple(map(str, fields[key])) for key in ("types", "spaced"))
    return TrialResult(str(fields["why_not"]), types, spaced)


def _remember(path: Path, result: TrialResult) -> None:
    """Write a result to its file; if that fails, the next process runs the trial again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as (partial,):
            partial.write_text(json.dumps(asdict(result)))
    except (OSError, BackbayError) as error:
        logger.debug("the result of a trial is not kept: %s", error)
