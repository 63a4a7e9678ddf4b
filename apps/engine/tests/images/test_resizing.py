from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import drawn

from backbay_engine.images.preparations.resizing import Filter, plain_picture, resize, resize_on_square

FILTERS: list[Filter] = ["bilinear", "bicubic", "lanczos"]
sides = st.integers(1, 60)


def planes(height: int, width: int) -> np.ndarray:
    return np.ascontiguousarray(drawn(height, width, 3).transpose(2, 0, 1))


@given(sides, sides, sides, sides, st.sampled_from(FILTERS))
def test_a_plain_picture_stays_plain(
    height: int, width: int, rows: int, columns: int, filter: Filter
) -> None:
    colour = (122, 0, 255)
    assert (
        resize(plain_picture(colour, (height, width)), (rows, columns), filter)
        == plain_picture(colour, (rows, columns))
    ).all()


@given(sides, sides, st.sampled_from(FILTERS))
def test_the_same_size_changes_nothing(height: int, width: int, filter: Filter) -> None:
    assert (resize(planes(height, width), (height, width), filter) == planes(height, width)).all()


@given(sides, sides, sides, sides, st.sampled_from(FILTERS), st.data())
def test_a_part_is_the_part_of_the_whole(
    height: int, width: int, rows: int, columns: int, filter: Filter, data: st.DataObject
) -> None:
    whole = resize(planes(height, width), (rows, columns), filter)
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    part = (
        slice(top, data.draw(st.integers(top + 1, rows))),
        slice(left, data.draw(st.integers(left + 1, columns))),
    )
    assert (resize(planes(height, width), (rows, columns), filter, part) == whole[:, *part]).all()


@given(sides, sides, sides, st.sampled_from(FILTERS))
def test_a_picture_on_a_square_is_the_resized_square(
    height: int, width: int, side: int, filter: Filter
) -> None:
    most, colour = max(height, width), (122, 116, 104)
    square = plain_picture(colour, (most, most))
    top, left = (most - height) // 2, (most - width) // 2
    square[:, top : top + height, left : left + width] = planes(height, width)
    right = resize(square, (side, side), filter)
    assert (resize_on_square(planes(height, width), side, filter, colour) == right).all()


@pytest.mark.parametrize("filter", FILTERS)
def test_half_the_size_is_the_mean_of_the_filter(filter: Filter) -> None:
    """A step from 0 to 200 through each filter's weights at half the size: by hand, Lanczos by torchvision."""
    line = np.repeat(np.array([0, 0, 0, 0, 200, 200, 200, 200], np.uint8)[None, None], 3, axis=0)
    halved = resize(line, (1, 4), filter)[0, 0].tolist()
    expected = {"bilinear": [0, 25, 175, 200], "bicubic": [0, 13, 187, 203], "lanczos": [0, 10, 190, 203]}
    assert halved == expected[filter]
