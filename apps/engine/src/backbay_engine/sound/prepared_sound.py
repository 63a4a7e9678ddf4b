"""A sound as its encoder takes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..encoders.values import digest_of, other_values, read_only
from ..errors import AudioError
from .mel import HOP, mel_window


@dataclass(frozen=True, eq=False)
class PreparedAudio:
    """The log-mel spectrogram of one sound, and what it becomes in a prompt. It may stand for the sound in any prompt."""

    mel: NDArray[np.float32]
    """(bins, frames), (pieces, bins, frames), or (frames, bins): the very values of transformers' feature extractor for
    one sound.
    """
    tokens: int
    """Rows that the encoder makes of the sound."""
    samples: int
    """The length of the sound, without padding, in samples of which a second has 16000."""
    family: str
    """The name of the preparation, such as "ultravox"; a model takes only sounds of its own."""
    beside_picture: bool = False
    """Whether the sound stands in a prompt with pictures, where phi4 makes other rows of it."""
    content: bytes = field(init=False, repr=False)
    """A digest of the spectrogram and of all that describes it: equal sounds have equal rows."""

    def __post_init__(self) -> None:
        mel = read_only(self.mel)
        object.__setattr__(self, "mel", mel)
        content = digest_of(mel, "sound", self.family, self.tokens, self.samples, self.beside_picture)
        object.__setattr__(self, "content", content)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mel.shape

    @property
    def nbytes(self) -> int:
        return self.mel.nbytes

    def window(self, begin: int, frames: int) -> Self:
        """Frames of this sound's spectrogram, (bins, frames), as a sound of their own, for Whisper's decoder."""
        mel = mel_window(self.mel, begin, frames)
        return replace(self, mel=mel, tokens=frames // 2, samples=frames * HOP)

    def replace(self, *, mel: NDArray[np.float32] | None = None, beside_picture: bool | None = None) -> Self:
        """The same sound with other values in its spectrogram, or for a prompt with pictures, or without."""
        values = self.mel if mel is None else other_values(mel, self.mel, "mel", AudioError)
        beside = self.beside_picture if beside_picture is None else bool(beside_picture)
        return replace(self, mel=values, beside_picture=beside)
