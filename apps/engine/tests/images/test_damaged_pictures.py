from __future__ import annotations

import io
import random
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import drawn, preparations
from PIL import Image as Pillow

from backbay_engine import ImageError
from backbay_engine.images.image import MOST_PIXELS, Image, image_of
from backbay_engine.images.preparations.preparation import Preparation

KINDS = ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "ICO", "QOI", "AVIF"]


def as_file(kind: str, picture: Any = None) -> bytes:
    out = io.BytesIO()
    Pillow.fromarray(drawn(40, 50) if picture is None else picture).save(out, kind)
    return out.getvalue()


def png_of(width: int, height: int) -> bytes:
    """A PNG file whose header says a size, with hardly any data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def refused(source: Any, *told: str) -> None:
    with pytest.raises(ImageError) as caught:
        Image(source).rgb()
    for each in told:
        assert re.search(each, str(caught.value)), caught.value


@pytest.mark.fault("a truncated image file", "ImageError naming the file and the missing bytes")
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_truncated_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "half.img"
    path.write_bytes(as_file(kind)[: len(as_file(kind)) * 2 // 3])
    refused(path, "half.img cannot be decoded", "truncated|bytes|broken")


@pytest.mark.fault(
    "an image file that unfolds to billions of pixels", "ImageError naming its size and the limit"
)
@pytest.mark.parametrize("side", [9460, 12000, 60000])
def test_a_bomb_is_refused_before_it_unfolds(side: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)
        refused(png_of(side, side), "pixels", str(MOST_PIXELS))
        with pytest.raises(ImageError):
            Image(png_of(side, side)).size()


@pytest.mark.fault("a picture without pixels", "ImageError naming its size")
def test_a_picture_without_pixels_is_refused() -> None:
    refused(drawn(1, 1)[:, :0], "an array has 0 x 1 pixels")


@pytest.mark.fault("a picture of 1 x 8000 pixels", "ImageError naming its size and the limit")
def test_a_line_is_refused() -> None:
    refused(as_file("PNG", drawn(8000, 1)), "1 x 8000 pixels", "factor of 200")
    refused(drawn(1, 8000), "8000 x 1 pixels", "factor of 200")


@pytest.mark.fault("an empty image file", "ImageError that says so")
def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.png").touch()
    refused(tmp_path / "nothing.png", "nothing.png is empty")
    refused(b"", "empty")
    refused(np.zeros((0, 5, 3), np.uint8), "5 x 0 pixels")


@pytest.mark.fault("a text, or a file of an unknown kind, as a picture", "ImageError naming its first bytes")
@pytest.mark.parametrize(
    "data", [b"Hello, I am a text.", b"%PDF-1.7\n", b"\x00" * 500, b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_a_file_of_another_kind_is_refused(data: bytes) -> None:
    refused(data, "no picture of a known kind", re.escape(repr(data[:16])))


@pytest.mark.fault("a picture's path that cannot be read", "ImageError naming the path and the reason")
def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "absent.png", "absent.png cannot be read", "No such file")
    refused(tmp_path, "Is a directory")
    refused("a\0b", "null")


@pytest.mark.fault("an http address as a picture", "ImageError: nothing is fetched")
def test_nothing_is_fetched() -> None:
    refused("https://example.org/cat.png", "not fetched")
    for url in ("http://example.org/cat.png", "file:///etc/passwd", "cat.png", None):
        with pytest.raises(ImageError, match="must be a data: URL"):
            image_of({"type": "image_url", "image_url": {"url": url}})


@pytest.mark.fault("a data: URL without a picture", "ImageError naming what is wrong with it")
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("data:image/png", "comma"),
        ("data:image/png;base64,####", "base64"),
        ("data:image/png;base64,", "empty"),
        ("data:,hi", "kind"),
    ],
)
def test_a_broken_url_is_refused(url: str, told: str) -> None:
    refused(url, told)


@pytest.mark.fault("something else than a picture as an image", "ImageError naming the forms of pictures")
@pytest.mark.parametrize(
    ("source", "told"),
    [
        (12, "got int"),
        (None, "got NoneType"),
        (np.zeros((5, 5), np.uint8), r"\(5, 5\) of uint8"),
        (np.zeros((5, 5, 4), np.uint8), r"\(5, 5, 4\)"),
        (np.zeros((5, 5, 3)), "float64"),
        (io.StringIO("text"), "binary mode"),
        (Pillow.new("F", (5, 5)), "32-bit floats"),
    ],
)
def test_other_values_are_refused(source: Any, told: str) -> None:
    refused(source, told)
    with pytest.raises(ImageError, match='needs the key "image" or "image_url"'):
        image_of({"type": "text", "text": "no picture"})
    with pytest.raises(ImageError, match="fit"):
        Image(drawn(4, 4), fit="stretch")  # type: ignore[arg-type]


def flipped(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 2, 8, 40])):
        changed[rng.randrange(len(changed))] = rng.choice([0, 255, rng.randrange(256)])
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def without_a_part(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(40) :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [flipped, cut, without_a_part])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
def test_a_damaged_file_gives_a_picture_or_an_image_error(
    kind: str, damage: Callable[[random.Random, bytes], bytes]
) -> None:
    rng, whole = random.Random(f"{kind} {damage.__name__}"), as_file(kind)
    preparation: Preparation = preparations(48, 8)["gemma3"]
    for _ in range(25):
        image = Image(damage(rng, whole))
        try:
            picture = image.rgb()
        except ImageError:
            continue
        assert picture.dtype == np.uint8
        assert picture.shape == (*image.size(), 3)
        assert np.isfinite(preparation.prepare(picture).pixels).all()
