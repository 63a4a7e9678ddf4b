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
from .location import INSTALL

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
class NativeProducts:
    """Products of quantized weights for `ggml_custom_4d`: columns in codes, and their products with weights.

    `alone`, which older files lack, multiplies a single column of at most MOST_ALONE numbers in one op. All get the
    `number` of the weights' format; `formats` are those with code for this processor. `tiles`: many columns take AMX.
    """

    columns: Ptr
    products: Ptr
    alone: Ptr | None
    formats: frozenset[str]
    tiles: bool

    def number(self, format_: str) -> Ptr:
        """What the functions are given for a format."""
        return ffi.cast("void *", FORMATS.index(format_) + (WITH_TILES if self.tiles else 0))


@final
class NativeCode:
    """The functions of a file of native code, if there is one. Each purpose has its own instruction sets, and its own trial."""

    def __init__(self, path: Path | None, loaded: Any, missing: str = MISSING) -> None:
        self.path, self._loaded, self._missing = path, loaded, missing
        self._found: dict[str, str] = {}
        self._functions: dict[str, Ptr] = {}

    def instructions(self, purpose: str) -> str | None:
        """The instruction set that this processor runs, of those that a purpose has code for; None if there is none."""
        ask = getattr(self._loaded, f"backbay_{purpose}_instructions", None)
        if ask is None:  # no file, or an older one
            return None
        ask.restype = ctypes.c_char_p
        answer: bytes | None = ask()
        return None if answer is None else answer.decode()

    def function(self, name: str) -> Ptr:
        """A function for ggml's custom ops."""
        if name not in self._functions:
            address = ctypes.cast(getattr(self._loaded, f"backbay_{name}"), ctypes.c_void_p).value
            self._functions[name] = ffi.cast("void (*)(ggml_tensor *, int, int, void *)", address)
        return self._functions[name]

    def why_not(self, purpose: str) -> str:
        """Why the code for a purpose cannot be used; empty if it can."""
        if purpose not in self._found:
            self._found[purpose] = self._missing
            if self.path is not None and self.instructions(purpose) is not None:
                command = [sys.executable, "-m", "backbay_ggml.library.native_trial", str(self.path)]
                found = try_purpose("ggml-native", self.path, command, purpose, timeout=TIMEOUT)
                self._found[purpose] = found
        return self._found[purpose]

    def has(self, purpose: str) -> bool:
        return not self.why_not(purpose)

    @cached_property
    def products(self) -> NativeProducts | None:
        """Products, if they can be used."""
        return self.untried_products(tiles=self.has(TILES)) if self.has(PRODUCTS) else None

    def untried_products(self, *, tiles: bool = False) -> NativeProducts:
        """Products, whether they can be used or not."""
        takes = self._loaded.backbay_products_takes
        formats = frozenset(name for number, name in enumerate(FORMATS) if takes(number))
        has_alone = hasattr(self._loaded, "backbay_product_alone")
        alone = self.function("product_alone") if has_alone else None
        return NativeProducts(self.function("columns"), self.function("products"), alone, formats, tiles)


def find_native(folder: Path) -> NativeCode:
    """The code that the environment names, else that in the folder of libggml."""
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return NativeCode(None, None, f"{VARIABLE}={OFF} turns native code off")
    # A name without a folder would be looked for among the system's libraries.
    path = Path(named).absolute() if named else folder / f"{STEM}{ENDING}"
    try:
        if path.is_file():
            code = NativeCode(path, ctypes.CDLL(str(path)))
            refuse_other_cpu(path, code.instructions(PRODUCTS) or "")
            return code
    except OSError as error:
        raise_if_starved(error, f"loading {path}")
    if named:
        return NativeCode(None, None, f"{VARIABLE} names {named}, and no such library can be loaded")
    return NativeCode(None, None, f"{MISSING}; {INSTALL}")
