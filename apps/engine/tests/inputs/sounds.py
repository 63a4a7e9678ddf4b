"""Sounds for tests: tones that come and go, with some noise, from a seed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
LOUDNESS = {"usual": 0.3, "quiet": 1e-5, "faint": 1e-7, "loud": 1.0, "silent": 0.0}


def heard(seconds: float, kind: str = "usual", *, rate: int = RATE, seed: int = 0) -> NDArray[np.float32]:
    """A sound of one channel; silent after two thirds if it is loud."""
    rng, count = np.random.default_rng(seed), round(seconds * rate)
    time = np.arange(count) / rate
    pitch = 150 * 2 ** (3 * np.sin(2 * np.pi * 0.4 * time + seed))
    tone = np.sin(2 * np.pi * np.cumsum(pitch) / rate) * np.sin(2 * np.pi * 1.3 * time) ** 2
    sound = LOUDNESS[kind] * (0.9 * tone + 0.02 * rng.standard_normal(count))
    if kind == "loud":
        sound[count * 2 // 3 :] = 0
    return sound.astype(np.float32)


def as_file(samples: NDArray[Any], rate: int = RATE, kind: str = "WAV", subtype: str | None = None) -> bytes:
    """The bytes of a file with a sound."""
    import soundfile

    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind, subtype=subtype)
    return out.getvalue()
