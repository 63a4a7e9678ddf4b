"""Time to prepare a JPEG file of 12 megapixels for each family, beside Pillow's own decoding and resizing of it.

The exit status is 1 if a family within its usual sizes takes over a second of processor time.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image as Pillow
from sides import write_json

from backbay_engine.images.image import Image
from backbay_engine.images.preparations.preparation import Preparation
from backbay_engine.images.preparations.stretched import CentreCropPreparation, QwenPreparation, Squash
from backbay_engine.images.preparations.tiles import Anyres, MllamaPreparation

CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
PREPARATIONS: dict[str, Preparation] = {
    "gemma3": Squash(size=896, tokens=256, **HALF),
    "llava 1.5": CentreCropPreparation(size=336, tokens=(336 // 14) ** 2, **CLIP),
    "llava 1.6": Anyres(size=336, patch=14, pinpoints=PINPOINTS, **CLIP),
    "mllama": MllamaPreparation(size=560, patch=14, **CLIP),
    "qwen2.5-vl, 1024 tokens": QwenPreparation(**CLIP).limited(1024),
    "qwen2.5-vl, 15301 tokens": QwenPreparation(**CLIP),
}
LARGE = "qwen2.5-vl, 15301 tokens"  # copies as many values as the file has
FLOOR = 1.0  # seconds


def photo() -> bytes:
    """A JPEG file of 4000 x 3000 smooth and noisy pixels, about 3 MB."""
    values = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    out = io.BytesIO()
    Pillow.fromarray(values).resize((4000, 3000), Pillow.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def pillow(data: bytes) -> Any:
    """Decoded, resized and normalised as transformers' processors with Pillow do it, for gemma3."""
    with Pillow.open(io.BytesIO(data)) as picture:
        small = picture.convert("RGB").resize((896, 896), Pillow.Resampling.BILINEAR)
    return ((np.asarray(small, np.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)


def seconds(action: Callable[[], object]) -> float:
    """Processor time, that of other threads of this process included."""
    started = time.process_time()
    action()
    return time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = photo()
    sides: dict[str, Callable[[], object]] = {"Pillow, as for gemma3": lambda: pillow(data)}
    for name, preparation in PREPARATIONS.items():
        sides[name] = lambda preparation=preparation: preparation.prepare(Image(data).rgb())
    rounds = [{name: seconds(side) for name, side in sides.items()} for _ in range(options.rounds)]
    times = {name: median(each[name] for each in rounds) for name in sides}
    print(f"{'decoded and prepared':<26} {'ms':>6}")
    for name, value in times.items():
        print(f"{name:<26} {value * 1e3:>6.0f}")
    write_json(options.json, {"seconds": times})
    return int(max(value for name, value in times.items() if name != LARGE) > FLOOR)


if __name__ == "__main__":
    sys.exit(main())
