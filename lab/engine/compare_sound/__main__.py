"""Compares log-mel spectrograms with transformers' WhisperFeatureExtractor: PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_sound

Needs torch and transformers. Sounds are of all lengths and loudnesses, padded and not; the exit status is 1 if a square
error is above 1e-5 of the squares. `--write` makes the references of apps/engine/tests/sound anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sounds import LOUDNESS, heard
from transformers import WhisperFeatureExtractor

from backbay_engine.sound.mel import log_mel

REFERENCES = Path(__file__).parents[3] / "apps" / "engine" / "tests" / "data" / "sound"
SECONDS = (0.04, 0.1, 1.0, 3.3333, 29.99, 30.0)
STORED = (0.1, 3.3333)
LIMIT = 1e-5
FRAMES = 7  # of a spectrogram, one is stored


def spectrograms() -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
    """The name of each sound, the reference's spectrogram, and ours."""
    for bins in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=bins)
        for kind in LOUDNESS:
            for seconds in SECONDS:
                sound = heard(seconds, kind)
                whole = np.pad(sound, (0, 30 * 16_000 - len(sound)))
                for padding, samples in (("longest", sound), ("max_length", whole)):
                    right: Any = extractor(sound, sampling_rate=16_000, padding=padding, return_tensors="np")
                    name = f"{kind} {seconds} {bins} {padding}"
                    yield name, right.input_features[0], log_mel(samples, bins)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    worst, stored = 0.0, {}
    for name, right, ours in spectrograms():
        error = float(((right - ours) ** 2).sum() / (right**2).sum())
        worst = max(worst, error)
        if not error <= LIMIT:
            print(f"{name}: {error:.1e}")
        if float(name.split()[1]) in STORED and name.endswith("longest"):
            stored[name] = right[:, ::FRAMES]
    print(f"the worst square error is {worst:.1e}")
    if args.write:
        REFERENCES.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(REFERENCES / "mel.npz", **stored)
    return int(not worst <= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
