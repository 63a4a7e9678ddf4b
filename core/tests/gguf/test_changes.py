"""A file that changes while it is open: an error, or nothing if its weights were copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gguf_experts import MATRICES, NAME, save, single

import backbay
import backbay.gguf
from backbay.errors import ModelFileError

PARTS = [f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3)]


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A model of three files, whose experts make one stack."""
    save(tmp_path / "m.gguf", single(), per_part=1)
    return tmp_path


@pytest.mark.fault("one part of a split model shrinks while it is open", "ModelFileError naming the part")
@pytest.mark.parametrize("part", PARTS)
def test_the_part_that_changed_is_named(split: Path, part: str) -> None:
    with backbay.gguf.open(split / PARTS[0]) as file:
        file.check_unchanged()
        os.truncate(split / part, 100)
        with pytest.raises(ModelFileError, match=rf"{part}: expected the \d+ bytes .*, found 100 bytes"):
            file.check_unchanged()
        with pytest.raises(ModelFileError, match=part):
            file.data(NAME)


def test_copies_of_stacks_and_parts_outlive_their_files(split: Path) -> None:
    file = backbay.gguf.open(split / PARTS[0])
    file.copy_weights()
    assert list(file.read_copies()) == [1.0]
    for part in PARTS:
        os.truncate(split / part, 0)
    file.check_unchanged()
    data = file.data(NAME)
    assert data.tobytes() == MATRICES.tobytes()
    assert not data.flags.writeable
    file.close()
    assert data.tobytes() == MATRICES.tobytes()


def test_a_file_that_shrinks_before_it_is_copied_stays_an_error(split: Path) -> None:
    with backbay.gguf.open(split / PARTS[0]) as file:
        file.copy_weights()
        os.truncate(split / PARTS[1], 100)
        for _ in range(2):
            with pytest.raises(ModelFileError, match=rf"{PARTS[1]}.*weights=copied"):
                list(file.read_copies())


def test_metadata_outlive_every_change(tmp_path: Path) -> None:
    path = save(tmp_path / "m.gguf", single())
    with backbay.gguf.open(path) as file:
        os.truncate(path, 0)
        assert file.metadata.int("block_count") == 1


def test_copies_lie_where_libraries_compute_in_place(tmp_path: Path) -> None:
    with backbay.gguf.open(save(tmp_path / "m.gguf", {"a": MATRICES[0, 0, :3], "b": MATRICES})) as file:
        file.copy_weights()
        assert [file.data(name).ctypes.data % 64 for name in "ab"] == [0, 0]
        assert file.data("a").tobytes() == MATRICES[0, 0, :3].tobytes()
