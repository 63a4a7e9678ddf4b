"""The contract of models that hear: how a family prepares sounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import ClassVar

import numpy as np

from backbay.gguf import ModelFile, whole

from ..encoders.contract import EncoderFamily
from ..errors import AudioError
from .audio import RATE, Audio, Samples
from .mel import HOP, log_mel
from .prepared_sound import PreparedAudio
from .tower import SoundPiece

BINS = whole("audio.num_mel_bins", 1, 1 << 10)
POSITIONS = "a.position_embd.weight"
SHORTEST = 4 * HOP  # samples, for reserving


class SoundFamily(EncoderFamily[PreparedAudio]):
    """A family of models that hear by Whisper's encoder, whose positions limit the frames of a piece."""

    modality = "audio"
    preparation: ClassVar[str]

    def __init__(self, file: ModelFile) -> None:
        super().__init__(file)
        self.bins = BINS.of(self.config)
        self.frames = 2 * self.extent(1, POSITIONS)
        """Of a whole piece: 30 seconds in all published models."""

    @property
    def name(self) -> str:
        return self.preparation

    @abstractmethod
    def shape(self, samples: int) -> tuple[int, ...]:
        """The shape of the spectrogram of so many samples, padding included; AudioError if there are too many, or few."""

    @abstractmethod
    def rows(self, samples: int) -> int:
        """The rows that the encoder makes of so many samples."""

    @abstractmethod
    def pieces(self, prepared: PreparedAudio, /) -> list[SoundPiece]: ...

    def prepared(self, given: Audio, /) -> PreparedAudio:
        return self.prepare(given.samples())

    def prepare(self, samples: Samples) -> PreparedAudio:
        """The spectrogram of a sound, 16000 samples a second, followed by silence up to the frames of `shape`."""
        count = len(samples)
        shape = self.shape(count)
        frames = shape[-1] * (shape[0] if len(shape) == 3 else 1)
        mel = log_mel(np.pad(samples, (0, frames * HOP - count)), self.bins)
        if len(shape) == 3:
            mel = mel.reshape(self.bins, shape[0], shape[2]).swapaxes(0, 1)
        return PreparedAudio(mel, self.rows(count), count, self.name)

    def cost(self, piece: SoundPiece, /) -> int:
        return piece.held

    def key(self, piece: SoundPiece, /) -> Hashable:
        return piece.mel.shape, piece.held, piece.seen

    def largest(self) -> PreparedAudio:
        """A silent piece."""
        return self.prepare(np.zeros(self.frames * HOP, np.float32))

    def smallest(self) -> PreparedAudio:
        """A short silence."""
        return self.prepare(np.zeros(SHORTEST, np.float32))

    def check_prepared(self, given: PreparedAudio, /) -> None:
        """AudioError if a sound was prepared for another model, or no preparation makes it."""
        if given.family != self.name:
            raise AudioError(f"a sound prepared for {given.family}; this model takes sounds for {self.name}")
        wanted = self.shape(given.samples), self.rows(given.samples)
        if (given.mel.shape, given.tokens) != wanted:
            raise AudioError(
                f"{self.name} makes {wanted[1]} rows of {list(wanted[0])} of {given.samples} samples; the prepared sound "
                f"is {list(given.mel.shape)} with {given.tokens} rows"
            )


def seconds(samples: int) -> str:
    return f"{samples / RATE:.2f} seconds"
