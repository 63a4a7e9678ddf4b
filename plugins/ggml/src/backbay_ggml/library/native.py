"""Native code of ours beside libggml: a library without it lets ggml do the work."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

from backbay.plugin import raise_if_starved

from .abi import Ptr, ffi

STEM = "libbackbay_attention"
ENDING = ".dylib" if sys.platform == "darwin" else ".so"
MOST_FEATURES = 128  # of a head
EVERY_THREAD = -1  # GGML_N_TASKS_MAX


@dataclass(frozen=True)
class NativeAttention:
    """Attention without a mask, of f32, for `ggml_custom_4d`."""

    function: Ptr
    instructions: str


def find_attention(folder: Path) -> NativeAttention | None:
    """The code in the folder of libggml; None if there is none, or none for this processor."""
    path = folder / f"{STEM}{ENDING}"
    if not path.is_file():
        return None
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise_if_starved(error, f"loading {path}")
        return None
    ask = loaded.backbay_attention_instructions
    ask.restype = ctypes.c_char_p
    instructions = ask()
    if instructions is None:
        return None
    address = ctypes.cast(loaded.backbay_attention, ctypes.c_void_p).value
    function = ffi.cast("void (*)(ggml_tensor *, int, int, void *)", address)
    return NativeAttention(function, instructions.decode())
