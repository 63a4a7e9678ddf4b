"""The picture that a user gives: a path, a file's bytes, a file, an array, or Pillow's; decoded to 8-bit RGB."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ImageError
from ..media_file import MediaFile, MediaKind
from .prepared_picture import Size

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Fit = Literal["pad"]

PICTURE = MediaKind("a picture", ImageError, 2**28)
RGB = NDArray[np.uint8]  # (height, width, 3)

MOST_PIXELS = 89_478_485  # Pillow's own limit: 256 MiB of RGB
MOST_EXACT = 25_000_000
"""The pixels of a picture that is resized as the reference does it; a larger one is made smaller first."""
STRIP = 1 << 22  # about the pixels that are converted at once
MOST_STRETCH = 200  # the reference's limit for qwen2.5-vl
FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TIFF", "WEBP")
WHITE = (255, 255, 255, 255)


@final
class Image:
    """A picture for a prompt.

    `source` is a path, the bytes of a file, a binary file, a `data:` URL, a picture of Pillow's, or an array (height,
    width, 3) of uint8. A path is read when the picture is needed, all others now. `fit="pad"` prepares it for llava
    as the authors do: padded to a square, where transformers crops it.
    """

    __slots__ = ("_source", "fit", "name")

    def __init__(self, source: object, *, fit: Fit | None = None) -> None:
        if fit is not None and fit not in get_args(Fit):
            raise ImageError(f'fit must be "pad" or None, got {fit!r}')
        self.fit: Fit | None = fit
        self.name, self._source = _taken(source)

    def __repr__(self) -> str:
        return f"Image({self.name})" if self.fit is None else f"Image({self.name}, fit={self.fit!r})"

    def size(self) -> Size:
        """Height and width as the file's header has them, not turned by EXIF; ImageError if they are refused."""
        if isinstance(self._source, MediaFile):
            return picture_size(self.name, self._source.data())
        return self._source.shape[0], self._source.shape[1]

    def rgb(self) -> RGB:
        """The decoded picture, (height, width, 3); ImageError if it cannot be decoded."""
        if isinstance(self._source, MediaFile):
            return decode_image(self.name, self._source.data())
        return self._source


def image_of(part: object) -> Image:
    """The picture of a content part of a chat message, or of a part of a prompt.

    A content part is {"type": "image", "image": ...}, or OpenAI's {"type": "image_url", "image_url": {"url": ...}}.
    """
    if isinstance(part, Image):
        return part
    if not isinstance(part, Mapping):
        return Image(part)
    if "image" in part:
        return image_of(part["image"])
    if "image_url" in part:
        return Image(PICTURE.data_url(part["image_url"], "image_url"))
    raise ImageError(f'an image part needs the key "image" or "image_url", got {sorted(map(str, part))}')


def _taken(source: object) -> tuple[str, RGB | MediaFile]:
    """The name of a source in errors, and what is kept of it."""
    if isinstance(source, np.ndarray):
        return "an array", _checked(source)
    if is_picture(source):
        return "a picture of Pillow's", rgb_image("a picture of Pillow's", source)  # type: ignore[arg-type]
    found = PICTURE.source(source)
    if found is not None:
        return found.name, found
    raise ImageError(
        "an image must be a path, bytes, a binary file, a data: URL, a picture of Pillow's, or an array (height, width, "
        f"3) of uint8, got {type(source).__name__}"
    )


def _checked(array: np.ndarray[Any, Any]) -> RGB:
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        raise ImageError(f"an array must be (height, width, 3) of uint8, got {array.shape} of {array.dtype}")
    require_size("an array", (array.shape[0], array.shape[1]))
    kept = array.copy()
    kept.flags.writeable = False
    return kept


def require_size(name: str, size: Size) -> None:
    """ImageError if a picture has too many pixels, too few, or is too long."""
    height, width = size
    shape = f"{name} has {width} x {height} pixels"
    if height * width > MOST_PIXELS:
        raise ImageError(f"{shape}, more than {MOST_PIXELS}; make it smaller first")
    if height * width < 1:
        raise ImageError(f"{shape}; a picture has at least one")
    if max(height, width) > MOST_STRETCH * min(height, width):
        raise ImageError(f"{shape}; its sides must not differ by more than a factor of {MOST_STRETCH}")


def picture_size(name: str, data: bytes) -> Size:
    """Height and width of a file's picture, read from its header and checked."""
    with _opened(name, data) as picture:
        return picture.height, picture.width


def decode_image(name: str, data: bytes) -> RGB:
    """The first picture of a file, turned as its EXIF data says, without transparency."""
    with _opened(name, data) as picture:
        return _rgb(name, picture)


def rgb_image(name: str, picture: Picture) -> RGB:
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
    from PIL import ImageOps
    from PIL.Image import alpha_composite, new

    if picture.width * picture.height > MOST_EXACT:
        picture = _smaller(picture)
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
        turned = alpha_composite(new("RGBA", coloured.size, WHITE), coloured)
    return np.asarray(turned.convert("RGB"))


def _smaller(picture: Picture) -> Picture:
    """A large picture by means of square blocks of pixels, strip by strip; a JPEG is not decoded in full, either."""
    from PIL.Image import new

    factor = _reduction(picture)
    exif, palette = picture.getexif(), picture.mode in ("P", "PA")
    picture.draft(picture.mode, (picture.width // factor, picture.height // factor))
    factor = _reduction(picture)  # of what was not left out by the decoder
    mode = {"1": "L", "P": "RGBA" if "transparency" in picture.info else "RGB", "PA": "RGBA"}.get(
        picture.mode, "I" if picture.mode.startswith("I") else picture.mode
    )
    size = -(-picture.width // factor), -(-picture.height // factor)
    reduced, rows = new(mode, size), max(1, STRIP // (picture.width * factor)) * factor
    for top in range(0, picture.height, rows):
        strip = picture.crop((0, top, picture.width, min(top + rows, picture.height))).convert(mode)
        reduced.paste(strip.reduce(factor) if factor > 1 else strip, (0, top // factor))
    reduced.info.update(
        {name: value for name, value in picture.info.items() if not (palette and name == "transparency")}
    )
    reduced.getexif().update(exif)
    return reduced


def _reduction(picture: Picture) -> int:
    """The least side of blocks whose means are few enough pixels."""
    return math.isqrt((picture.width * picture.height - 1) // MOST_EXACT) + 1


def _of_16_bits(name: str, grey: NDArray[Any]) -> RGB:
    """Grey of 16 bits in 8: Pillow's own conversion makes all values above 255 white."""
    if grey.min() < 0 or grey.max() >= 2**16:
        raise ImageError(f"{name} has grey values in [{grey.min()}, {grey.max()}], outside 16 bits")
    return np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
