"""Damaged, truncated and foreign snapshots are errors by class, and nothing is lost."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backbay import BackbayError
from backbay_engine import (
    LLM,
    DamagedSnapshotError,
    ForeignSnapshotError,
    RequestError,
    Snapshot,
    SnapshotError,
    load,
)
from backbay_engine.cache.cells.contents import CacheContents
from backbay_engine.snapshots import tensor_file

SIZES: dict[str, Any] = {"context": 64, "parallel": 1, "batch": 16, "num_threads": 1, "kv_dtype": "f32"}
TEXT = "a snapshot"


@pytest.fixture(scope="module")
def small(path: Path) -> Iterator[LLM]:
    with load(path, "cpu_ref", **SIZES) as opened:
        yield opened


@pytest.fixture(scope="module")
def whole(small: LLM) -> bytes:
    return bytes(small.save(TEXT).to_bytes())


@given(st.data())
def test_a_changed_byte_is_found_wherever_it_is(whole: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    try:
        found = Snapshot.from_bytes(changed)
    except DamagedSnapshotError:
        return
    assert found.to_bytes() == Snapshot.from_bytes(whole).to_bytes()  # a space of the header


@given(st.data())
def test_a_cut_file_is_found(whole: bytes, data: st.DataObject) -> None:
    with pytest.raises(DamagedSnapshotError):
        Snapshot.from_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for given_bytes in (data, struct.pack("<Q", len(data)) + data):
        with pytest.raises(DamagedSnapshotError):
            Snapshot.from_bytes(given_bytes)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("__metadata__"),
        lambda header: header["__metadata__"].update(format="another"),
        lambda header: header["__metadata__"].pop("facts"),
        lambda header: header["__metadata__"].update(facts="[]"),
        lambda header: header["__metadata__"].update(checksums="{}"),
        lambda header: header["tokens"].update(dtype="F64"),
        lambda header: header["tokens"].update(shape=[1 << 62, 1 << 62]),
        lambda header: header["tokens"].update(shape=[-1]),
        lambda header: header["tokens"].update(data_offsets=[0, 1 << 62]),
        lambda header: header.pop("tokens"),
    ],
)
def test_a_header_with_other_facts_is_refused(whole: bytes, change: Callable[[Any], Any]) -> None:
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    change(header)
    made = json.dumps(header).encode()
    with pytest.raises(DamagedSnapshotError):
        Snapshot.from_bytes(struct.pack("<Q", len(made)) + made + whole[8 + size :])


def test_wrong_facts_with_right_checksums_are_refused(whole: bytes) -> None:
    arrays, facts = tensor_file.unpack_tensors(whole, "here")
    wrong: list[dict[str, Any]] = [
        {},
        {**facts, "numbers": 3},
        {**facts, "options": [1]},
        {**facts, "exact": "x"},
        {**facts, "exact": math.inf},
        {**facts, "numbers": {"end": math.inf}},
        {**facts, "options": {"logit_bias": [[1, 10**400]]}},
        {**facts, "notes": 5},
    ]
    for each in wrong:
        with pytest.raises(DamagedSnapshotError):
            Snapshot.from_bytes(tensor_file.pack_tensors(arrays, each))


@pytest.mark.parametrize("name", ["tokens", "prompt"])
def test_tokens_that_are_no_row_of_ids_are_refused(whole: bytes, name: str) -> None:
    arrays, facts = tensor_file.unpack_tensors(whole, "here")
    for wrong in (arrays[name].astype("<f4"), arrays[name].reshape(1, -1)):
        with pytest.raises(DamagedSnapshotError):
            Snapshot.from_bytes(tensor_file.pack_tensors({**arrays, name: wrong}, facts))


def test_more_dimensions_than_numpy_has_are_refused(whole: bytes) -> None:
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    metadata = header.pop("__metadata__")
    header["tokens"]["shape"] += [1] * 99
    metadata["checksum"] = tensor_file._whole_sum(header, metadata["facts"], metadata["checksums"])
    made = json.dumps({"__metadata__": metadata, **header}).encode()
    with pytest.raises(DamagedSnapshotError, match="described wrongly"):
        Snapshot.from_bytes(struct.pack("<Q", len(made)) + made + whole[8 + size :])


def test_a_crafted_cache_is_refused_and_the_model_goes_on(small: LLM, whole: bytes) -> None:
    right = Snapshot.from_bytes(whole)
    arrays, numbers = right.contents.arrays, right.contents.numbers
    expected = small.generate(TEXT, temperature=0, max_tokens=5).tokens
    crafted = [
        replace(right, contents=CacheContents()),
        replace(right, contents=CacheContents(arrays, {**numbers, "end": numbers["end"] + 1})),
        replace(right, contents=CacheContents(arrays, {**numbers, "begin": 3})),
        replace(right, contents=CacheContents(arrays, {**numbers, "begin": -1})),
        replace(right, contents=CacheContents({name: a[:, :1] for name, a in arrays.items()}, numbers)),
        replace(right, contents=CacheContents(dict(list(arrays.items())[1:]), numbers)),
        replace(right, tokens=(*right.tokens, 5)),
        replace(right, tokens=(*right.tokens[:-1], 10**6)),
        replace(right, tokens=right.tokens * 9),
        replace(right, model="another"),
    ]
    for each in crafted:
        with pytest.raises((ForeignSnapshotError, RequestError)):
            small.restore(each)
        assert small.generate(TEXT, temperature=0, max_tokens=5).tokens == expected


def test_a_cache_of_nan_harms_only_its_own_conversation(small: LLM, whole: bytes) -> None:
    expected = small.generate("another", temperature=0, max_tokens=5).tokens
    right = Snapshot.from_bytes(whole)
    spoiled = {name: np.full_like(array, np.nan) for name, array in right.contents.arrays.items()}
    small.restore(replace(right, contents=CacheContents(spoiled, right.contents.numbers)))
    with pytest.raises(BackbayError, match="not finite"):
        small.generate([*right.tokens, 65], temperature=0, max_tokens=2)
    assert small.generate("another", temperature=0, max_tokens=5).tokens == expected


def test_a_failed_write_keeps_the_old_file(
    small: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "talk.safetensors"
    small.save(TEXT).write(file)
    before = file.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BackbayError, match="No space left"):
        small.save("another text").write(file)
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["talk.safetensors"]


def test_a_file_that_cannot_be_read_is_named(small: LLM, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"none.safetensors: .* cannot be read: No such file") as caught:
        small.restore(tmp_path / "none.safetensors")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    for wrong in (tmp_path, "null\0"):
        with pytest.raises(SnapshotError, match="cannot be read"):
            small.restore(wrong)


def test_a_snapshot_of_a_larger_vocabulary_is_one_of_another_model(small: LLM, whole: bytes) -> None:
    larger = replace(Snapshot.from_bytes(whole), tokens=(10**6,))
    with pytest.raises(ForeignSnapshotError, match="the token 1000000"):
        small.restore(larger)
    with pytest.raises(ForeignSnapshotError, match="only the same weights can go on"):
        small.restore(replace(larger, model="another"))


@pytest.mark.fault(
    "a snapshot is a pipe, a device, or a sparse file of terabytes", "SnapshotError, before it is read"
)
def test_what_is_no_snapshot_is_refused_before_it_is_read(tmp_path: Path, whole: bytes) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(SnapshotError, match="not a regular file"):
            Snapshot.read(path)
    for begin in (b"", whole):
        sparse = tmp_path / "sparse"
        sparse.write_bytes(begin)
        os.truncate(sparse, 1 << 42)
        with pytest.raises(DamagedSnapshotError):
            Snapshot.read(sparse)
