"""A model file with a few small weights, written once per process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backbay import DType

from ..draw.model_file import write_model

WIDTH = 8
WEIGHTS: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (WIDTH, 5),
    "blk.0.attn_k.weight": (WIDTH, 3),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.1.attn_q.weight": (WIDTH, WIDTH),
    "output.weight": (WIDTH, 3),
}
"""Names and shapes, dimension 0 first."""
HALF = ("blk.0.attn_k.weight", "blk.1.attn_q.weight")
"""Names of the f16 weights; the others are f32. The first leaves a gap up to the next multiple of 32 bytes."""


def weight(name: str) -> NDArray[np.float64]:
    """The numbers of a weight: small integers, different for each weight."""
    shape = WEIGHTS[name]
    rng = np.random.default_rng(list(WEIGHTS).index(name))
    return rng.integers(-3, 4, shape[::-1]).astype(np.float64)


@cache
def small_model() -> Path:
    """The path of the file, which is removed when the process exits."""
    folder = Path(tempfile.mkdtemp(prefix="backbay-conformance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    stored = (
        (name, DType.F16, weight(name).astype(np.float16))
        if name in HALF
        else (name, DType.F32, weight(name).astype(np.float32))
        for name in WEIGHTS
    )
    return write_model(folder / "small.gguf", 2, stored, WIDTH)
