"""The tokens that stand for a picture, where a family puts others between its rows."""

from __future__ import annotations

import pytest
from seeing_models import Files, opened
from small_vision import picture
from small_vision_texts import ID

from backbay_engine import Image


def named(ids: list[int]) -> str:
    """The text of ids, whose other tokens are bytes; a run of one token is written once."""
    words = {id: word for word, id in ID.items()}
    texts = [words.get(id) or chr(id) for id in ids]
    return "".join(text for n, text in enumerate(texts) if not n or text != texts[n - 1] or len(text) == 1)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (
            (20, 20),
            "{0}<row_1_col_1>{1}{0}<row_1_col_2>{1}\n{0}<row_2_col_1>{1}{0}<row_2_col_2>{1}\n\n{0}<global-img>{1}{0}",
        ),
        ((10, 60), "{0}<row_1_col_1>{1}{0}<row_1_col_2>{1}\n\n{0}<global-img>{1}{0}"),
    ],
)
def test_tiles_of_idefics3_stand_on_lines_of_their_rows(files: Files, size, text) -> None:
    with opened(files, "idefics3") as llm:
        ids = llm.encode(["a", Image(picture(*size)), "b"])
        expected = text.format("<fake_token_around_image>", "<image>")
        assert named(ids) == f"<s>a{expected}b"
        assert ids.count(ID["<image>"]) == llm.prepare(Image(picture(*size))).tokens


def test_one_tile_of_idefics3_has_no_row_and_no_column(files: Files) -> None:
    with opened(files, "idefics3", image_tokens=1) as llm:
        ids = llm.encode([Image(picture(30, 40))])
        assert named(ids) == "<fake_token_around_image><global-img><image><fake_token_around_image>"


def test_lines_of_pixtral_end_with_tokens_of_the_text(files: Files) -> None:
    with opened(files, "mistral3") as llm:
        ids = llm.encode([[65], Image(picture(20, 40)), [66]])
        assert "".join("A" if id == 65 else named([id]) for id in ids) == (
            "A" + "[IMG]" * 3 + "[IMG_BREAK]" + "[IMG]" * 3 + "[IMG_END]B"
        )


def test_slices_of_minicpmv_stand_on_lines_and_pictures_have_numbers(files: Files) -> None:
    shown, small = Image(picture(50, 60)), Image(picture(20, 20))
    with opened(files, "minicpmv") as llm:
        assert named(llm.encode([shown, "b", small])) == (
            "<image_id>0</image_id><image><unk></image><slice><unk></slice><slice><unk></slice>\n"
            "<slice><unk></slice><slice><unk></slice>b<image_id>1</image_id><image><unk></image>"
        )
        assert llm.prepare(shown).tokens == llm.encode([shown]).count(ID["<unk>"]) == 10
