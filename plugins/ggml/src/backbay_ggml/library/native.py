"""Native code of ours beside libggml. Where it is missing, off, or fails its trial, ggml does the work.

The environment variable turns it off with 0, or names another file.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from backbay.internals import raise_if_starved, refuse_other_cpu, try_purpose

from .abi import Ptr, ffi

VARIABLE = "BACKBAY_GGML_NATIVE"
OFF = "0"
STEM = "libbackbay_kernels"
ENDING = ".dylib" if sys.platform == "darwin" else ".so"
ATTENTION, CONVOLUTION, PRODUCTS = "attention", "convolution", "products"  # purposes
RECURRENCE, ROWS, TILES = "recurrence", "rows", "tiles"
EMULATED = "emulated AMX"  # instructions of tests' code for tiles
MOST_TAPS = 32  # of a convolution
MOST_KEYS = 256  # of a head's state in recurrences
FORMATS = ("Q4_0", "Q4_0_X8", "Q8_0", "Q4_K", "Q4_K_X8", "Q6_K")  # as in lib/products.h; X8: as ggml repacks
WITH_TILES = 64  # TILES of lib/products.h
MOST_ALONE = 1024  # numbers of a column that each thread encodes for itself, as in lib/products.h
ENTRY = 48  # bytes of 32 numbers of a column in codes
EVERY_THREAD = -1  # GGML_N_TASKS_MAX
TIMEOUT = 60.0  # seconds
MISSING = "there is no native code for this CPU beside the library"


@dataclass(frozen=True)
class NativeAttention:
    """Attention over a history, in functions for `ggml_custom_4d`."""

    cells: Ptr  # a table of the cells that queries see, from a mask
    whole: Ptr  # the result
    parts: Ptr  # the sums of parts of the history
    sum: Ptr  # the result, from these
    instructions: str


@dataclass(frozen=True)
class NativeRows:
    """Copies of rows: `join` and `pick` for `ggml_custom_4d`, `put` for `ggml_custom_inplace`."""

    join: Ptr
    pick: Ptr
    put: Ptr


@dataclass(frozen=True)
class NativeRecurrence:
    """The ops of these names for `ggml_custom_4d`, of up to MOST_KEYS numbers in a row of a state."""

    delta_rule: Ptr
    ssm_scan: Ptr


@dataclass(frozen=True)
class NativeProducts:
    """Products of quantized weights for `ggml_custom_4d`: columns in codes, and their products with weights.

    `alone`, which older files lack, multiplies a single column of at most MOST_ALONE numbers in one op. All get the
    `number` of the weights' format; `formats` are those with code for this processor. `tiles`: many columns take AMX.
    """

    columns: Ptr
    products: Ptr
    alone: Ptr | None
    formats: frozenset[str]
    instructions: str
    tiles: bool = False

    def number(self, format_: str) -> Ptr:
        """What the functions are given for a format."""
        return ffi.cast("void *", FORMATS.index(format_) + (WITH_TILES if self.tiles else 0))


@final
class NativeCode:
    """The functions of a file of native code. Each purpose has its own instruction sets, and its own trial."""

    def __init__(self, path: Path, loaded: Any) -> None:
        self.path, self._loaded = path, loaded
        self._found: dict[str, str] = {}

    def instructions(self, purpose: str) -> str | None:
        """The instruction set that this processor runs, of those that a purpose has code for; None if there is none."""
        ask = getattr(self._loaded, f"backbay_{purpose}_instructions", None)
        if ask is None:  # an older file
            return None
        ask.restype = ctypes.c_char_p
        answer: bytes | None = ask()
        return None if answer is None else answer.decode()

    def function(self, name: str) -> Ptr:
        """A function for ggml's custom ops."""
        address = ctypes.cast(getattr(self._loaded, f"backbay_{name}"), ctypes.c_void_p).value
        return ffi.cast("void (*)(ggml_tensor *, int, int, void *)", address)

    def why_not(self, purpose: str) -> str:
        """Why the code for a purpose cannot be used; empty if it can."""
        if purpose not in self._found:
            self._found[purpose] = (
                MISSING if self.instructions(purpose) is None else _tried(self.path, purpose)
            )
        return self._found[purpose]

    @cached_property
    def attention(self) -> NativeAttention | None:
        """Attention, if it can be used."""
        if self.why_not(ATTENTION):
            return None
        return NativeAttention(
            self.function("visible_cells"),
            self.function("attention"),
            self.function("attention_parts"),
            self.function("attention_sum"),
            self.instructions(ATTENTION) or "",
        )

    @cached_property
    def convolution(self) -> Ptr | None:
        """The convolution of channels that adjoin, for `ggml_custom_4d`, if it can be used."""
        return None if self.why_not(CONVOLUTION) else self.function("convolution")

    @cached_property
    def recurrence(self) -> NativeRecurrence | None:
        """Recurrences, if they can be used."""
        if self.why_not(RECURRENCE):
            return None
        return NativeRecurrence(self.function("delta_rule"), self.function("selective_scan"))

    @cached_property
    def rows(self) -> NativeRows | None:
        """Copies of rows, if they can be used."""
        return None if self.why_not(ROWS) else NativeRows(*map(self.function, ("join", "pick", "put")))

    @cached_property
    def products(self) -> NativeProducts | None:
        """Products, if they can be used."""
        if self.why_not(PRODUCTS):
            return None
        return self.untried_products(tiles=not self.why_not(TILES))

    def untried_products(self, *, tiles: bool = False) -> NativeProducts:
        """Products, whether they can be used or not."""
        takes = self._loaded.backbay_products_takes
        formats = frozenset(name for number, name in enumerate(FORMATS) if takes(number))
        alone = "product_alone"
        return NativeProducts(
            self.function("columns"),
            self.function("products"),
            self.function(alone) if hasattr(self._loaded, f"backbay_{alone}") else None,
            formats,
            self.instructions(PRODUCTS) or "",
            tiles,
        )


def find_native(folder: Path) -> NativeCode | None:
    """The code that the environment names, else that in the folder of libggml; None if it is off or missing."""
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return None
    # A name without a folder would be looked for among the system's libraries.
    path = Path(named).absolute() if named else folder / f"{STEM}{ENDING}"
    if not path.is_file():
        return None
    try:
        code = NativeCode(path, ctypes.CDLL(str(path)))
    except OSError as error:
        raise_if_starved(error, f"loading {path}")
        return None
    refuse_other_cpu(path, code.instructions(PRODUCTS) or "")
    return code


def _tried(path: Path, purpose: str) -> str:
    """What is wrong with the code for a purpose; empty if nothing is."""
    command = [sys.executable, "-m", "backbay_ggml.library.native_trial", str(path)]
    return try_purpose("ggml-native", path, command, purpose, timeout=TIMEOUT)
