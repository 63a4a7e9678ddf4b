"""Logits of prompts with pictures, compared with those of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import minicpmv
import numpy as np
import qwen3vl
import torch
from kinds import ID, Kind
from numpy.typing import NDArray
from PIL import Image as Pillow
from truths import SIZES, nmse, picture, processed

from backbay_engine import LLM, Image, Prepared, load

Part: TypeAlias = list[int] | Image | Prepared
BATCHES = (512, 7)
TEXT_OF = dict.fromkeys(("qwen25vl", *qwen3vl.KINDS), "<|image_pad|>")
GIVEN, OWN = 2e-5, 2e-3  # the limits


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt of letters and pictures; each picture's place is a number."""

    name: str
    pictures: list[NDArray[np.uint8]]
    parts: list[str | int]

    def made(self, name: str, pictures: Sequence[Image | Prepared]) -> list[Part]:
        """The parts for the engine."""
        found: list[Part] = []
        for part in self.parts:
            if isinstance(part, str):
                found.append([1, *letters(part)] if not found else letters(part))
            elif name in TEXT_OF:
                found += [[ID["<|vision_start|>"]], pictures[part], [ID["<|vision_end|>"]]]
            else:
                found.append(pictures[part])
        return found


def letters(text: str) -> list[int]:
    return [ID[letter] for letter in text]


def prompts() -> Iterator[Prompt]:
    """Text before, between and after pictures; one and several; none."""
    drawn = {name: picture(size, seed) for seed, (name, size) in enumerate(SIZES.items())}
    for name, rgb in drawn.items():
        yield Prompt(name, [rgb], ["Tell", 0, "what"])
    square, wide, tall = drawn["square"], drawn["wide"], drawn["tall"]
    yield Prompt("before", [square], ["abc", 0])
    yield Prompt("after", [wide], [0, "abc"])
    yield Prompt("several", [square, wide, square], ["ab", 0, "and", 1, "so", 2, "on"])
    yield Prompt("adjacent", [tall, wide], ["ab", 0, 1, "so"])
    yield Prompt("text", [], ["hello"])


@torch.no_grad()
def logits(
    name: str, kind: Kind, ids: list[int], pictures: Sequence[NDArray[np.uint8]]
) -> NDArray[np.float32]:
    """The reference's logits of every position."""
    given = INPUTS.get(name, _joined)(kind, ids, pictures) if pictures else {}
    found: NDArray[np.float32] = kind.model(input_ids=torch.tensor([ids]), **given).logits[0].numpy()
    return found


def _joined(kind: Kind, ids: list[int], pictures: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
    each = [processed(kind, rgb) for rgb in pictures]
    return {name: torch.cat([given[name] for given in each]) for name in each[0]}


def _together(kind: Kind, ids: list[int], pictures: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
    given = kind.images(images=[Pillow.fromarray(rgb) for rgb in pictures], return_tensors="pt")
    return {name: given[name] for name in ("pixel_values", "image_sizes")}


def _nested(kind: Kind, ids: list[int], pictures: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
    return dict(kind.images(images=[[Pillow.fromarray(rgb) for rgb in pictures]], return_tensors="pt"))


def _each(kind: Kind, ids: list[int], pictures: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
    return {"pictures": [processed(kind, rgb) for rgb in pictures]}


def _packed(kind: Kind, ids: list[int], pictures: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
    given = kind.images(images=[Pillow.fromarray(rgb) for rgb in pictures], return_tensors="pt")
    return {name: given[name] for name in ("pixel_values", "target_sizes")}


def _marked(name: str, token: str) -> Callable[..., dict[str, Any]]:
    """The processor's results, and which tokens are those of pictures."""

    def inputs(kind: Kind, ids: list[int], pictures: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
        marks = torch.tensor([[int(id == ID[token]) for id in ids]])
        return {**_joined(kind, ids, pictures), name: marks}

    return inputs


def _crossing(kind: Kind, ids: list[int], pictures: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
    from transformers.models.mllama import processing_mllama as processing

    given = dict(kind.images(images=[[Pillow.fromarray(rgb) for rgb in pictures]], return_tensors="pt"))
    tiles = given.pop("num_tiles")
    seen = [processing.get_cross_attention_token_mask(ids, ID["<|image|>"])]
    dense = processing.convert_sparse_cross_attention_mask_to_dense(
        seen, num_tiles=tiles, max_num_tiles=kind.images.max_image_tiles, length=len(ids)
    )
    return {**given, "cross_attention_mask": torch.tensor(dense)}


INPUTS: dict[str, Callable[..., dict[str, Any]]] = {
    "gemma3": _marked("token_type_ids", "<image_soft_token>"),
    "llava16": _together,
    "smolvlm": _nested,
    "idefics3": _nested,
    "mistral3": _together,
    **dict.fromkeys(minicpmv.KINDS, _each),
    "minicpmv46": _packed,
    "pixtral": _together,
    "mllama": _crossing,
    **dict.fromkeys(TEXT_OF, _marked("mm_token_type_ids", "<|image_pad|>")),
}
"""What a kind's model takes beside the ids, where it is more than the pictures' results one after the other."""


def compare(
    name: str, kind: Kind, text: Path, projector: Path | None, backend: str
) -> Iterator[tuple[str, str]]:
    """Each prompt's name and errors, the worst over all sizes of steps: from the reference's pixels, and from ours."""
    errors: dict[str, tuple[float, float]] = {}
    for batch in BATCHES:
        sizes: dict[str, Any] = {"context": 2048, "parallel": 2, "batch": batch, "num_threads": 1}
        cache = {} if backend == "cpu_ref" else {"kv_dtype": "f32"}
        with load(text, backend, projector=projector, **sizes, **cache) as llm:
            for prompt in prompts():
                before = errors.get(prompt.name, (0.0, 0.0))
                found = _errors(name, kind, llm, prompt)
                errors[prompt.name] = max(before[0], found[0]), max(before[1], found[1])
    for prompt_name, pair in errors.items():
        limits = zip(pair, (GIVEN, OWN), strict=True)
        yield (
            prompt_name,
            " ".join(f"{error:.0e}" if error < most else f"**{error:.0e}**" for error, most in limits),
        )


def _errors(name: str, kind: Kind, llm: LLM, prompt: Prompt) -> tuple[float, float]:
    images = [Image(rgb) for rgb in prompt.pictures]
    for rgb in prompt.pictures if kind.tokens is not None else ():
        results = kind.images(images=[Pillow.fromarray(rgb)], return_tensors="pt")
        if (ids := llm.encode([Image(rgb)])) != (right := kind.tokens(results)):
            raise ValueError(f"a picture becomes {ids}, in the reference {right}")
    own = prompt.made(name, images)
    wanted = logits(name, kind, llm.encode(own), prompt.pictures)
    pixels = [processed(kind, rgb)["pixel_values"].float().numpy() for rgb in prompt.pictures]
    ready = [llm.prepare(image) for image in images]
    given = [
        each.replace(pixels=values.reshape(each.pixels.shape))
        for each, values in zip(ready, pixels, strict=True)
    ]
    return nmse(llm.logits(prompt.made(name, given)), wanted), nmse(llm.logits(own), wanted)
