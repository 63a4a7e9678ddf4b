"""Typed access to metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_build import STRING, array, model, pair, text, u32, write_model

import backbay.gguf
from backbay.errors import ModelFileError
from backbay.gguf import Config

MADE = Config({
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.block_count": 12,
    "llama.scale": 0.5,
    "llama.tied": True,
    "llama.layers": [1, 2, 3],
    "llama.factors": [1.0, 2.5],
    "llama.flags": [True, False],
    "tokens": ["a", "b"],
    "block": 7,
})  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Config:
    write_model(tmp_path / "model.gguf")
    return backbay.gguf.open(tmp_path / "model.gguf").metadata


def test_keys_are_found_with_and_without_the_architecture() -> None:
    assert MADE.architecture == "llama"
    assert MADE.int("block_count") == MADE.int("llama.block_count") == MADE["block_count"] == 12
    assert "block_count" in MADE
    assert MADE.get("block_count") == 12
    assert MADE.int("block") == 7


def test_global_keys_never_get_the_architecture() -> None:
    config = Config({"general.architecture": "a", "a.general.name": "x", "a.tokenizer.model": "y"})
    assert "general.name" not in config
    assert "tokenizer.model" not in config


def test_defaults_are_for_keys_that_are_missing() -> None:
    assert MADE.int("absent", 5) == 5
    assert MADE.string("absent", None) is None
    assert MADE.strings("absent", ()) == ()
    assert MADE.get("absent") is None
    assert MADE.get("absent", 3) == 3


def test_a_missing_key_names_the_nearest() -> None:
    with pytest.raises(
        ModelFileError, match=r"a key 'block_cuont' in the metadata.*nearest: 'llama.block_count'"
    ):
        MADE.int("block_cuont")
    with pytest.raises(ModelFileError, match=r"nearest: 'general.name'"):
        MADE["general.nome"]
    with pytest.raises(ModelFileError, match="found 0 others"):
        Config({}).int("block_count")


def test_each_type_is_read_as_itself() -> None:
    assert MADE.string("general.name") == "tiny"
    assert MADE.float("scale") == 0.5
    assert MADE.float("block_count") == 12.0
    assert isinstance(MADE.float("block_count"), float)
    assert MADE.bool("tied") is True
    assert MADE.ints("layers").tolist() == [1, 2, 3]
    assert MADE.floats("factors").tolist() == [1.0, 2.5]
    assert MADE.floats("layers").dtype == np.float64
    assert MADE.bools("flags").tolist() == [True, False]
    assert list(MADE.strings("tokens")) == ["a", "b"]


@pytest.mark.parametrize(
    ("getter", "key", "found"),
    [
        ("int", "general.name", "the string 'tiny'"),
        ("int", "tied", "the bool True"),
        ("int", "scale", "the float 0.5"),
        ("int", "layers", "the list"),
        ("float", "tied", "the bool True"),
        ("bool", "block_count", "the int 12"),
        ("string", "block_count", "the int 12"),
        ("string", "tokens", "the list"),
        ("strings", "general.name", "the string 'tiny'"),
        ("strings", "layers", "the list"),
        ("ints", "block_count", "the int 12"),
        ("ints", "factors", "the list"),
        ("ints", "flags", "the list"),
        ("floats", "flags", "the list"),
        ("bools", "layers", "the list"),
    ],
)
def test_another_type_is_an_error(getter: str, key: str, found: str) -> None:
    with pytest.raises(ModelFileError, match=f"expected an? .* in '.*{key}', found {found}"):
        getattr(MADE, getter)(key)
    with pytest.raises(ModelFileError):
        getattr(MADE, getter)(key, None)


def test_a_wrong_type_in_a_file_names_file_key_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    pairs = [
        pair("general.architecture", STRING, text("llama")),
        pair("llama.block_count", STRING, text("12")),
    ]
    path.write_bytes(model(pairs))
    config = backbay.gguf.open(path).metadata
    expected = "model.gguf at byte 106: expected an integer in 'llama.block_count', found the string '12'"
    with pytest.raises(ModelFileError, match=expected) as caught:
        config.int("block_count")
    assert path.read_bytes()[106:108] == b"12"
    assert (caught.value.path, caught.value.offset) == (str(path), 106)


def test_integers_of_all_widths_are_integers(written: Config) -> None:
    for bits in (8, 16, 32, 64):
        assert written.int(f"test.uint{bits}") == 2**bits - 1
        assert written.int(f"test.int{bits}") == 2 ** (bits - 1) - 1
        assert type(written.int(f"test.int{bits}")) is int
        assert written.ints(f"test.int{bits}s").tolist() == [-(2 ** (bits - 1)), 1, 2 ** (bits - 1) - 1]
        assert written.ints(f"test.int{bits}s").dtype == np.int64
    assert written.float("test.float32") == -1.25
    assert written.floats("test.float64s").tolist() == [0.5, -3.0, 1e30]
    assert written.bool("test.bool") is True
    assert written.bools("test.bools").tolist() == [True, False, True]


def test_integers_beyond_int64_are_no_ints(written: Config) -> None:
    with pytest.raises(ModelFileError, match="an array of 3 uint64 numbers"):
        written.ints("test.uint64s")
    assert written["test.uint64s"].tolist() == [0, 1, 2**64 - 1]
    assert written.floats("test.uint64s").tolist() == [0.0, 1.0, 2.0**64]


def test_any_nan_is_read_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model([array("k", 6, 2, u32(0x7F800001) + u32(0x7FC00000))]))
    assert np.isnan(backbay.gguf.open(path).metadata.floats("k")).all()


def test_iteration_follows_the_file(written: Config) -> None:
    keys = list(written)
    assert keys[:2] == ["general.architecture", "llama.block_count"]
    assert len(written) == len(keys)
    assert set(dict(written)) == set(keys)
    assert written.offset("llama.block_count") == written.offset("block_count")
    assert written.offset("absent") is None
    assert 5 not in written


def test_no_file_has_no_metadata() -> None:
    for config in (Config(), Config({})):
        assert len(config) == 0
        assert config.architecture == ""
        assert config.int("block_count", 0) == 0


def test_messages_stay_short() -> None:
    values: dict[str, Any] = {"text": "x" * 10_000, "list": list(range(10_000)), "k" * 10_000: 1}
    config = Config(values)
    for key in ("text", "list", "texx"):
        with pytest.raises(ModelFileError) as caught:
            config.int(key)
        assert len(str(caught.value)) < 300


def test_a_value_of_bytes_that_are_not_utf8_can_be_described(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model([pair("k", STRING, text(b"\xff\n")), pair("n", 4, u32(1))]))
    with pytest.raises(ModelFileError) as caught:
        backbay.gguf.open(path).metadata.int("k")
    assert str(caught.value).encode("utf-8").endswith(rb"found the string '\udcff\n'")
