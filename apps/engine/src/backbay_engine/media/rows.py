"""The rows that a caller gives in the place of tokens: embeddings of a text, or what an encoder made elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..encoders.values import digest_of, read_only
from ..errors import RequestError
from ..images.prepared_picture import Prepared
from ..sound.prepared_sound import PreparedAudio

PreparedMedia: TypeAlias = Prepared | PreparedAudio
FORM = "Rows takes a numpy array of floats, (rows, width)"


@final
class Rows:
    """Rows of your own for a prompt: vectors that enter the model in the place of tokens' embeddings.

    `array` is (rows, width) of floats, and is copied: embeddings of tokens, or what `embed_image` and `embed_audio` give.
    Each row is a token of the text, at the next position. With `of`, a Prepared or PreparedAudio, they are the rows of this
    picture or sound, and stand where it would: with its marks, its positions, and what its tokens see.
    """

    __slots__ = ("content", "of", "values")

    def __init__(self, array: object, *, of: PreparedMedia | None = None) -> None:
        if of is not None and not isinstance(of, PreparedMedia):
            raise RequestError(f"of takes what llm.prepare gives, Prepared or PreparedAudio, got {of!r}")
        values = _checked(array)
        if of is not None and len(values) != of.tokens:
            raise RequestError(
                f"{len(values)} rows are given for a picture or a sound that has {of.tokens} of them"
            )
        self.values: NDArray[np.float32] = values
        self.of = of
        self.content = digest_of(values, "rows", None if of is None else of.content)

    def __repr__(self) -> str:
        rows, width = self.values.shape
        of = "" if self.of is None else f", of={self.of.family}"
        return f"Rows({rows} of {width}{of})"

    @property
    def tokens(self) -> int:
        """The number of rows."""
        return len(self.values)

    def widened(self, width: int) -> NDArray[np.float32]:
        """The values, with zeros behind them up to a width."""
        lack = width - self.values.shape[1]
        return np.pad(self.values, ((0, 0), (0, lack))) if lack else self.values


def _checked(array: object) -> NDArray[np.float32]:
    """A copy of the rows in float32, read only; RequestError says what is wrong with them."""
    if not isinstance(array, np.ndarray):
        raise RequestError(f"{FORM}, got {type(array).__name__}")
    if not np.issubdtype(array.dtype, np.floating):
        raise RequestError(f"{FORM}, got the dtype {array.dtype}")
    if array.ndim != 2:
        raise RequestError(f"{FORM}, got the shape {array.shape}")
    if not array.size:
        raise RequestError(f"{FORM}, one row at least, got the shape {array.shape}")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if not (finite := np.isfinite(values)).all():
        row, place = (int(at) for at in np.argwhere(~finite)[0])
        told = f"the values of rows must be finite in float32, got {array[row, place]}"
        raise RequestError(f"{told} at place {place} of row {row}")
    return read_only(values)


def is_rows_part(part: object) -> bool:
    """Whether a part of a chat message is one of rows."""
    return isinstance(part, Rows) or (isinstance(part, Mapping) and part.get("type") == "rows")


def rows_of(part: Any) -> Rows:
    """The rows of such a part, {"type": "rows", "rows": an array or Rows}."""
    held = part.get("rows") if isinstance(part, Mapping) else part
    if held is None:
        raise RequestError(f'a part of rows needs the key "rows", got {sorted(map(str, part))}')
    return held if isinstance(held, Rows) else Rows(held)


def values_by_content(given: Iterable[Rows], width: int) -> dict[bytes, NDArray[np.float32]]:
    """The values of a prompt's rows, as wide as the model takes rows."""
    return {rows.content: rows.widened(width) for rows in given}
