"""Bad files are refused with file, offset, expectation and finding, in bounded time and memory."""

from __future__ import annotations

import os
import re
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import thread_time

import pytest
from gguf_build import (
    ARRAY,
    BOOL,
    STRING,
    UINT8,
    UINT32,
    array,
    model,
    pair,
    tensor,
    text,
    u32,
    u64,
    write_model,
)

import backbay.gguf
from backbay.errors import ModelFileError
from backbay.types.dtype import DType

HEADER = 24
REMOVED = (4, 5, 31, 32, 33, 36, 37, 38)  # types that ggml once had
HUGE = (1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)


def refusal(directory: Path, content: bytes) -> ModelFileError:
    path = directory / "bad.gguf"
    path.write_bytes(content)
    return refusal_of(path)


def refusal_of(path: Path) -> ModelFileError:
    with bounded(), pytest.raises(ModelFileError) as caught:
        backbay.gguf.open(path)
    error = caught.value
    assert str(error).startswith(str(path))
    assert ": expected " in str(error)
    assert ", found " in str(error)
    assert len(str(error)) < 1000
    return error


@contextmanager
def bounded(seconds: float = 30.0, mebibytes: float = 4.0) -> Iterator[None]:
    """Bounds of memory, and of the processor's time, which is milliseconds."""
    tracemalloc.start()
    start = thread_time()
    try:
        yield
        assert thread_time() - start < seconds
        assert tracemalloc.get_traced_memory()[1] < mebibytes * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.fault("a file ends too early, at any byte of its header", "ModelFileError")
def test_a_file_truncated_anywhere(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    write_model(source, vocabulary=3)
    content = source.read_bytes()
    data = content[: -backbay.gguf.open(source).tensors["blk.0.b"].nbytes]
    for size in range(0, len(data), 7):
        error = refusal(tmp_path, content[:size])
        assert error.offset is not None
        assert error.offset <= size


def test_a_four_byte_file(tmp_path: Path) -> None:
    error = refusal(tmp_path, b"GGUF")
    assert (error.offset, error.expected) == (4, "4 bytes of the version")
    assert error.found == "0 bytes before the end of the file"


@pytest.mark.fault("the file is empty", "ModelFileError")
def test_an_empty_file(tmp_path: Path) -> None:
    assert "an empty file" in str(refusal(tmp_path, b""))


@pytest.mark.fault("the file has another format", "ModelFileError naming the format, where it is known")
def test_another_format(tmp_path: Path) -> None:
    assert "at byte 0: expected the magic GGUF, found b'PK" in str(refusal(tmp_path, b"PK\3\4" + bytes(99)))


@pytest.mark.parametrize("version", [0, 1, 4, 0x7FFFFFFF, 0xFFFFFFFF])
def test_other_versions(tmp_path: Path, version: int) -> None:
    error = refusal(tmp_path, model(version=version))
    assert (error.offset, error.expected, error.found) == (4, "version 2 or 3", f"version {version}")


@pytest.mark.fault("the file was written on a big-endian machine", "ModelFileError saying so")
def test_a_big_endian_file(tmp_path: Path) -> None:
    error = refusal(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    assert "at byte 4: expected a little-endian file, found version 3 in big-endian order" in str(error)


def test_a_missing_file(tmp_path: Path) -> None:
    assert str(refusal_of(tmp_path / "none.gguf")).endswith(
        "a readable file, found No such file or directory"
    )


def test_a_directory(tmp_path: Path) -> None:
    assert "Is a directory" in str(refusal_of(tmp_path))


@pytest.mark.fault("the path is a pipe that nobody writes to", "ModelFileError at once")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in str(refusal_of(tmp_path / "pipe.gguf"))


@pytest.mark.fault("the file may not be read", "ModelFileError")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(model())
    path.chmod(0)
    assert "Permission denied" in str(refusal_of(path))


def test_a_path_with_a_nul() -> None:
    with pytest.raises(ModelFileError, match="null"):
        backbay.gguf.open("a\0b")


@pytest.mark.fault("a header counts more keys or tensors than any file holds", "ModelFileError")
@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize(("at", "what"), [(8, "tensors"), (16, "keys")])
def test_huge_and_negative_counts(tmp_path: Path, at: int, what: str, count: int) -> None:
    content = bytearray(model([pair("k", UINT8, b"\1")]))
    content[at : at + 8] = u64(count)
    error = refusal(tmp_path, bytes(content))
    assert error.offset == at
    assert what in str(error.expected)
    assert str(count) in str(error.found)
    assert ("if signed" in str(error.found)) == (count >= 1 << 63)


@pytest.mark.fault("a string claims to be longer than the file", "ModelFileError")
@pytest.mark.parametrize("length", HUGE)
def test_huge_string_lengths(tmp_path: Path, length: int) -> None:
    cases = {
        HEADER: (u64(length) + bytes(40), "key 0"),
        HEADER + 13: (text("k") + u32(STRING) + u64(length) + bytes(40), "the value of 'k'"),
        HEADER + 34: (array("k", STRING, 2, text("x") + u64(length)), "string 1 of 'k'"),
    }
    for at, (content, what) in cases.items():
        error = refusal(tmp_path, model([content], alignment=1))
        assert error.offset == at
        assert what in str(error.expected)
        assert str(length) in str(error.found)


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("kind", [kind for kind in range(13) if kind != ARRAY])
def test_huge_array_lengths(tmp_path: Path, kind: int, count: int) -> None:
    error = refusal(tmp_path, model([array("k", kind, count, bytes(64))]))
    assert error.offset == HEADER + 17
    assert "elements in 'k'" in str(error.expected)


@pytest.mark.parametrize("kind", [13, 99, 0xFFFFFFFF])
def test_unknown_value_types(tmp_path: Path, kind: int) -> None:
    error = refusal(tmp_path, model([pair("k", kind, bytes(8))]))
    assert (error.offset, error.found) == (HEADER + 9, str(kind))
    assert "the type of 'k' to be from 0 to 12" in str(error.expected)
    error = refusal(tmp_path, model([array("k", kind, 1, bytes(8))]))
    assert (error.offset, error.found) == (HEADER + 13, str(kind))
    assert "the element type of 'k'" in str(error.expected)


@pytest.mark.fault("arrays are nested a million deep", "ModelFileError")
def test_nested_arrays_however_deep(tmp_path: Path) -> None:
    for depth in (1, 2, 100_000):
        payload = (u32(ARRAY) + u64(1)) * depth + u32(UINT8) + u64(1) + b"\1"
        error = refusal(tmp_path, model([pair("k", ARRAY, payload)]))
        assert (error.offset, error.found) == (HEADER + 13, "an array of arrays")


def test_booleans_other_than_0_and_1(tmp_path: Path) -> None:
    error = refusal(tmp_path, model([pair("k", BOOL, b"\2")]))
    assert (error.offset, error.expected, error.found) == (HEADER + 13, "0 or 1 as the boolean 'k'", "2")
    path = tmp_path / "array.gguf"
    path.write_bytes(model([array("k", BOOL, 4, b"\0\1\3\1")]))
    with pytest.raises(ModelFileError, match=r"at byte 51: expected 0 or 1 as element 2 of 'k', found 3"):
        backbay.gguf.open(path).metadata["k"]


def test_a_second_key_of_one_name(tmp_path: Path) -> None:
    error = refusal(tmp_path, model([pair("k", UINT8, b"\1"), pair("k", UINT8, b"\1")]))
    assert error.offset == HEADER + 14
    assert "'k'" in str(error.expected)
    assert "byte 37" in str(error.found)


@pytest.mark.parametrize("name", [b"", b"a\0b", b"\xff", b"\xed\xa0\x80"])
def test_names_that_are_none(tmp_path: Path, name: bytes) -> None:
    error = refusal(tmp_path, model([pair(name, UINT8, b"\1\1\1\1")]))
    assert error.offset == HEADER
    assert "key 0" in str(error.expected)
    error = refusal(tmp_path, model(tensors=[tensor(name)], data=bytes(32)))
    assert error.offset == HEADER
    assert "the name of tensor 0" in str(error.expected)


def test_names_that_are_too_long(tmp_path: Path) -> None:
    error = refusal(tmp_path, model([pair("k" * 65_536, UINT8, b"\1")]))
    assert (error.offset, error.found) == (HEADER, "a length of 65536")
    error = refusal(tmp_path, model(tensors=[tensor("n" * 128)], data=bytes(32)))
    assert (error.offset, error.found) == (HEADER, "a length of 128")


@pytest.mark.parametrize("alignment", [0, 1, 4, 12, 31, 33, 1 << 21, 1 << 31, 0xFFFFFFFF])
def test_bad_alignments(tmp_path: Path, alignment: int) -> None:
    error = refusal(tmp_path, model([pair("general.alignment", UINT32, u32(alignment))]))
    assert error.offset == HEADER + 29
    assert "a power of two from 8 to 1048576" in str(error.expected)
    assert error.found == str(alignment)


def test_an_alignment_or_architecture_of_another_type(tmp_path: Path) -> None:
    error = refusal(tmp_path, model([pair("general.alignment", STRING, text("32"))]))
    assert (error.expected, error.found) == ("general.alignment to be uint32", "string")
    error = refusal(tmp_path, model([array("general.alignment", UINT32, 1, u32(32))]))
    assert error.found == "an array of uint32"
    error = refusal(tmp_path, model([pair("general.architecture", UINT32, u32(32))]))
    assert (error.offset, error.found) == (HEADER + 32, "the int 32")


def test_a_second_tensor_of_one_name(tmp_path: Path) -> None:
    error = refusal(tmp_path, model(tensors=[tensor("w"), tensor("w", offset=32)], data=bytes(64)))
    assert error.offset == HEADER + 33
    assert "no second tensor 'w'" in str(error.expected)


@pytest.mark.parametrize("dtype", [*REMOVED, max(DType) + 1, 999, 0xFFFFFFFF])
def test_unknown_tensor_types(tmp_path: Path, dtype: int) -> None:
    error = refusal(tmp_path, model(tensors=[tensor("w", (256,), dtype)], data=bytes(4096)))
    assert (error.offset, error.found) == (HEADER + 21, f"type {dtype}")
    assert "'w'" in str(error.expected)


@pytest.mark.parametrize("rank", [5, 1 << 20, 0xFFFFFFFF])
def test_too_many_dimensions(tmp_path: Path, rank: int) -> None:
    content = text("w") + u32(rank) + u64(1) * 5 + u32(0) + u64(0)
    error = refusal(tmp_path, model(tensors=[content], data=bytes(32)))
    assert (error.offset, error.found) == (HEADER + 9, str(rank))


@pytest.mark.fault("a tensor's extents overflow 64 bits", "ModelFileError")
@pytest.mark.parametrize(
    "shape",
    [
        (1 << 63,),
        (8, (1 << 64) - 1),
        ((1 << 63) - 1, 2),
        (1 << 32, 1 << 32),
        (1 << 33, 1 << 31, 0),
        (1 << 62,),
        (1 << 40,),
        (9,),
        (8, 2),
    ],
)
def test_dimensions_that_overflow_or_exceed_the_file(tmp_path: Path, shape: tuple[int, ...]) -> None:
    error = refusal(tmp_path, model(tensors=[tensor("w", shape)], data=bytes(32)))
    assert error.offset is not None
    assert error.offset > HEADER
    assert "tensor 'w'" in str(error.expected)


def test_rows_of_half_a_block(tmp_path: Path) -> None:
    for dtype in (DType.Q4_0, DType.Q4_K, DType.NVFP4):
        row = dtype.block_size // 2
        error = refusal(tmp_path, model(tensors=[tensor("w", (row, 2), dtype)], data=bytes(4096)))
        assert (error.offset, error.found) == (HEADER + 9, str(row))
        assert f"a multiple of {dtype.block_size}, for {dtype.name}" in str(error.expected)
    error = refusal(tmp_path, model(tensors=[tensor("w", (), DType.Q4_0)], data=bytes(4096)))
    assert error.found == "1"


@pytest.mark.parametrize("offset", [32, 64, 1 << 40, (1 << 63) - 32, 1 << 63, (1 << 64) - 32])
def test_offsets_beyond_the_file(tmp_path: Path, offset: int) -> None:
    error = refusal(tmp_path, model(tensors=[tensor("w", offset=offset)], data=bytes(32)))
    assert error.offset == HEADER + 25
    assert "the 32 bytes of tensor 'w' within the file's 96" in str(error.expected)
    assert str(offset) in str(error.found)


@pytest.mark.parametrize("offset", [1, 16, 33, (1 << 64) - 1])
def test_offsets_that_are_not_aligned(tmp_path: Path, offset: int) -> None:
    error = refusal(tmp_path, model(tensors=[tensor("w", offset=offset)], data=bytes(256)))
    assert (error.offset, error.expected) == (HEADER + 25, "the offset of tensor 'w' to be a multiple of 32")


@pytest.mark.fault("two tensors share bytes of the file", "ModelFileError")
@pytest.mark.parametrize("offsets", [(0, 0), (0, 32), (32, 0)])
def test_tensors_that_overlap(tmp_path: Path, offsets: tuple[int, int]) -> None:
    rows = [tensor(name, (16,), offset=offset) for name, offset in zip("ab", offsets, strict=True)]
    error = refusal(tmp_path, model(tensors=rows, data=bytes(256)))
    assert re.search("tensor '[ab]' at offset (64|96) or later, where '[ab]' ends", str(error.expected))


def sparse(path: Path, content: bytes, size: int) -> Path:
    path.write_bytes(content)
    try:
        os.truncate(path, size)
    except OSError:
        pytest.skip("no file of this size here")
    return path


@pytest.mark.fault(
    "a sparse file of terabytes claims endless arrays", "ModelFileError, in little time and memory"
)
def test_a_sparse_file_cannot_buy_time_or_memory(tmp_path: Path) -> None:
    # 64 GiB of zeros on disk cost nothing, and would hold what these headers claim.
    size, count = 1 << 36, 1 << 30
    for name, content in {
        "strings": model([array("k", STRING, count, b"")], alignment=1),
        "numbers": model([array("k", UINT8, count, b"")], alignment=1),
        "string": model([pair("k", STRING, u64(1 << 35))], alignment=1),
        "keys": b"GGUF" + u32(3) + u64(0) + u64(count),
        "tensors": b"GGUF" + u32(3) + u64(count) + u64(0),
        "key": b"GGUF" + u32(3) + u64(0) + u64(1) + u64(1 << 35),
    }.items():
        refusal_of(sparse(tmp_path / f"{name}.gguf", content, size))


@pytest.mark.fault("a header is larger than any real one", "ModelFileError, in little time and memory")
def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    content = model([array("k", STRING, 1, u64(1 << 34))], alignment=1)
    path = sparse(tmp_path / "model.gguf", content, 1 << 35)
    with bounded(), pytest.raises(ModelFileError, match="expected a header of at most"):
        backbay.gguf.open(path)


def test_a_huge_string_in_an_array_is_refused_when_it_is_read(tmp_path: Path) -> None:
    content = model([array("k", STRING, 1, u64((1 << 26) + 1))], alignment=1)
    path = sparse(tmp_path / "model.gguf", content, 1 << 35)
    strings = backbay.gguf.open(path).metadata.strings("k")
    with bounded(), pytest.raises(ModelFileError, match="at byte 49: expected a string of at most"):
        strings[0]
    with bounded(), pytest.raises(ModelFileError):
        list(strings)


def test_opening_allocates_little_more_than_the_header(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    words = b"".join(text(f"token {index}") for index in range(50_000))
    path.write_bytes(model([array("tokens", STRING, 50_000, words)]))
    with bounded(mebibytes=2.5 * len(words) / 2**20):
        assert len(backbay.gguf.open(path).metadata.strings("tokens")) == 50_000
