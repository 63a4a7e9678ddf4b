"""Files of pictures, decoded by Pillow to 8-bit RGB."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ImageError
from .prepared import Size

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

RGB = NDArray[np.uint8]  # (height, width, 3)

MOST_PIXELS = 89_478_485  # Pillow's own limit: 256 MiB of RGB
MOST_STRETCH = 200  # the reference's limit for qwen2.5-vl
FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TIFF", "WEBP")
WHITE = (255, 255, 255, 255)


def require_size(name: str, size: Size) -> None:
    """ImageError if a picture has too many pixels, too few, or is too long."""
    height, width = size
    shape = f"{name} has {width} x {height} pixels"
    if height * width > MOST_PIXELS:
        raise ImageError(f"{shape}, more than {MOST_PIXELS}; make it smaller first")
    if height * width < 2:
        raise ImageError(f"{shape}; a picture has at least two")
    if max(height, width) > MOST_STRETCH * min(height, width):
        raise ImageError(f"{shape}; its sides must not differ by more than a factor of {MOST_STRETCH}")


def size_of(name: str, data: bytes) -> Size:
    """Height and width of a file's picture, read from its header and checked."""
    with _opened(name, data) as picture:
        return picture.height, picture.width


def decoded(name: str, data: bytes) -> RGB:
    """The first picture of a file, turned as its EXIF data says, without transparency."""
    with _opened(name, data) as picture:
        return _rgb(name, picture)


def rgb_of(name: str, picture: Picture) -> RGB:
    """A picture of Pillow's, as if it came from a file."""
    with _errors_of_pillow(name):
        require_size(name, (picture.height, picture.width))
        return _rgb(name, picture)


def is_picture(value: object) -> bool:
    """Whether a value is a picture of Pillow's; Pillow is not imported for the question."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


@contextmanager
def _opened(name: str, data: bytes) -> Iterator[Picture]:
    pillow = _pillow(name)
    if not data:
        raise ImageError(f"{name} is empty")
    with _errors_of_pillow(name):
        try:
            picture = pillow.open(io.BytesIO(data), formats=FORMATS)
        except pillow.UnidentifiedImageError:
            raise ImageError(
                f"{name} is no picture of a known kind, or damaged: it begins with {data[:16]!r}"
            ) from None
        except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
            raise ImageError(f"{name} has more than {MOST_PIXELS} pixels: {error}") from error
        with picture:
            require_size(name, (picture.height, picture.width))
            yield picture


def _pillow(name: str) -> Any:
    try:
        import PIL.Image
    except ImportError:
        remedy = "pip install pillow; arrays (height, width, 3) of uint8 need no Pillow"
        raise ImageError(f"{name} cannot be decoded: Pillow is not installed ({remedy})") from None
    return PIL.Image


@contextmanager
def _errors_of_pillow(name: str) -> Iterator[None]:
    """Pillow's readers raise whatever a damaged file makes them stumble over."""
    try:
        yield
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        raise ImageError(f"{name} cannot be decoded: {error or type(error).__name__}") from error


def _rgb(name: str, picture: Picture) -> RGB:
    from PIL import Image, ImageOps

    picture.load()
    turned = ImageOps.exif_transpose(picture)
    if turned.mode.startswith("I"):
        return _of_16_bits(name, np.asarray(turned))
    if turned.mode == "F":
        raise ImageError(
            f"{name} has pixels of 32-bit floats, whose range is unknown; convert it to 8 bits first"
        )
    if "A" in turned.getbands() or turned.info.get("transparency") is not None:
        coloured = turned.convert("RGBA")
        turned = Image.alpha_composite(Image.new("RGBA", coloured.size, WHITE), coloured)
    return np.asarray(turned.convert("RGB"))


def _of_16_bits(name: str, grey: NDArray[Any]) -> RGB:
    """Grey of 16 bits in 8: Pillow's own conversion makes all values above 255 white."""
    if grey.min() < 0 or grey.max() >= 2**16:
        raise ImageError(f"{name} has grey values in [{grey.min()}, {grey.max()}], outside 16 bits")
    return np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
