"""Logits of prompts with pictures, compared with those of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import SimpleNamespace
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
TEXT_OF = dict.fromkeys(("qwen2vl", "qwen25vl", *qwen3vl.KINDS), "<|image_pad|>")
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
    name: str,
    kind: Kind,
    ids: list[int],
    pictures: Sequence[NDArray[np.uint8]],
    rows: Sequence[NDArray[np.float32]] | None = None,
) -> NDArray[np.float32]:
    """The reference's logits of every position; over rows of another encoder, if they are given."""
    given = INPUTS.get(name, _joined)(kind, ids, pictures) if pictures else {}
    if rows is not None:
        del given["pixel_values"]
        given["mm_encoder_outputs"] = {"image": _encoded(kind, rows)}
    found: NDArray[np.float32] = kind.model(input_ids=torch.tensor([ids]), **given).logits[0].numpy()
    return found


def _encoded(kind: Kind, rows: Sequence[NDArray[np.float32]]) -> SimpleNamespace:
    """Rows of pictures as an encoder of the reference gives them."""
    width = kind.model.config.text_config.hidden_size
    first, *further = zip(*(torch.from_numpy(each).split(width, 1) for each in rows), strict=True)
    return SimpleNamespace(pooler_output=first, deepstack_features=further)


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


AMPLIFYING = ("minicpmv46", "qwen35", "qwen35moe", "qwen3vlmoe")
"""Kinds whose texts make large differences of small ones in the rows: recurrent, or with a choice of experts."""


@dataclass(frozen=True)
class Errors:
    """Of the logits: from the reference's pixels, from ours, and against the reference's text over our rows."""

    given: float = 0.0
    own: float = 0.0
    same_rows: float = 0.0

    def __or__(self, other: Errors) -> Errors:
        return Errors(*(max(pair) for pair in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        """Those over the limit in bold, unless they come from the rows alone."""
        given = f"{self.given:.0e}"
        if self.given >= GIVEN:
            explained = 0 < self.same_rows < GIVEN
            given = f"{given} (same rows: {self.same_rows:.0e})" if explained else f"**{given}**"
        return f"{given} {self.own:.0e}" if self.own < OWN else f"{given} **{self.own:.0e}**"


def compare(
    name: str, kind: Kind, text: Path, projector: Path | None, backend: str
) -> Iterator[tuple[str, str]]:
    """Each prompt's name and errors, the worst over all sizes of steps."""
    errors: dict[str, Errors] = {}
    for batch in BATCHES:
        sizes: dict[str, Any] = {"context": 2048, "parallel": 2, "batch": batch, "num_threads": 1}
        cache = {} if backend == "cpu_ref" else {"kv_dtype": "f32"}
        with load(text, backend, projector=projector, **sizes, **cache) as llm:
            for prompt in prompts():
                errors[prompt.name] = errors.get(prompt.name, Errors()) | _errors(name, kind, llm, prompt)
    return ((prompt_name, str(found)) for prompt_name, found in errors.items())


def _errors(name: str, kind: Kind, llm: LLM, prompt: Prompt) -> Errors:
    images = [Image(rgb) for rgb in prompt.pictures]
    for rgb in prompt.pictures if kind.tokens is not None else ():
        results = kind.images(images=[Pillow.fromarray(rgb)], return_tensors="pt")
        if (ids := llm.encode([Image(rgb)])) != (right := kind.tokens(results)):
            raise ValueError(f"a picture becomes {ids}, in the reference {right}")
    own = prompt.made(name, images)
    ids = llm.encode(own)
    wanted = logits(name, kind, ids, prompt.pictures)
    pixels = [processed(kind, rgb)["pixel_values"].float().numpy() for rgb in prompt.pictures]
    given = [
        each.replace(pixels=values.reshape(each.pixels.shape))
        for each, values in zip(map(llm.prepare, images), pixels, strict=True)
    ]
    found = llm.logits(prompt.made(name, given))
    error, same_rows = nmse(found, wanted), 0.0
    if error >= GIVEN and name in AMPLIFYING:
        rows = [llm.embed_image(each) for each in given]
        same_rows = nmse(found, logits(name, kind, ids, prompt.pictures, rows))
    return Errors(error, nmse(llm.logits(own), wanted), same_rows)
