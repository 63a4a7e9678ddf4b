"""Pictures and prompts that cannot be served."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seeing_models import ENDLESS, Files, opened
from small_llama import write_small_llama
from small_vision import picture

from backbay import ModelFileError
from backbay_engine import LLM, Image, ImageError, RequestError, load


@pytest.mark.fault("a picture is damaged, or no picture", "ImageError that names it, from submit or result()")
@pytest.mark.few(4)
def test_pictures_that_cannot_be_taken_are_refused(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("no picture")
    other = llm.submit(["fine ", Image(picture(20, 20))], max_tokens=4, **ENDLESS)
    for wrong in (tmp_path / "missing.png", tmp_path / "note.txt", b"", np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(ImageError):
            llm.generate(["a", wrong if isinstance(wrong, bytes) else Image(wrong)])
    with pytest.raises(ImageError, match="nothing is fetched"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": "http://x/y.png"}]}])
    with pytest.raises(RequestError, match='a text part needs the key "text"'):
        llm.chat([{"role": "user", "content": [{"type": "text"}, Image(picture(20, 20))]}])
    assert len(other.result().tokens) == 4


@pytest.mark.fault("a picture's data end early", "ImageError from result(), and the other requests go on")
def test_a_picture_that_turns_out_to_be_damaged_fails_alone(llm: LLM) -> None:
    from PIL import Image as Pillow

    data = io.BytesIO()
    Pillow.fromarray(picture(64, 64)).save(data, "PNG")
    broken = Image(data.getvalue()[: len(data.getvalue()) // 2])
    handle = llm.submit(["a", broken], max_tokens=2)
    assert len(llm.generate(["a", Image(picture(20, 20))], max_tokens=2, **ENDLESS).tokens) == 2
    with pytest.raises(ImageError):
        handle.result()


@pytest.mark.parametrize("prompt", [[], [""], [[]], ["", []]])
def test_parts_that_hold_nothing_are_an_empty_prompt(llm: LLM, prompt: list[Any]) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate(prompt)


@pytest.mark.fault("a prompt with pictures is longer than the context", "RequestError with both numbers")
def test_a_prompt_that_is_too_long_with_its_pictures_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="tokens with its pictures and sounds, the context holds 128"):
        llm.generate(["x" * 130, Image(picture(20, 20))])
    with pytest.raises(RequestError, match=r"token ids must be in \[0"):
        llm.submit([[-1], Image(picture(20, 20))])
    with pytest.raises(RequestError, match="must be in a list, got 65 alone"):
        llm.submit([65, Image(picture(20, 20))])  # type: ignore[list-item]


@pytest.mark.fault("a picture is prepared for another model", "ImageError that names both families")
def test_a_picture_prepared_for_another_family_is_refused(files: Files) -> None:
    refused = pytest.raises(ImageError, match="prepared for llava, this model takes those of gemma3")
    with opened(files, "llava") as llava, opened(files, "gemma3") as gemma, refused:
        gemma.generate(["a", llava.prepare(picture(20, 20))])


@pytest.mark.fault("a picture is given to a model that sees none", "RequestError that says how it can see")
def test_a_model_without_an_encoder_says_so(files: Files, tmp_path: Path) -> None:
    with load(write_small_llama(tmp_path / "text.gguf"), "cpu_ref") as llm:
        assert llm.modalities == {"text"}
        with pytest.raises(RequestError, match=r"sees no pictures: .* projector="):
            llm.generate(["a", Image(picture(20, 20))])
        with pytest.raises(RequestError, match="sees no pictures"):
            llm.chat([{"role": "user", "content": [{"type": "image", "image": picture(20, 20)}]}])
        for ask in (
            lambda: llm.store,
            lambda: llm.embed_image(picture(9, 9)),
            lambda: llm.prepare(picture(9, 9)),
        ):
            with pytest.raises(RequestError, match="sees no pictures"):
                ask()


@pytest.mark.fault("a projector belongs to another model", "ModelFileError when the model is opened")
def test_a_projector_of_another_model_is_refused(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="the width of"):
        load(write_small_llama(tmp_path / "narrow.gguf", head=4), "cpu_ref", projector=files["llava"][1])


@pytest.mark.fault("a prompt has more pictures than cross attention holds", "RequestError with both numbers")
def test_more_pictures_than_the_cache_of_cross_attention_holds_are_refused(files: Files) -> None:
    refused = pytest.raises(RequestError, match="the prompt has 5 pictures, the cache holds 4")
    with opened(files, "mllama", parallel=1) as llm, refused:
        llm.generate([Image(picture(20, 20, n)) for n in range(5)])
