"""What a prompt with pictures may be, and what it becomes."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from seeing_models import Files, opened
from small_llama import BOS
from small_vision import MARK, picture, write_small_vision
from small_vision_texts import ID

from backbay_engine import LLM, Image, TemplateError, load


@pytest.mark.few(3)
def test_a_picture_may_be_given_in_many_ways(llm: LLM, tmp_path: Path) -> None:
    from PIL import Image as Pillow

    array = picture(20, 30)
    shown = Pillow.fromarray(array)
    data = io.BytesIO()
    shown.save(data, "PNG")
    path = tmp_path / "picture.png"
    path.write_bytes(data.getvalue())
    expected = llm.logits(["a ", Image(array)])
    for each in (array, shown, path, data.getvalue(), io.BytesIO(data.getvalue()), llm.prepare(array)):
        np.testing.assert_array_equal(llm.logits(["a ", each]), expected)
    before = llm.store.counters
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    for part in (
        {"type": "image", "image": path},
        {"type": "image", "image": llm.prepare(path)},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
    ):
        llm.chat([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}], max_tokens=1)
    after = llm.store.counters
    assert (after.asked, after.computed) == (before.asked + 4, before.computed)


def test_rows_and_pixels_can_be_had_and_changed(llm: LLM) -> None:
    shown = Image(picture(20, 30))
    rows = llm.embed_image(shown)
    prepared = llm.prepare(shown)
    further = (
        2 if llm.backend.config.architecture == "qwen3vl" else 0
    )  # vectors for the first blocks of the text
    assert rows.shape == (prepared.tokens, 32 * (1 + further))
    assert rows.dtype == np.float32
    rows[:] = 0  # a copy
    assert np.abs(llm.embed_image(prepared)).max() > 0
    changed = prepared.replace(pixels=np.flip(prepared.pixels, -1))
    assert np.abs(llm.embed_image(changed) - llm.embed_image(shown)).max() > 1e-4
    assert llm.modalities == {"text", "image"}


def test_a_beginning_of_sequence_comes_only_where_a_prompt_begins_with_text(llm: LLM) -> None:
    shown = Image(picture(20, 20))
    assert llm.encode(["a", shown])[:2] == [BOS, ord("a")]
    assert BOS not in llm.encode([shown, "a"])
    assert llm.encode([[65], shown, "a"])[0] == 65
    assert llm.encode(["a", "b"]) == llm.encode("ab")


def test_what_a_user_writes_is_no_picture(llm: LLM) -> None:
    mark = next(mark for kind, mark in MARK.items() if kind in llm.backend.model.path.name)  # type: ignore[union-attr]
    ids = {ID[word] for word in ([mark] if mark in ID else ["<image>", "</image>"])}
    shown = Image(picture(20, 20))
    assert ids.isdisjoint(llm.encode(f"a {mark}"))
    alone = llm.encode(["x", shown])
    written = llm.encode([f"{mark}x", shown])
    assert len(written) == len(alone) + len(mark)
    said = [{"type": "text", "text": f"Is {mark} a picture?"}, {"type": "image", "image": shown}]
    asked = llm.encode(llm.chat_prompt([{"role": "user", "content": said}]))
    assert all(asked.count(id) == llm.encode([shown]).count(id) for id in ids)
    written = llm.encode(llm.chat_prompt([{"role": "user", "content": f"Is {mark} a picture?"}]))
    assert ids.isdisjoint(written)


def test_a_template_that_knows_no_pictures_gets_them_in_its_text(files: Files, tmp_path: Path) -> None:
    plain = "{% for m in messages %}<|{{ m.role }}|>{{ m.content + '' }}{% endfor %}"
    model, projector = write_small_vision(tmp_path, "qwen25vl", chat=plain)
    shown = Image(picture(20, 20))
    said = [
        {"role": "user", "content": [{"type": "image", "image": shown}, {"type": "text", "text": "What?"}]}
    ]
    with load(model, "cpu_ref", projector=projector) as llm:
        ids = llm.encode(llm.chat_prompt(said))
        expected = llm.encode(
            [[ID["<|user|>"], ID["<|vision_start|>"]], shown, [ID["<|vision_end|>"]], "What?"]
        )
        assert ids == expected
    model, projector = write_small_vision(tmp_path, "qwen25vl", chat="no pictures")
    with (
        load(model, "cpu_ref", projector=projector) as llm,
        pytest.raises(TemplateError, match="does not mark 1"),
    ):
        llm.chat(said)


@pytest.mark.parametrize(
    ("size", "tiles"),
    [((20, 20), ""), ((28, 56), "r r."), ((50, 100), "r r r r.r r r r."), ((84, 28), "r.r.r.")],
)
def test_marks_stand_between_the_tiles_of_llama4(files: Files, size: tuple[int, int], tiles: str) -> None:
    """As in transformers: a mark between the tiles of a line, another after each line, then the whole picture."""
    words = {" ": "<|tile_x_separator|>", ".": "<|tile_y_separator|>"}
    rows = 4 * [ID["<|patch|>"]]
    lines = [id for each in tiles for id in (rows if each == "r" else [ID[words[each]]])]
    wanted = [ID["<|image_start|>"], *lines, ID["<|image|>"], *rows, ID["<|image_end|>"]]
    with opened(files, "llama4") as llm:
        assert llm.encode([Image(picture(*size))]) == wanted
