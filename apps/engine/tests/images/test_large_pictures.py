"""Large pictures are made smaller first, and requests with them keep their deadlines and their context."""

from __future__ import annotations

import io
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_vision import write_small_vision

from backbay_engine import LLM, ContextOverflowError, DeadlineError, load
from backbay_engine.images import image as image_module
from backbay_engine.images.image import Image
from backbay_engine.local.media_intake import MediaIntake

PIL = pytest.importorskip("PIL.Image")
SIZE = 400, 300  # width, height
MODES = {
    "PNG": ("RGB", "RGBA", "P", "L", "1"),
    "JPEG": ("RGB", "L"),
    "WEBP": ("RGB", "RGBA"),
    "TIFF": ("RGB", "RGBA", "P", "L", "1"),
}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path, projector = write_small_vision(tmp_path_factory.mktemp("seeing"), "llava")
    with load(path, "cpu_ref", projector=projector, context=256, parallel=2, num_threads=1) as llm:
        yield llm


def pattern() -> Any:
    """A picture whose halves, left and right, top and bottom, have colours of their own."""
    pixels = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    pixels[:, : SIZE[0] // 2, 0] = 200
    pixels[: SIZE[1] // 2, :, 1] = 100
    return PIL.fromarray(pixels)


def in_mode(mode: str) -> Any:
    """The pattern in a mode, without dots of other colours."""
    if mode == "P":
        return pattern().quantize(8)
    if mode == "1":
        return pattern().convert("L").point(lambda value: 255 * (value > 90), "1")
    return pattern().convert(mode)


def saved(image: Any, kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "1"])
@pytest.mark.parametrize("most", [30_000, 7_000, 300])
def test_a_large_picture_is_made_smaller_and_stays_the_same_picture(
    monkeypatch: pytest.MonkeyPatch, kind: str, mode: str, most: int
) -> None:
    if mode not in MODES[kind]:
        pytest.skip("the format has no such pixels")
    image = in_mode(mode)
    data = saved(image, kind)
    whole = Image(data).rgb()
    monkeypatch.setattr(image_module, "MOST_EXACT", most)
    monkeypatch.setattr(image_module, "STRIP", 5000)  # several strips
    small = Image(data).rgb()
    assert small.shape[0] * small.shape[1] <= 1.1 * most
    assert abs(small.shape[1] / small.shape[0] - SIZE[0] / SIZE[1]) < 0.1
    for y in (1, 3):
        for x in (1, 3):
            here = small[small.shape[0] * y // 4, small.shape[1] * x // 4].astype(int)
            there = whole[whole.shape[0] * y // 4, whole.shape[1] * x // 4].astype(int)
            assert np.abs(here - there).max() <= 12


def test_a_large_photo_is_still_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    exif = PIL.Exif()
    exif[0x0112] = 6  # turn it by 90 degrees
    data = saved(pattern(), "JPEG", exif=exif)
    whole = Image(data).rgb()
    monkeypatch.setattr(image_module, "MOST_EXACT", 8000)
    small = Image(data).rgb()
    assert whole.shape[0] > whole.shape[1]
    assert small.shape[0] > small.shape[1]
    assert np.abs(small[2, 2].astype(int) - whole[5, 5].astype(int)).max() <= 12


def test_grey_of_16_bits_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = np.full((300, 400), 0x8000, np.uint16)
    monkeypatch.setattr(image_module, "MOST_EXACT", 8000)
    assert (Image(saved(PIL.fromarray(grey), "PNG")).rgb() == 0x80).all()


def black_png(width: int, height: int) -> bytes:
    """A file of few bytes and of one bit for each pixel."""
    packed, row = zlib.compressobj(9), b"\0" * (1 + (width + 7) // 8)
    rows = b"".join([packed.compress(row) for _ in range(height)]) + packed.flush()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.fault(
    "a picture of 11 kB has 89 million pixels",
    "it is made smaller first, and costs no more than a large photo",
)
def test_a_picture_of_many_pixels_costs_no_more_than_a_large_photo() -> None:
    data = black_png(9000, 9900)
    assert len(data) < 11_000
    assert Image(data).rgb().size <= 3 * image_module.MOST_EXACT


@pytest.mark.fault(
    "a picture takes longer than the deadline of its request",
    "DeadlineError at the deadline, with this reason",
)
def test_a_request_ends_at_its_deadline_while_its_picture_is_prepared(
    seeing: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    prepare = MediaIntake.prepare

    def slow(self: MediaIntake, given: Any) -> Any:
        assert goes_on.wait(60)
        return prepare(self, given)

    monkeypatch.setattr(MediaIntake, "prepare", slow)
    begun = time.monotonic()
    handle = seeing.submit(["look ", Image(np.zeros((8, 8, 3), np.uint8))], max_tokens=2, deadline=0.2)
    try:
        with pytest.raises(DeadlineError, match="its pictures or sounds were not ready"):
            handle.result(30)
        assert time.monotonic() - begun < 20
    finally:
        goes_on.set()
    monkeypatch.undo()
    assert seeing.generate(["look ", Image(np.zeros((8, 8, 3), np.uint8))], max_tokens=2).timings.tokens


@pytest.mark.fault(
    "thousands of pictures are to enter a small context",
    "ContextOverflowError before more than a few are prepared",
)
@pytest.mark.parametrize("count", [100, 3000])
def test_pictures_are_counted_before_all_are_prepared(
    seeing: LLM, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    prepared: list[int] = []
    prepare = MediaIntake.prepare

    def counted(self: MediaIntake, given: Any) -> Any:
        prepared.append(1)
        time.sleep(0.01)
        return prepare(self, given)

    monkeypatch.setattr(MediaIntake, "prepare", counted)
    with pytest.raises(ContextOverflowError, match="the context holds 256"):
        seeing.generate([Image(np.full((8, 8, 3), n % 256, np.uint8)) for n in range(count)], max_tokens=2)
    assert len(prepared) < 90


def test_ids_are_counted_before_they_are_looked_at(seeing: LLM) -> None:
    looked: list[int] = []

    class Ids(list[int]):
        def __iter__(self) -> Iterator[int]:
            return (looked.append(each) or each for each in super().__iter__())

    ids = Ids([65] * 1000)
    with pytest.raises(ContextOverflowError, match="has 1000 tokens"):
        seeing.generate(ids, max_tokens=2)
    assert len(looked) <= 1  # whether it is a text
