"""Models split over several files."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType
from gguf_build import model, pair, tensor, u32, write_model

import backbay.gguf
from backbay.errors import ModelFileError

KINDS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0)
UINT16, INT32 = 2, 5


def part(number: int, count: int, total: int, *tensors: bytes) -> bytes:
    """One part of a split model; `number` from 0."""
    pairs = [
        pair("split.no", UINT16, number.to_bytes(2, "little")),
        pair("split.count", UINT16, count.to_bytes(2, "little")),
        pair("split.tensors.count", INT32, u32(total)),
    ]
    return model(pairs, tensors, bytes(32 * len(tensors)))


def save(directory: Path, *parts: bytes) -> list[Path]:
    paths = [directory / f"m-{index + 1:05}-of-{len(parts):05}.gguf" for index in range(len(parts))]
    for path, content in zip(paths, parts, strict=True):
        path.write_bytes(content)
    return paths


def good(directory: Path) -> list[Path]:
    return save(directory, part(0, 3, 2), part(1, 3, 2, tensor("a")), part(2, 3, 2, tensor("b")))


def refusal(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        backbay.gguf.open(path)
    assert ": expected " in str(caught.value)
    assert ", found " in str(caught.value)
    return caught.value


def test_all_parts_are_opened_as_one_whichever_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", kinds=KINDS, per_part=2)
    paths = sorted(tmp_path.glob("m-*.gguf"))
    assert [path.name for path in paths] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    oracles = [each for path in paths for each in GGUFReader(path).tensors]
    for path in paths:
        with backbay.gguf.open(path) as file:
            assert file.path == path
            assert file.paths == tuple(paths)
            assert file.metadata.int("block_count") == 2
            assert len(file.metadata.strings("tokenizer.ggml.tokens")) == 8
            assert list(file.tensors) == [each.name for each in oracles]
            for each in oracles:
                assert file.data(each.name).tobytes() == each.data.tobytes()
            assert {info.path for info in file.tensors.values()} == set(paths)


def test_a_first_part_may_hold_metadata_alone(tmp_path: Path) -> None:
    for path in good(tmp_path):
        assert list(backbay.gguf.open(path).tensors) == ["a", "b"]


@pytest.mark.parametrize(
    "name", ["plain.gguf", "m-00001-of-00001.gguf", "m-1-of-3.gguf", "m-00001-of-00003.bin"]
)
def test_a_whole_model_needs_no_split_keys(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(model(tensors=[tensor("w")], data=bytes(32)))
    assert backbay.gguf.open(tmp_path / name).paths == (tmp_path / name,)


@pytest.mark.parametrize("count", [0, 1])
def test_what_merging_leaves_behind_is_a_whole_model(tmp_path: Path, count: int) -> None:
    (tmp_path / "merged.gguf").write_bytes(part(0, count, 5, tensor("w")))
    assert list(backbay.gguf.open(tmp_path / "merged.gguf").tensors) == ["w"]


@pytest.mark.fault("a part of a split model is missing", "ModelFileError naming the part")
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_missing_part_is_named(tmp_path: Path, lost: int) -> None:
    paths = good(tmp_path)
    paths[lost].unlink()
    error = refusal(paths[(lost + 1) % 3])
    assert error.path == str(paths[lost])
    assert f"part {lost + 1} of a model of 3" in str(error.expected)
    assert error.found == "No such file or directory"


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-00000.gguf"])
def test_part_numbers_out_of_range(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(part(0, 3, 0))
    assert "as its name says" in str(refusal(tmp_path / name))


def test_a_name_that_claims_endless_parts_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-99999.gguf").write_bytes(part(0, 65535, 0))
    assert "a split.count of 99999" in str(refusal(tmp_path / "m-00001-of-99999.gguf"))


def test_a_part_under_another_name(tmp_path: Path) -> None:
    error = refusal(good(tmp_path)[0].rename(tmp_path / "other.gguf"))
    assert "a name like NAME-00001-of-00003.gguf" in str(error)
    assert (error.offset, error.found) == (24 + 22 + 23, "3")


def test_a_count_that_contradicts_the_name(tmp_path: Path) -> None:
    paths = save(tmp_path, part(0, 2, 1, tensor("a")), part(1, 3, 1))
    error = refusal(paths[0])
    assert error.path == str(paths[1])
    assert (error.offset, error.expected) == (69, "a split.count of 2, as the file's name says")
    assert error.found == "3"


def test_a_number_that_contradicts_the_name(tmp_path: Path) -> None:
    paths = save(tmp_path, part(0, 2, 1, tensor("a")), part(0, 2, 1))
    error = refusal(paths[0])
    assert error.path == str(paths[1])
    assert (error.offset, error.expected) == (44, "a split.no of 1, for part 2 of 2")
    assert error.found == "0"


@pytest.mark.fault("two parts of a split model have each other's names", "ModelFileError")
def test_swapped_parts(tmp_path: Path) -> None:
    assert "a split.no of 0" in str(refusal(save(tmp_path, part(1, 2, 0), part(0, 2, 0))[0]))


def test_a_part_without_split_keys(tmp_path: Path) -> None:
    whole = model(tensors=[tensor("w")], data=bytes(32))
    assert "found no split.count" in str(refusal(save(tmp_path, whole, whole)[0]))
    only_count = model([pair("split.count", UINT16, b"\1\0")], [tensor("w")], bytes(32))
    (tmp_path / "m-00001-of-00001.gguf").write_bytes(only_count)
    assert list(backbay.gguf.open(tmp_path / "m-00001-of-00001.gguf").tensors) == ["w"]


@pytest.mark.parametrize("total", [0, 1, 3, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_total_that_is_not_there(tmp_path: Path, total: int) -> None:
    paths = save(tmp_path, part(0, 2, 2, tensor("a")), part(1, 2, total, tensor("b")))
    error = refusal(paths[0])
    assert error.path == str(paths[1])
    assert "a split.tensors.count of 2" in str(error.expected)


def test_one_tensor_in_two_parts(tmp_path: Path) -> None:
    paths = save(tmp_path, part(0, 2, 2, tensor("a")), part(1, 2, 2, tensor("a")))
    error = refusal(paths[0])
    assert error.path == str(paths[1])
    assert "tensor 'a' in one part only" in str(error.expected)
    assert paths[0].name in str(error.found)


def test_split_keys_of_another_type(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(model([pair("split.count", 8, (1).to_bytes(8, "little") + b"3")]))
    assert "expected an integer in 'split.count', found the string '3'" in str(refusal(tmp_path / "m.gguf"))
