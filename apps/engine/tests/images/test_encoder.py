"""The encoder: kept contexts, chunks, memory, cancelling."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from vision_files import ENCODERS, opened, pictures, unpacked

import backbay
from backbay import BackendParams, CancelledError
from backbay_engine import ImageError, RequestError
from backbay_engine.encoders import block as attention
from backbay_engine.media import encoder as encoding

BACKENDS = sorted(backbay.backends())


@pytest.fixture(params=["gemma3-projector", "qwen25vl-projector", "mllama-single"])
def path(request, tmp_path):
    return unpacked(request.param, tmp_path)


def given(encoder, path, size="wide"):
    return encoder.family.prepare(pictures(path.stem)[size][0])


@pytest.fixture
def encoder(path):
    encoder = opened(path)
    yield encoder
    encoder.close()


def test_a_second_picture_of_a_shape_is_not_traced_again(path, encoder):
    picture = given(encoder, path)
    (first,) = encoder.embed([picture])
    traced = encoder.backend.counters.traced_nodes
    other = picture.replace(pixels=picture.pixels * 0.5)
    (second,), (again,) = encoder.embed([other]), encoder.embed([picture])
    assert encoder.backend.counters.traced_nodes == traced
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, second)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.few(5)
def test_the_first_picture_may_be_one_of_the_largest(name, tmp_path):
    encoder = opened(unpacked(name, tmp_path))
    try:
        reserved, largest = encoder.memory().total(), encoder.family.largest()
        picture = encoder.family.prepare(np.zeros((*largest.size, 3), np.uint8))
        assert (picture.pixels.shape, picture.grid) == (largest.pixels.shape, largest.grid)
        (rows,) = encoder.embed([picture])
        assert len(rows) == picture.tokens == largest.tokens
        assert encoder.memory().total() <= reserved
    finally:
        encoder.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(4)
def test_chunks_give_the_rows_of_one_pass_and_take_turns(path, monkeypatch, backend):
    turns = []

    @contextmanager
    def turn():
        turns.append("begins")
        yield
        turns.append("ends")

    whole = opened(path, backend)
    picture = given(whole, path)
    (wanted,) = whole.embed([picture])
    whole.close()
    monkeypatch.setattr(encoding, "WORK", 1.0)
    cut = opened(path, backend)
    try:
        for _ in range(2):
            turns.clear()
            (rows,) = cut.embed([picture], turn=turn)
            np.testing.assert_allclose(rows, wanted, atol=1e-4, rtol=1e-4)
            assert turns == ["begins", "ends"] * (1 + cut.network.blocks)
    finally:
        cut.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(4)
def test_tiles_of_attention_give_the_rows_of_whole_attention(path, monkeypatch, backend):
    whole = opened(path, backend)
    picture = given(whole, path)
    (wanted,) = whole.embed([picture])
    whole.close()
    monkeypatch.setattr(attention, "SCORES", 1)
    monkeypatch.setattr(attention, "LEAST", 16)
    monkeypatch.setattr(attention, "TOGETHER", 32)
    tiled = opened(path, backend)
    (rows,) = tiled.embed([picture])
    tiled.close()
    np.testing.assert_allclose(rows, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.few(14)
def test_a_dry_run_reports_the_memory_of_a_real_one(tmp_path, name, backend):
    path = unpacked(name, tmp_path)
    reports = []
    for alloc in (False, True):
        encoder = opened(path, backend, BackendParams(alloc_memory=alloc))
        report = encoder.memory()
        devices = (report.cpu, *report.gpus)
        weights = [[entry.size for entry in device.weights] for device in devices]
        cache = [[entry.size for entry in device.cache] for device in devices]
        graphs = [device.graph.size for device in devices]
        reports.append((weights, cache, graphs, report.host.size, report.total()))
        assert len(weights[0]) == encoder.network.blocks + 1
        assert all(sum(sizes) > 0 for sizes in zip(*weights, strict=True))
        encoder.close()
    assert reports[0] == reports[1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(4)
def test_pictures_stay_within_the_reserved_memory(path, backend):
    encoder = opened(path, backend)
    try:
        reserved = encoder.memory().total()
        for size in pictures(path.stem):
            encoder.embed([given(encoder, path, size)] * 3)
            assert encoder.memory().total() <= reserved
    finally:
        encoder.close()


@pytest.mark.fault(
    "a request is cancelled while its picture is encoded", "CancelledError; the next picture is encoded"
)
def test_a_cancelled_picture_costs_nobody_else(path, encoder):
    picture = given(encoder, path)
    (wanted,) = encoder.embed([picture])
    gone = Event()
    gone.set()
    with pytest.raises(CancelledError):
        encoder.embed([picture], cancel=gone)
    np.testing.assert_array_equal(encoder.embed([picture])[0], wanted)


@pytest.mark.fault("a prepared picture was changed by hand", "ImageError with what its preparation makes")
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.few(5)
def test_a_prepared_picture_that_no_preparation_makes_is_refused(name, tmp_path):
    encoder = opened(unpacked(name, tmp_path))
    try:
        right = encoder.family.prepare(np.zeros((60, 90, 3), np.uint8))
        for change in (
            {"tokens": right.tokens - 1},
            {"tokens": -1},
            {"pixels": right.pixels[:0]},
            {"pixels": right.pixels[0]},
            {"grid": right.grid[1:]},
            {"grid": (*right.grid[:-1], 1000)},
            {"size": (0, 0)},
            {"aspect_ratio_id": 99},
        ):
            with pytest.raises(ImageError):
                encoder.embed([replace(right, **change)])
        assert len(encoder.embed([right])[0]) == right.tokens
    finally:
        encoder.close()


@pytest.mark.fault("a picture was prepared for another model", "ImageError with both models")
def test_a_picture_of_another_model_is_refused(tmp_path):
    gemma, llava = (opened(unpacked(name, tmp_path)) for name in ("gemma3-projector", "llava-old"))
    rgb = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(ImageError, match="prepared for llava"):
        gemma.embed([llava.family.prepare(rgb)])
    for encoder in (gemma, llava):
        encoder.close()


def test_larger_pictures_are_made_smaller_as_the_family_allows(tmp_path):
    encoder = opened(unpacked("qwen25vl-projector", tmp_path), image_tokens=12)
    large = encoder.family.prepare(np.zeros((400, 300, 3), np.uint8))
    assert large.tokens <= 12 == encoder.family.image_tokens
    assert len(encoder.embed([large])[0]) == large.tokens
    encoder.close()


@pytest.mark.fault("image_tokens is less than a picture takes", "RequestError with the number that it takes")
def test_too_few_image_tokens_are_refused_when_the_model_opens(tmp_path):
    with pytest.raises(RequestError, match="makes 4 rows"):
        opened(unpacked("gemma3-projector", tmp_path), image_tokens=3)
