from __future__ import annotations

import base64
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import drawn
from PIL import Image as Pillow

from backbay_engine import ImageError
from backbay_engine.images.image import Image, image_of

PICTURE = drawn(24, 31)


def as_file(picture: Any = PICTURE, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    (picture if isinstance(picture, Pillow.Image) else Pillow.fromarray(picture)).save(out, kind, **options)
    return out.getvalue()


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_all_forms_of_a_picture_are_the_same_picture(tmp_path: Path) -> None:
    path = tmp_path / "ä picture.png"
    path.write_bytes(as_file())
    sources = [
        *(str(path), path, as_file(), bytearray(as_file()), memoryview(as_file()), io.BytesIO(as_file())),
        *(data_url(as_file()), PICTURE, PICTURE[::-1][::-1], Pillow.fromarray(PICTURE)),
    ]
    with path.open("rb") as file, Pillow.open(path) as lazy:
        for source in (*sources, file, lazy):
            image = Image(source)
            assert image.size() == (24, 31)
            assert (image.rgb() == PICTURE).all()
            assert (pickle.loads(pickle.dumps(image)).rgb() == PICTURE).all()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": as_file()},
        {"type": "image", "image": PICTURE},
        {"type": "image", "image": data_url(as_file())},
        {"type": "image_url", "image_url": {"url": data_url(as_file()), "detail": "high"}},
        {"type": "image_url", "image_url": data_url(as_file())},
        Image(PICTURE, fit="pad"),
    ],
)
def test_content_parts_hold_pictures(part: Any) -> None:
    assert (image_of(part).rgb() == PICTURE).all()


def test_data_urls_may_be_percent_encoded_wrapped_and_in_capitals() -> None:
    encoded = base64.b64encode(as_file()).decode()
    quoted = "".join(f"%{byte:02x}" for byte in as_file())
    for url in (
        f"DATA:image/png;BASE64,{encoded}",
        f"data:;base64,{encoded[:60]}\n{encoded[60:]}",
        f"data:,{quoted}",
    ):
        assert (Image(url).rgb() == PICTURE).all()


def test_an_array_is_copied_and_a_fit_kept() -> None:
    array = PICTURE.copy()
    image = Image(array, fit="pad")
    array[:] = 0
    assert (image.rgb() == PICTURE).all()
    assert image_of({"image": image}).fit == "pad"


def test_transparency_lies_on_white() -> None:
    colour = np.zeros((4, 4, 4), np.uint8)
    colour[:, :2] = (200, 0, 0, 255)
    colour[:, 2] = (200, 0, 0, 51)
    right = [[200, 0, 0], [200, 0, 0], [244, 204, 204], [255, 255, 255]]
    assert Image(as_file(Pillow.fromarray(colour))).rgb()[0].tolist() == right
    palette = Pillow.fromarray(PICTURE).quantize(4)
    shown = Image(as_file(palette, transparency=0)).rgb()
    assert (shown[np.asarray(palette) == 0] == 255).all()
    grey = Pillow.merge("LA", [Pillow.new("L", (3, 3), 10), Pillow.new("L", (3, 3), 0)])
    assert (Image(as_file(grey)).rgb() == 255).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr"])
def test_all_modes_become_rgb(mode: str) -> None:
    picture = Pillow.fromarray(PICTURE).convert(mode)
    kind = "TIFF" if mode in {"CMYK", "YCbCr"} else "PNG"
    assert (Image(as_file(picture, kind)).rgb() == np.asarray(picture.convert("RGB"))).all()


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "I;16"), ("TIFF", "I;16"), ("PPM", "I;16"), ("TIFF", "I")]
)
def test_16_bits_become_8(kind: str, mode: str) -> None:
    grey = np.arange(0, 65536, 1024, np.uint16).reshape(8, 8)
    picture = Pillow.fromarray(grey if mode == "I;16" else grey.astype(np.int32))
    assert picture.mode == mode
    assert (Image(as_file(picture, kind)).rgb() == (grey >> 8)[:, :, None]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_picture(orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    turns = [
        lambda a: a, lambda a: a[:, ::-1], lambda a: a[::-1, ::-1], lambda a: a[::-1],
        lambda a: a.transpose(1, 0, 2), lambda a: a[::-1].transpose(1, 0, 2),
        lambda a: a[::-1, ::-1].transpose(1, 0, 2), lambda a: a[:, ::-1].transpose(1, 0, 2),
    ]  # fmt: skip
    assert (Image(as_file(exif=exif)).rgb() == turns[orientation - 1](PICTURE)).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation_is_taken(kind: str) -> None:
    frames = [Pillow.new("RGB", (9, 8), colour) for colour in ("red", "blue", "lime")]
    options = {"lossless": True} if kind == "WEBP" else {}
    animation = as_file(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (Image(animation).rgb() == np.asarray(frames[0])).all()


def test_arrays_need_no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert (Image(PICTURE).rgb() == PICTURE).all()


@pytest.mark.fault("an image file, where Pillow is not installed", "ImageError naming the package to install")
def test_a_file_without_pillow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Image(as_file())
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImageError, match="pip install pillow"):
        file.rgb()
