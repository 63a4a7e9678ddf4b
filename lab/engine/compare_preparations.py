"""Compares the preparation of pictures with transformers' processors: PYTHONPATH=apps/engine/tests/inputs python compare_preparations.py

Needs PyTorch, torchvision, transformers and Pillow. Sizes are random; pictures are noise, patterns, and files of all modes.
Shapes, grids, tokens and pixels must be equal; the exit status is 1 if any is not. `--write` makes the references of
apps/engine/tests/images/test_preparations.py anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "compare_vision"))

import minicpmv
import numpy as np
from pictures import CLIP, HALF, drawn, preparations
from PIL import Image as Pillow
from transformers import (
    Gemma3ImageProcessor,
    Idefics3ImageProcessor,
    Llama4ImageProcessor,
    LlavaImageProcessor,
    LlavaNextImageProcessor,
    MiniCPMV4_6ImageProcessor,
    MllamaImageProcessor,
    PixtralImageProcessor,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

from backbay_engine.images.image import Image
from backbay_engine.images.preparations.stretched import PixtralPreparation, QwenPreparation
from backbay_engine.images.preparations.tiles import Anyres, Idefics3Preparation
from backbay_engine.images.prepared_picture import Prepared

REFERENCES = Path(__file__).parents[2] / "apps" / "engine" / "tests" / "data" / "images" / "preparations.json"
SIZES = [(48, 8), (56, 14), (64, 16)]  # of tiles and patches
LARGE = [(336, 14), (560, 14), (896, 14)]
MODES = ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr", "PA"]


class Reference:
    """transformers' processors, with the sizes of `preparations`."""

    def __init__(self, size: int, patch: int) -> None:
        clip, half = ({f"image_{key}": list(value) for key, value in kind.items()} for kind in (CLIP, HALF))
        shortest = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
        square = {"size": {"height": size, "width": size}}
        ours = preparations(size, patch)
        anyres, smart, split = ours["llava-next"], ours["qwen2.5-vl"], ours["idefics3"]
        longest = ours["pixtral"]
        assert isinstance(anyres, Anyres)
        assert isinstance(smart, QwenPreparation)
        assert isinstance(split, Idefics3Preparation)
        assert isinstance(longest, PixtralPreparation)
        self.size, self.patch = size, patch
        limits = {"size": {"shortest_edge": smart.min_pixels, "longest_edge": smart.max_pixels}}
        self.processors: dict[str, Any] = {
            "gemma3": Gemma3ImageProcessor(**square, **half),
            "llava": LlavaImageProcessor(**shortest, **clip),
            "llava pad": LlavaImageProcessor(**shortest, **clip, do_pad=True),
            "llava-next": LlavaNextImageProcessor(
                **shortest, **clip, image_grid_pinpoints=[list(each) for each in anyres.pinpoints]
            ),
            "llama4": Llama4ImageProcessor(**square, **half),
            "mllama": MllamaImageProcessor(**square, **clip, max_image_tiles=4),
            "qwen2.5-vl": Qwen2VLImageProcessor(**limits, **clip, patch_size=patch),
            "idefics3": Idefics3ImageProcessor(
                size={"longest_edge": split.edge},
                max_image_size={"longest_edge": size},
                return_row_col_info=True,
                **half,
            ),
            "minicpm-v-4.6": MiniCPMV4_6ImageProcessor(scale_resolution=size, patch_size=patch, **half),
            "minicpm-v": minicpmv.Processor(scale_resolution=size, patch_size=patch, **half),
            "pixtral": PixtralImageProcessor(
                size={"longest_edge": longest.edge},
                patch_size={"height": 2 * patch, "width": 2 * patch},
                **clip,
            ),
        }

    def families(self, size: tuple[int, int]) -> Iterator[str]:
        """The families whose processors take a picture of this size: one of pixtral may not vanish."""
        yield from (
            name for name in self.processors if name != "pixtral" or max(size) / min(size) < self.size
        )

    def __call__(self, family: str, picture: Pillow.Image) -> SimpleNamespace:
        """Pixels, tokens, grid and aspect ratio id, as the reference has them."""
        found = self.processors[family](images=picture, return_tensors="pt")
        per_tile = (self.size // self.patch) ** 2
        tokens, grid, ratio = per_tile, (1, 1), 0
        if family == "gemma3":
            tokens = 16
        elif family == "llava-next":
            stand_in = SimpleNamespace(
                image_processor=self.processors[family], patch_size=self.patch, num_additional_image_tokens=1,
                vision_feature_select_strategy="default", image_token="i",
                _get_unpadded_features=lambda *sizes: LlavaNextProcessor._get_unpadded_features(None, *sizes),
            )  # fmt: skip
            stand_in._get_number_of_features = lambda *sizes: LlavaNextProcessor._get_number_of_features(
                stand_in, *sizes
            )
            tokens = len(LlavaNextProcessor.replace_image_token(stand_in, found, 0))
            grid = None
        elif family == "mllama":
            ratio = int(found["aspect_ratio_ids"][0, 0])
            grids = [(h, w) for h in range(1, 5) for w in range(1, 5) if h * w <= 4]
            tokens, grid = 4 * (per_tile + 1), grids[ratio - 1]
        elif family == "llama4":
            grid = tuple(found["aspect_ratios"][0].tolist())
            tokens = len(found["pixel_values"]) * per_tile // 4
        elif family == "qwen2.5-vl":
            grid = tuple(int(each) for each in found["image_grid_thw"][0])
            tokens = grid[1] * grid[2] // 4
        elif family == "idefics3":
            grid = int(found["rows"][0][0]), int(found["cols"][0][0])
            tokens = (grid[0] * grid[1] + 1) * (per_tile // 4)
        elif family == "minicpm-v-4.6":
            grid = tuple(found["grids"][0])
            tokens = int(found["target_sizes"].prod(-1).sum()) // 16
        elif family == "minicpm-v":
            grid = tuple(found["grids"][0])
            tokens = 3 * len(found["target_sizes"])
        elif family == "pixtral":
            grid = tuple(int(side) // (2 * self.patch) for side in found["image_sizes"][0])
            tokens = grid[0] * grid[1]
        return SimpleNamespace(
            pixels=found["pixel_values"].float().numpy(), tokens=tokens, grid=grid, ratio=ratio
        )


def prepared(family: str, size: int, patch: int, image: Image) -> Prepared:
    name, _, fit = family.partition(" ")
    return preparations(size, patch)[name].prepare(image.rgb(), "pad" if fit else None)


def differences(ours: Prepared, theirs: SimpleNamespace) -> list[str]:
    found = [
        f"{what}: {mine}, reference {right}"
        for what, mine, right in [
            ("shape", ours.pixels.shape, theirs.pixels.shape),
            ("tokens", ours.tokens, theirs.tokens),
            ("grid", ours.grid, theirs.grid or ours.grid),
            ("aspect ratio id", ours.aspect_ratio_id, theirs.ratio),
        ]
        if mine != right
    ]
    if ours.pixels.shape == theirs.pixels.shape and not np.array_equal(ours.pixels, theirs.pixels):
        apart = (
            np.square(ours.pixels - theirs.pixels, dtype=np.float64).sum() / np.square(theirs.pixels).sum()
        )
        found.append(f"pixels: NMSE {apart:.2e}, {np.mean(ours.pixels != theirs.pixels):.2%} differ")
    return found


def sizes(rng: random.Random) -> tuple[int, int]:
    """Square, wide, tall, tiny and fitting sizes."""
    kind = rng.randrange(6)
    if kind == 0:
        return (side := rng.randint(2, 400)), side
    if kind == 1:
        return rng.randint(1, 12), rng.randint(2, 12)
    if kind == 2:
        short = rng.randint(2, 20)
        long = short * rng.randint(10, 199)
        return (short, long) if rng.random() < 0.5 else (long, short)
    if kind == 3:
        return 8 * rng.randint(1, 30), 28 * rng.randint(1, 12)
    return rng.randint(4, 700), rng.randint(4, 700)


def pictures(rng: random.Random, count: int) -> Iterator[tuple[str, Pillow.Image]]:
    noise = np.random.default_rng(rng.getrandbits(32))
    for _ in range(count):
        height, width = sizes(rng)
        kind, mode = rng.choice(["noise", "edges", "drawn"]), rng.choice(["RGB"] * 4 + MODES)
        values = noise.integers(0, 256, (height, width, 4), dtype=np.uint8)
        if kind == "edges":
            values = np.where(values > 127, 255, 0).astype(np.uint8)
        elif kind == "drawn":
            values[:, :, :3] = drawn(height, width, rng.randrange(50))
        picture = (
            Pillow.fromarray(values, "RGBA") if mode != "RGB" else Pillow.fromarray(values[:, :, :3].copy())
        )
        if mode not in {"RGB", "RGBA"}:
            picture = (
                picture.convert("RGB").convert("P").convert(mode)
                if mode == "PA"
                else picture.convert("RGB").convert(mode)
            )
            if mode == "LA":
                picture.putalpha(Pillow.fromarray(values[:, :, 3].copy()))
        yield f"{kind} {mode} {width}x{height}", picture


def compare(count: int, seed: int, large: bool) -> int:
    rng, wrong = random.Random(seed), 0
    for size, patch in LARGE if large else SIZES:
        reference = Reference(size, patch)
        for name, picture in pictures(rng, count):
            for family in reference.families(picture.size):
                told = differences(prepared(family, size, patch, Image(picture)), reference(family, picture))
                wrong += bool(told)
                for line in told:
                    print(f"{family} {size}/{patch}, {name}: {line}")
        print(
            f"{count} pictures, {len(reference.processors)} preparations, tiles of {size}: {wrong} differ",
            flush=True,
        )
    return wrong


def write() -> None:
    """References for tests: what transformers makes of the pictures of apps/engine/tests/inputs/pictures.py."""
    rng, found = random.Random(0), []
    for size, patch in SIZES:
        reference = Reference(size, patch)
        for number in range(8):
            height, width = sizes(rng)
            for family in reference.families((height, width)):
                right = reference(family, Pillow.fromarray(drawn(height, width, number)))
                found.append(
                    {
                        "family": family, "size": size, "patch": patch, "height": height, "width": width,
                        "number": number, "shape": list(right.pixels.shape), "tokens": right.tokens,
                        "pixels": hashlib.blake2b(right.pixels.astype("<f4").tobytes(), digest_size=8).hexdigest(),
                        "mean": round(float(right.pixels.mean()), 6),
                    }
                )  # fmt: skip
                if right.grid:
                    found[-1]["grid"] = list(right.grid)
                if right.ratio:
                    found[-1]["ratio"] = right.ratio
    REFERENCES.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(each) for each in found)
    REFERENCES.write_text(f"[\n{lines}\n]\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="pictures of each size of tiles")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true", help="tiles of real models")
    parser.add_argument("--write", action="store_true", help="make the references of tests anew")
    options = parser.parse_args()
    if options.write:
        write()
    return int(compare(options.count, options.seed, options.large) > 0)


if __name__ == "__main__":
    sys.exit(main())
