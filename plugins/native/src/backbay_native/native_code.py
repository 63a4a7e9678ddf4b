"""Native code: the file with it, and what of it runs on this machine, as a trial in a child process finds.

An environment variable of each plugin turns it off with 0, or names another file.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, final

from backbay import BackendUnavailableError
from backbay.internals import (
    cached_property,
    ended_from_outside,
    exit_name,
    forced_cpu,
    processor,
    raise_if_starved,
    run_helper,
)
from backbay.plugin import CachedValue

OFF = "0"
DISTRIBUTION, STEM = "backbay-native", "libbackbay_kernels"
ATTENTION, CONVOLUTION, EXPERTS, GATES = "attention", "convolution", "experts", "gates"  # purposes
PRODUCTS, RECURRENCE, ROWS = "products", "recurrence", "rows"
TILES = "tiles"  # of many columns, a purpose beside products, which few processors have code for
EMULATED = "emulated AMX"  # instructions of tests' code for tiles
MOST_TAPS = 32  # of a convolution
MOST_KEYS = 256  # numbers in a row of a state, in recurrences
FORMATS = ("Q4_0", "Q4_0_X8", "Q8_0", "Q4_K", "Q4_K_X8", "Q6_K")  # as in products.h; X8: as ggml repacks
WITH_TILES = 64  # TILES of products.h
MOST_ALONE = 1024  # numbers of a column that each thread encodes for itself, as in products.h
ENTRY = 48  # bytes of 32 numbers of a column in codes
INSTRUCTIONS = {
    "x86-64": "",
    "avx2": "AVX2",
    "avx2-vnni": "AVX2 with VNNI",
    "avx512": "AVX-512",
    "avx512-vnni": "AVX-512 with VNNI",
    "amx": "AVX-512 with VNNI",
}
"""The instructions that products take on each kind of CPU that BACKBAY_CPU names."""
TRIAL = (sys.executable, "-m", "backbay_native.trial_child")
CODE, RETRY = "the faster native code", "the next process tries it again"
TIMEOUT = 60.0  # seconds
MISSING = "no native code was compiled; remedy, with a C++ compiler, in a clone of backbay: pip install ./plugins/native"


@final
class NativeCode:
    """A file of native code, or why there is none. Each purpose has its own instruction sets, and its own trial."""

    def __init__(self, path: Path | None, why_none: str = MISSING) -> None:
        self.path, self._why_none = path, why_none
        self._loaded: Any = None if path is None else ctypes.CDLL(str(path))
        self._faults: dict[str, str] = {}

    def instructions(self, purpose: str) -> str:
        """The instruction set that this processor runs, of those that a purpose has code for; empty if there is none."""
        ask = getattr(self._loaded, f"backbay_{purpose}_instructions", None)
        if ask is None:  # no file, or an older one
            return ""
        ask.restype = ctypes.c_char_p
        return (ask() or b"").decode()

    def function(self, name: str) -> Any:
        """A function of the file, for ctypes."""
        return getattr(self._loaded, f"backbay_{name}")

    def why_not(self, purpose: str) -> str:
        """Why the code for a purpose cannot be used; empty if it can."""
        if purpose not in self._faults:  # each node of a graph asks
            self._faults[purpose] = self._fault(purpose)
        return self._faults[purpose]

    def _fault(self, purpose: str) -> str:
        if self.path is None:
            return self._why_none
        if not self.instructions(purpose):
            return "there is none for this processor"
        together = self._tried_together
        return together[purpose] if together else self._trial(purpose)

    def has(self, purpose: str) -> bool:
        return not self.why_not(purpose)

    @cached_property
    def formats(self) -> Mapping[str, int]:
        """The formats of weights whose products can be used, with the numbers that functions get for them."""
        return self.untried_formats(tiles=self.has(TILES)) if self.has(PRODUCTS) else {}

    @cached_property
    def formats_of_experts(self) -> Mapping[str, int]:
        """The same for products by experts."""
        return self.formats if self.has(EXPERTS) else {}

    def untried_formats(self, *, tiles: bool = False) -> dict[str, int]:
        """The formats with code for this processor; with `tiles`, AMX multiplies many columns."""
        takes = self.function("products_takes")
        return {name: n + WITH_TILES * tiles for n, name in enumerate(FORMATS) if takes(n)}

    def describe(self, purpose: str, engine: str) -> str:
        """A line for `backbay doctor`: for which instructions native code serves a purpose, or why an engine does."""
        if why_not := self.why_not(purpose):
            return f"by {engine}: {why_not}"
        line = f"by native code, for {self.instructions(purpose)}"
        if purpose != PRODUCTS or not self.instructions(TILES):
            return line
        why_not = self.why_not(TILES)
        return f"{line}, without AMX: {why_not}" if why_not else f"{line}, and for AMX where columns are many"

    @cached_property
    def _tried_together(self) -> Mapping[str, str]:
        """What is wrong with each purpose; empty if the process that tried them all died of one."""
        found = self._trial()
        return json.loads(found) if found.startswith("{") else {}

    def _trial(self, *purpose: str) -> str:
        """What a child process finds wrong with a purpose, or as JSON with each.

        The answer is remembered for this file and this machine. If the CPU lacks an instruction that the code takes
        for granted, only the child dies.
        """
        assert self.path is not None
        status = self.path.stat()
        facts = [str(self.path), status.st_size, status.st_mtime_ns, platform.machine(), processor()]
        answer = CachedValue("trials", "-".join(["native", *purpose]), facts)
        if isinstance(known := answer.recall(), str):
            return known
        try:
            done = run_helper([*TRIAL, str(self.path), *purpose], timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            return f"{CODE} was tried for {TIMEOUT:g} s without a result; {RETRY}"
        except OSError as error:
            return f"{CODE} could not be tried: {error}; {RETRY}"
        found, lasts = done.stdout.strip(), True
        if done.returncode != 0:
            lasts = done.returncode < 0 and not ended_from_outside(done.returncode, done.stderr)
            last = "".join(f" ({line})" for line in (done.stdout + done.stderr).strip().splitlines()[-1:])
            remedy = "`backbay cache clear trials` lets it be tried again" if lasts else RETRY
            found = f"{CODE} ended with {exit_name(done.returncode)} when it was tried{last}; {remedy}"
        if lasts:
            answer.keep(found)
        return found


def find_native(variable: str) -> NativeCode:
    """The code in the file that an environment variable names, else in that of the installed package."""
    named = os.environ.get(variable)
    if named == OFF:
        return NativeCode(None, f"{variable}={OFF} turns it off")
    # A name without a folder would be looked for among the system's libraries.
    path = Path(named).absolute() if named else installed_file()
    if path is None or not path.is_file():
        return NativeCode(None, f"{variable} names {named}, and there is no such file" if named else MISSING)
    try:
        code = NativeCode(path)
    except OSError as error:
        raise_if_starved(error, f"loading {path}")
        return NativeCode(None, f"it cannot be loaded: {error}")
    _refuse_other_cpu(path, code.instructions(PRODUCTS))
    return code


def installed_file() -> Path | None:
    """The file of the installed package."""
    try:
        listed = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in listed if file.name.startswith(STEM)), None)


def _refuse_other_cpu(path: Path, instructions: str) -> None:
    """Refuse code whose products take other instructions than those of the kind that BACKBAY_CPU names."""
    kind = forced_cpu()
    if kind and instructions != INSTRUCTIONS[kind]:
        raise BackendUnavailableError(
            f"BACKBAY_CPU={kind}, but the code of {path} takes {instructions or 'no special instructions'}: "
            "this CPU has no others, or the file is too old to heed BACKBAY_CPU"
        )
