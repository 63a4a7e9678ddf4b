"""Trials: whether an arrangement works on this machine, and for which dtypes it, or a form of products, pays."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from backbay import DType
from backbay.internals import ended_from_outside, processor, run_helper
from backbay.plugin import CachedValue

from ..library.library import Library
from ..library.location import VARIABLE
from .arrangements import AMX, REPACK, TYPES, Arrangement, buffer_types

ONE_COLUMN = "ONE_COLUMN"  # the trial of another form of products of one column; see `lowering.products`
WRONG = "wrong results"  # the begin of what the trial prints if the arrangement computes wrongly
TIMEOUT = 120.0  # seconds


@dataclass(frozen=True)
class TrialResult:
    """Why an arrangement cannot be used (empty if it can), and the dtypes for which it pays.

    `spaced` are the dtypes whose products need more rows, and `native` those that native code multiplies in this
    arrangement; see `Arrangement`. A result that `lasts` tells of this
    machine, not of a trial that was killed or got no memory.
    """

    why_not: str = ""
    types: tuple[str, ...] = ()
    spaced: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    lasts: bool = field(default=True, compare=False)


def usable_arrangements(library: Library) -> list[Arrangement]:
    """The arrangements that work here, for the dtypes for which they pay, the best first."""
    found = []
    for name in (AMX, REPACK):
        if name not in buffer_types(library):
            continue
        result = trial_result(library, name)
        types, spaced, native = (
            [dtype for dtype in TYPES if str(dtype) in names]
            for names in (result.types, result.spaced, result.native)
        )
        if not result.why_not and types:
            found.append(Arrangement(library, name, types, spaced, native))
    return found


@cache
def other_form_pays(library: Library) -> frozenset[DType]:
    """The dtypes whose products of one column are faster in another form, with the kernels of llamafile for AVX2."""
    features = library.features()
    if "LLAMAFILE" not in features or "AVX2" not in features:
        return frozenset()
    types = trial_result(library, ONE_COLUMN).types
    return frozenset(dtype for dtype in DType if str(dtype) in types)


def trial_result(library: Library, name: str) -> TrialResult:
    """The result of a trial, remembered for this library on this machine."""
    kept = _kept(library, name)
    known = _recalled(kept)
    if known is not None:
        return known
    with kept.found_once():  # two trials at once would measure each other
        known = _recalled(kept)
        if known is not None:
            return known
        result = run_trial(library, name)
        if result.lasts:
            kept.keep(asdict(result))
        return result


def _recalled(kept: CachedValue) -> TrialResult | None:
    try:
        return _parsed(kept.recall())
    except (KeyError, TypeError):  # nothing was kept, or nonsense
        return None


def run_trial(library: Library, name: str) -> TrialResult:
    """Run a trial in a child process: if the CPU lacks a promised instruction, only the child dies."""
    module = "column_trial" if name == ONE_COLUMN else "trial_process"
    command = [sys.executable, "-m", f"backbay_ggml.weights.{module}", name]
    environment = {**os.environ, VARIABLE: str(library.path), "GGML_NO_BACKTRACE": "1"}
    try:
        done = run_helper(command, env=environment, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return TrialResult(f"the trial did not end: {error}", lasts=False)
    if done.returncode == 0:
        try:
            return _parsed({"why_not": "", **json.loads(done.stdout)})
        except (ValueError, KeyError, TypeError):
            return TrialResult(f"the trial's output cannot be read: {done.stdout!r}", lasts=False)
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    if done.returncode < 0:
        lasts = not ended_from_outside(done.returncode, done.stderr)
        return TrialResult(f"signal {-done.returncode}", lasts=lasts)
    return TrialResult(f"{last[0]} (exit {done.returncode})", lasts=done.stdout.startswith(WRONG))


def _kept(library: Library, name: str) -> CachedValue:
    """The place of a result, which depends on the trial, the library and the CPU."""
    files = sorted(library.path.parent.glob("libggml*"))
    if library.native is not None:
        files.append(library.native.path)
    facts: list[Any] = [library.version, str(library.path), platform.machine(), processor()]
    facts += [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return CachedValue("trials", f"ggml-{name.lower()}", facts)


def _parsed(fields: Any) -> TrialResult:
    types, spaced, native = (tuple(map(str, fields[key])) for key in ("types", "spaced", "native"))
    return TrialResult(str(fields["why_not"]), types, spaced, native)
