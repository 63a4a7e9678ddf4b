"""Native code of ours as custom ops of ONNX Runtime. Where it is missing, off, or fails its trial, ONNX Runtime does the work.

The environment variable turns it off with 0, or names another file.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from backbay import DType
from backbay.internals import raise_if_starved, refuse_other_cpu, try_purpose

from .runtime import runtime

VARIABLE = "BACKBAY_ONNX_NATIVE"
OFF = "0"
DOMAIN = "backbay"  # of the custom ops
DISTRIBUTION = "backbay-ggml-lib"
STEM = "libbackbay_kernels"
FORMATS = {DType.Q4_0: 0, DType.Q8_0: 2, DType.Q4_K: 3, DType.Q6_K: 5}  # as in products.h
WITH_TILES = 64  # TILES of products.h
ATTENTION, GATES, PRODUCTS, RECURRENCE = "attention", "gates", "products", "recurrence"  # purposes
PURPOSES = (PRODUCTS, ATTENTION, GATES, RECURRENCE)
TILES = "tiles"  # a purpose beside products, which few processors have code for
EMULATED = "emulated AMX"  # instructions of tests' code for tiles
MOST_KEYS = 256  # numbers in a row of a state, in recurrences
TIMEOUT = 60.0  # seconds
MISSING = "native code is not installed; remedy, in a clone of backbay: pip install ./plugins/ggml/lib"


@dataclass(frozen=True)
class NativeCode:
    """A file of custom ops, with the purposes that it serves on this machine."""

    path: Path
    products: Mapping[DType, int]  # by the dtype of the weights: the format that the ops are given
    attends: bool
    gates: bool  # silu
    recurs: bool  # the delta rule and the selective scan


@cache
def native_code() -> NativeCode | None:
    """The native code that sessions on the CPU use; None if there is none."""
    serves = {purpose: not why_not_native(purpose) for purpose in PURPOSES}
    if not any(serves.values()):
        return None
    path = _found()
    products = formats_of(path, tiles=not why_not_native(TILES)) if serves[PRODUCTS] else {}
    return NativeCode(path, products, serves[ATTENTION], serves[GATES], serves[RECURRENCE])


@cache
def why_not_native(purpose: str) -> str:
    """Why native code does not serve a purpose; empty if it does."""
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return f"{VARIABLE}={OFF} turns it off"
    path = _found()
    if not path.is_file():
        return f"{VARIABLE} names {named}, and there is no such file" if named else MISSING
    try:
        found, for_products = (instructions(path, each) for each in (purpose, PRODUCTS))
    except (OSError, AttributeError) as error:
        raise_if_starved(error, f"loading {path}")
        return f"it cannot be loaded: {error}"
    refuse_other_cpu(path, for_products)
    return _tried(path, purpose) if found else "there is none for this processor"


def instructions(path: Path, purpose: str) -> str:
    """The instruction set that this processor runs, of those that a file has code for; empty if there is none."""
    loaded: Any = ctypes.CDLL(str(path))
    _ = loaded.RegisterCustomOps
    ask = getattr(loaded, f"backbay_{purpose}_instructions", None)
    if ask is None:  # an older file
        return ""
    ask.restype = ctypes.c_char_p
    return (ask() or b"").decode()


def formats_of(path: Path, *, tiles: bool = False) -> dict[DType, int]:
    """The formats that products of a file are given, by the dtypes that they take on this processor.

    `tiles`: many columns are multiplied by AMX.
    """
    takes = ctypes.CDLL(str(path)).backbay_products_takes
    return {dtype: number + WITH_TILES * tiles for dtype, number in FORMATS.items() if takes(number)}


def _found() -> Path:
    """The file that the environment names, else that of the installed distribution."""
    named = os.environ.get(VARIABLE)
    # A name without a folder would be looked for among the system's libraries.
    return Path(named).absolute() if named else next(_installed(), Path())


def _installed() -> Iterator[Path]:
    try:
        listed = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        return
    for entry in listed:
        if entry.name.startswith(STEM):
            yield Path(str(entry.locate()))


def _tried(path: Path, purpose: str) -> str:
    """What is wrong with the code for a purpose; empty if nothing is."""
    command = [sys.executable, "-m", "backbay_onnx.session.native_trial", str(path)]
    facts = [runtime().__version__]
    return try_purpose("onnx-native", path, command, purpose, timeout=TIMEOUT, facts=facts)
