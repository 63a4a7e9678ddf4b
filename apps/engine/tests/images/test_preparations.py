from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import CLIP, drawn, preparations

from backbay_engine import ImageError, RequestError
from backbay_engine.images.preparations.preparation import Preparation
from backbay_engine.images.preparations.stretched import QwenPreparation

# Made by lab/engine/compare_preparations.py --write, from transformers' processors.
REFERENCES = json.loads(
    (Path(__file__).parents[1] / "data" / "images" / "preparations.json").read_text(encoding="utf-8")
)
SIZES = [(1, 1), (1, 2), (3, 7), (48, 48), (40, 96), (96, 40), (50, 200), (130, 131), (300, 20), (2, 398)]


SMALLER = {"llava-next", "qwen2.5-vl", "idefics3", "minicpm-v", "minicpm-v-4.6", "pixtral", "llama4"}
PREPARATIONS = list(preparations(48, 8).values())


@pytest.mark.parametrize("family", sorted({each["family"] for each in REFERENCES}))
@pytest.mark.few(4)
def test_pixels_shapes_grids_and_tokens_are_those_of_transformers(family: str) -> None:
    name, _, fit = family.partition(" ")
    for right in (each for each in REFERENCES if each["family"] == family):
        preparation = preparations(right["size"], right["patch"])[name]
        picture = drawn(right["height"], right["width"], right["number"])
        prepared = preparation.prepare(picture, "pad" if fit else None)
        assert list(prepared.pixels.shape) == right["shape"]
        assert prepared.tokens == right["tokens"]
        assert list(prepared.grid) == right.get("grid", list(prepared.grid))
        assert prepared.aspect_ratio_id == right.get("ratio", 0)
        assert prepared.pixels.mean() == pytest.approx(right["mean"], abs=2e-6)
        digest = hashlib.blake2b(prepared.pixels.astype("<f4").tobytes(), digest_size=8)
        assert digest.hexdigest() == right["pixels"], right


@pytest.mark.parametrize("preparation", PREPARATIONS, ids=lambda each: each.family)
@pytest.mark.parametrize("size", SIZES)
def test_a_plan_is_what_a_picture_becomes(preparation: Preparation, size: tuple[int, int]) -> None:
    prepared, plan = preparation.prepare(drawn(*size)), preparation.plan(size)
    assert prepared.pixels.shape == plan.shape
    assert (prepared.tokens, prepared.grid, prepared.size) == (plan.tokens, plan.grid, size)
    assert plan.tokens <= preparation.largest().tokens
    assert np.prod(plan.shape) <= np.prod(preparation.largest().shape)


@pytest.mark.parametrize("preparation", PREPARATIONS, ids=lambda each: each.family)
def test_image_tokens_make_larger_pictures_smaller_or_are_refused(preparation: Preparation) -> None:
    rows = preparation.largest().tokens
    assert preparation.limited(None) == preparation
    assert preparation.limited(rows).plan((48, 48)) == preparation.plan((48, 48))
    if preparation.family in SMALLER:
        few = rows * 2 // 3
        fewer = preparation.limited(few)
        for size in SIZES[:-2]:
            assert fewer.prepare(drawn(*size)).tokens <= fewer.largest().tokens <= few
    else:
        with pytest.raises(RequestError, match=f"image_tokens={rows - 1} .*{rows}"):
            preparation.limited(rows - 1)


def test_a_long_picture_that_cannot_be_made_small_enough_is_refused() -> None:
    limited = QwenPreparation(**CLIP).limited(8)
    with pytest.raises(ImageError, match=r"1 x 150 pixels takes .* image_tokens=8"):
        limited.plan((150, 1))


def test_without_image_tokens_a_long_picture_may_exceed_the_largest_number_of_pixels() -> None:
    """So does the reference's."""
    preparation = QwenPreparation(max_pixels=4 * 28**2, **CLIP)
    assert preparation.plan((40, 8000)).tokens == preparation.largest().tokens == 28


def test_a_picture_that_would_have_no_pixels_keeps_one_row_of_patches() -> None:
    """The reference fails."""
    prepared = preparations(48, 8)["pixtral"].prepare(drawn(2, 390))
    assert (prepared.grid, prepared.pixels.shape) == ((1, 12), (1, 3, 16, 192))


@pytest.mark.fault("fit='pad' for a family other than llava", "ImageError naming the family")
def test_only_llava_pads() -> None:
    with pytest.raises(ImageError, match=r"gemma3 .* fit='pad'"):
        preparations(48, 8)["gemma3"].prepare(drawn(20, 30), "pad")


def test_content_depends_on_pixels_and_preparation() -> None:
    llava = preparations(48, 8)["llava"]
    prepared = llava.prepare(drawn(60, 40))
    assert prepared.content == llava.prepare(drawn(60, 40)).content
    others = [
        llava.prepare(drawn(60, 40), "pad"),
        llava.prepare(drawn(60, 40, 1)),
        preparations(48, 8)["gemma3"].prepare(drawn(60, 40)),
        prepared.replace(pixels=prepared.pixels * 2),
    ]
    assert len({each.content for each in (prepared, *others)}) == 5
    assert prepared.replace(pixels=prepared.pixels).content == prepared.content


def test_replaced_pixels_are_copied_and_nobody_can_write_to_them() -> None:
    prepared = preparations(48, 8)["mllama"].prepare(drawn(60, 40))
    values = np.zeros(prepared.pixels.shape)
    replaced = prepared.replace(pixels=values)
    values[:] = 1
    assert not replaced.pixels.any()
    assert (replaced.tokens, replaced.grid, replaced.aspect_ratio_id) == (prepared.tokens, (2, 1), 5)
    with pytest.raises(ValueError, match="read-only"):
        replaced.pixels[:] = 1


@pytest.mark.fault(
    "pixels of another shape, or not finite, in Prepared.replace", "ImageError naming the rule"
)
@pytest.mark.parametrize(
    ("pixels", "told"),
    [
        (np.zeros((1, 3, 48, 47)), "must have the shape"),
        (np.full((1, 3, 48, 48), np.nan), "finite"),
        (np.zeros((1, 3, 48, 48), np.uint8), "uint8"),
    ],
)
def test_replaced_pixels_are_checked(pixels: Any, told: str) -> None:
    prepared = preparations(48, 8)["gemma3"].prepare(drawn(60, 40))
    with pytest.raises(ImageError, match=told):
        prepared.replace(pixels=pixels)


@pytest.mark.parametrize("preparation", PREPARATIONS, ids=lambda each: each.family)
def test_a_picture_prepared_under_another_limit_is_known(preparation: Preparation) -> None:
    few = preparation.largest().tokens * 2 // 3
    if preparation.family not in SMALLER - {"llava-next"}:
        pytest.skip(
            "pictures of this family have one size, or, in llava-next, canvases that limits leave out"
        )
    limited = preparation.limited(few)
    for size in SIZES[:-2]:
        for made, other in ((preparation, limited), (limited, preparation)):
            picture = made.prepare(drawn(*size))
            if picture.tokens <= other.largest().tokens:
                plan = other.plan_of(picture)
                assert (plan.shape, plan.tokens, plan.grid) == (
                    picture.pixels.shape,
                    picture.tokens,
                    picture.grid,
                )
