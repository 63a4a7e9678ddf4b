"""Reading what gguf's own writer wrote, with gguf's own reader as the oracle."""

from __future__ import annotations

import gc
import os
import re
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize, quantize
from gguf_build import (
    ARRAY,
    F32,
    STRING,
    array,
    model,
    pair,
    tensor,
    text,
    u32,
    u64,
    write_model,
)
from gguf_oracle import agree

import backbay.gguf
from backbay.errors import ClosedError, ModelFileError
from backbay.gguf.content import HUGE_PAGE, MOST_READ, ValueType
from backbay.types.dtype import DType

ALL = tuple(GGMLQuantizationType)


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_agrees_with_the_gguf_package(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kinds=ALL, alignment=alignment)
    agree(path)


@pytest.mark.parametrize("version", [2, 3])
def test_reads_versions_2_and_3(tmp_path: Path, version: int) -> None:
    path = tmp_path / "model.gguf"
    write_model(path)
    content = bytearray(path.read_bytes())
    content[4:8] = u32(version)
    path.write_bytes(content)
    agree(path)
    assert backbay.gguf.open(path).version == version


def test_knows_the_same_types_as_the_gguf_package() -> None:
    assert {kind.name: kind.value for kind in ValueType} == {kind.name: kind.value for kind in GGUFValueType}
    sizes = {dtype.name: (int(dtype), dtype.block_size, dtype.type_size) for dtype in DType}
    assert sizes == {kind.name: (kind.value, *GGML_QUANT_SIZES[kind]) for kind in ALL}


def test_quantized_data_dequantizes_to_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kinds=[GGMLQuantizationType.Q8_0])
    expected = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    with backbay.gguf.open(path) as file:
        rows = dequantize(file.data("blk.0.w").reshape(3, -1), GGMLQuantizationType.Q8_0)
    exact = dequantize(quantize(expected, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(rows, exact)
    np.testing.assert_allclose(rows, expected, atol=0.02)  # half a step of 3.5/127


def save(directory: Path, content: bytes) -> Path:
    path = directory / "model.gguf"
    path.write_bytes(content)
    return path


def test_data_is_a_read_only_view_without_a_copy(tmp_path: Path) -> None:
    path = save(tmp_path, model(tensors=[tensor("w", (2, 4))], data=bytes(range(32))))
    with backbay.gguf.open(path) as file:
        first, second = file.data("w"), file.data("w")
        assert first.dtype == np.uint8
        assert first.tolist() == list(range(32))
        assert not first.flags.writeable
        assert np.shares_memory(first, second)
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 1


@pytest.mark.skipif(
    not HUGE_PAGE.exists() or int(HUGE_PAGE.read_text()) > MOST_READ,
    reason="this system has no huge pages of 2 MiB",
)
def test_the_system_may_read_weights_in_huge_pages(tmp_path: Path) -> None:
    path = save(tmp_path, model(tensors=[tensor("w")], data=bytes(32)))
    with backbay.gguf.open(path) as file:
        place = file.data("w").ctypes.data
        for mapping in re.split(
            r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE
        ):
            first, _, end = mapping.partition(" ")[0].partition("-")
            if first and int(first, 16) <= place < int(end, 16):
                assert "hg" in mapping.rpartition("VmFlags:")[2].split()
                return
    raise AssertionError("the weights are not mapped")


def test_views_outlive_their_file(tmp_path: Path) -> None:
    path = save(tmp_path, model(tensors=[tensor("w")], data=bytes(range(32))))
    file = backbay.gguf.open(path)
    view = file.data("w")
    file.close()
    file.close()
    del file
    gc.collect()
    assert view.tolist() == list(range(32))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts this process's maps")
def test_close_unmaps_the_weights_and_the_metadata_works_on(tmp_path: Path) -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(path))

    pairs = [array("names", STRING, 2, text("a") + text("b")), pair("size", 4, u32(7))]
    path = save(tmp_path, model(pairs, [tensor("w")], bytes(32)))
    file = backbay.gguf.open(path)
    open_maps = maps()
    file.close()
    assert maps() == open_maps - 1
    assert list(file.metadata.strings("names")) == ["a", "b"]
    assert file.metadata.int("size") == 7
    del file
    gc.collect()
    assert maps() == 0


def test_a_closed_file_gives_no_data(tmp_path: Path) -> None:
    path = save(tmp_path, model(tensors=[tensor("w")], data=bytes(32)))
    with backbay.gguf.open(path) as file:
        assert not file.closed
    assert file.closed
    with pytest.raises(ClosedError, match=r"model.gguf"):
        file.data("w")


def test_an_unknown_tensor_names_the_nearest(tmp_path: Path) -> None:
    path = save(tmp_path, model(tensors=[tensor("blk.0.attn_q.weight")], data=bytes(32)))
    with (
        backbay.gguf.open(path) as file,
        pytest.raises(
            ModelFileError, match=r"model.gguf: expected a tensor 'blk.0.attn_k.weight', found 1 other"
        ),
    ):
        file.data("blk.0.attn_k.weight")


def test_tensor_infos_cannot_be_changed(tmp_path: Path) -> None:
    path = save(tmp_path, model(tensors=[tensor("w")], data=bytes(32)))
    file = backbay.gguf.open(path)
    with pytest.raises(TypeError):
        file.tensors["x"] = file.tensors["w"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        file.tensors["w"].offset = 0  # type: ignore[misc]


@pytest.mark.parametrize("shape", [(), (1,), (8, 1, 1, 1), (0,), (8, 0), (0, 5, 0)])
def test_the_declared_rank_is_kept_and_empty_tensors_are_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = save(tmp_path, model(tensors=[tensor("w", shape)], data=bytes(32)))
    with backbay.gguf.open(path) as file:
        assert file.tensors["w"].shape == shape
        assert file.data("w").nbytes == 4 * int(np.prod(shape))


def test_tensors_may_lie_in_any_order_with_gaps(tmp_path: Path) -> None:
    rows = [tensor("late", offset=128), tensor("empty", (0,), offset=32), tensor("early", offset=0)]
    path = save(tmp_path, model(tensors=rows, data=bytes(128) + bytes(range(32))))
    with backbay.gguf.open(path) as file:
        assert list(file.tensors) == ["late", "empty", "early"]
        assert file.data("late").tolist() == list(range(32))


def test_a_file_of_metadata_alone_needs_no_padding(tmp_path: Path) -> None:
    path = save(tmp_path, model([pair("general.architecture", STRING, text("llama"))], alignment=1))
    with backbay.gguf.open(path) as file:
        assert file.metadata.architecture == "llama"
        assert not file.tensors


def test_empty_arrays_are_read(tmp_path: Path) -> None:
    pairs = [array("strings", STRING, 0, b""), array("floats", 6, 0, b"")]
    path = save(tmp_path, model(pairs, alignment=1))
    config = backbay.gguf.open(path).metadata
    assert list(config["strings"]) == []
    assert config["floats"].size == 0
    assert list(config.strings("floats")) == []
    assert config.ints("strings").size == 0


def test_strings_are_a_sequence(tmp_path: Path) -> None:
    words = [f"word {index}" for index in range(10)]
    path = save(tmp_path, model([array("words", STRING, 10, b"".join(map(text, words)))]))
    found = backbay.gguf.open(path).metadata.strings("words")
    assert list(found) == words
    assert [found[index] for index in range(-10, 10)] == words * 2
    assert found[2:8:3] == words[2:8:3]
    assert list(reversed(found)) == words[::-1]
    assert "word 3" in found
    assert found.index("word 7") == 7
    with pytest.raises(IndexError):
        found[10]


def test_bytes_that_are_not_utf8_survive_in_values(tmp_path: Path) -> None:
    raw = [b"\xff\xfe", b"ok", "é".encode()[:1], b"nul\0inside"]
    pairs = [array("tokens", STRING, 4, b"".join(map(text, raw))), pair("name", STRING, text(raw[0]))]
    config = backbay.gguf.open(save(tmp_path, model(pairs))).metadata
    assert [token.encode("utf-8", "surrogateescape") for token in config.strings("tokens")] == raw
    assert config.string("name").encode("utf-8", "surrogateescape") == raw[0]


def test_numeric_arrays_are_views_even_where_they_are_unaligned(tmp_path: Path) -> None:
    pairs = [
        array("odd", 12, 3, struct.pack("<3d", 1, 2, 3)),
        array("even", 12, 3, struct.pack("<3d", 4, 5, 6)),
    ]
    config = backbay.gguf.open(save(tmp_path, model(pairs))).metadata
    assert config["odd"].tolist() == [1, 2, 3]
    assert config["even"].tolist() == [4, 5, 6]
    assert not config["odd"].flags.owndata
    assert config.floats("odd").flags.owndata


def test_longer_names_than_ggmls_are_read(tmp_path: Path) -> None:
    name = "n" * 127
    path = save(tmp_path, model(tensors=[tensor(name)], data=bytes(32)))
    assert list(backbay.gguf.open(path).tensors) == [name]


def test_several_threads_may_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, kinds=ALL, vocabulary=2000)
    with backbay.gguf.open(path) as file:

        def read(_: int) -> tuple[list[str], int]:
            tokens = file.metadata.strings("tokenizer.ggml.tokens")
            total = sum(int(file.data(name).sum()) for name in file.tensors)
            return [tokens[index] for index in range(len(tokens))], total

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(read, range(16)))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("form", [str, Path, os.fspath])
def test_paths_come_in_any_form(tmp_path: Path, form: Any) -> None:
    path = save(tmp_path, model(tensors=[tensor("w")], data=bytes(32)))
    file = backbay.gguf.open(form(path))
    assert file.path == path
    assert file.paths == (path,)
    assert file.tensors["w"].path == path
    assert "1 tensors" in repr(file)


def test_reading_does_not_import_the_gguf_package() -> None:
    code = "import sys, backbay.gguf; sys.exit('gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_handmade_files_are_what_the_gguf_package_reads(tmp_path: Path) -> None:
    pairs = [pair("a", ARRAY, u32(4) + u64(2) + u32(5) + u32(6)), pair("b", STRING, text("x"))]
    agree(save(tmp_path, model(pairs, [tensor("w", (4, 2), F32)], bytes(range(32)))))
