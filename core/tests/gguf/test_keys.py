"""Declared keys: a possible value, the default, or a ModelFileError with key, offset, value and expectation."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from gguf_build import STRING, UINT32, array, model, pair, text, u32
from hypothesis import given
from hypothesis import strategies as st

import backbay.gguf
from backbay.errors import ModelFileError
from backbay.gguf import Config, Key, choice, flag, number, numbers, texts, whole, wholes


def of(key: Key, value: object, **how: object) -> object:
    return key.of(Config({"general.architecture": "a", "a.k": value}), **how)


def refusal(key: Key, value: object, **how: object) -> str:
    with pytest.raises(ModelFileError) as told:
        of(key, value, **how)
    return str(told.value)


def test_a_possible_value_is_given_and_a_missing_one_replaced() -> None:
    assert of(whole("k", 1, 4), 4) == 4
    assert of(number("k"), 3) == 3.0
    assert of(flag("k"), False) is False
    assert of(choice("k", "b", "c"), "c") == "c"
    assert list(of(texts("k"), ["x"])) == ["x"]
    assert of(whole("absent"), 4, default=None) is None
    with pytest.raises(ModelFileError, match="expected a key 'absent' in the metadata"):
        of(whole("absent"), 4)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (whole("k", 1), 0, "expected a whole number from 1 to 2147483647 in 'a.k', found the int 0"),
        (whole("k"), 2**31, "from 0 to 2147483647 in 'a.k', found the int 2147483648"),
        (whole("k"), True, "found the bool True"),
        (whole("k"), 1.0, "found the float 1.0"),
        (whole("k"), [1], "found the list"),
        (whole("k", 0, 1, expected="no (0) or yes (1)"), 2, "expected no (0) or yes (1) in 'a.k'"),
        (number("k"), nan, "found the float nan"),
        (number("k"), -inf, "found the float -inf"),
        (number("k"), 1e39, "found the float 1e+39"),
        (number("k", above=1), 1.0, "expected a number above 1, up to 3.40282e+38 in 'a.k'"),
        (number("k", above=1), 1 + 1e-12, "above 1"),  # 1 as f32
        (number("k", above=0), 1e-60, "above 0"),
        (number("k", 0.5, 2, or_zero=True), 0.25, "expected 0 or a number from 0.5 to 2 in 'a.k'"),
        (choice("k", "b", "c", "d"), "e", "expected b, c or d in 'a.k', found the string 'e'"),
        (flag("k"), 1, "expected a boolean"),
        (texts("k"), "x", "expected an array of strings"),
        (wholes("k", 0, 9), [3, 10], "expected whole numbers from 0 to 9 in element 1 of 'a.k', found the int 10"),
        (wholes("k"), "x", "expected whole numbers from 0 to 2147483647 in 'a.k', found the string 'x'"),
        (numbers("k"), [0.0, inf], "expected finite numbers in element 1 of 'a.k', found the float inf"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused(key: Key, value: object, told: str) -> None:
    assert told in refusal(key, value)


def test_a_layer_takes_a_number_or_its_element_of_an_array() -> None:
    key = whole("k", 1)
    assert of(key, 7, layer=5) == 7
    assert of(key, [7, 8], layer=1) == 8
    assert of(key, np.array([True, True]), layer=1) == 1
    assert "a number for layer 2 in 'a.k'" in refusal(key, [7, 8], layer=2)
    assert "in element 1 of 'a.k', found the int 0" in refusal(key, [7, 0], layer=1)
    assert "found the list" in refusal(key, [7, 8])


def test_zero_may_be_allowed_beside_a_range() -> None:
    assert of(number("k", 0.5, 2, or_zero=True), 0.0) == 0


def test_an_error_has_the_offset_of_the_value_or_of_its_element(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model([pair("k", UINT32, u32(77)), array("s", UINT32, 3, u32(1) + u32(88) + u32(2))]))
    config = backbay.gguf.open(path).metadata
    for key, value in ((whole("k", 0, 9), 77), (wholes("s", 0, 9), 88)):
        with pytest.raises(ModelFileError) as told:
            key.of(config)
        assert told.value.path == str(path)
        assert path.read_bytes()[told.value.offset :][:4] == u32(value)


def test_a_value_that_others_contradict_is_refused_with_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model([pair("k", STRING, text("abc"))]))
    config = backbay.gguf.open(path).metadata
    error = backbay.gguf.text("k").refuse(config, "something else")
    assert str(error).endswith("expected something else in 'k', found the string 'abc'")
    assert path.read_bytes()[error.offset :][:3] == b"abc"
    assert "expected 3 in 'b', found no such key" in str(whole("b").refuse(config, "3"))


@given(st.floats() | st.integers(-(2**63), 2**64 - 1), st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_a_number_is_in_its_range_or_refused(value: float, least: float, most: float) -> None:
    try:
        found = of(number("k", least, most), value)
    except ModelFileError:
        assert not least <= value <= most
    else:
        assert least <= found <= most
        assert np.isfinite(np.float32(found))
