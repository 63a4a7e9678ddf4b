"""Whisper: the encoder alone, whose rows the decoder attends to; windows of 30 seconds."""

from __future__ import annotations

from typing import final

import numpy as np

from backbay import Backend

from ...encoders.contract import EncoderNetwork, MediaPlace
from ...encoders.shape import width_key
from ...errors import AudioError
from ...models.nn import Weights
from ...text.tokenizers import Tokenizer
from ..contract import SoundFamily, seconds
from ..mel import HOP, mel_window
from ..prepared_sound import PreparedAudio
from ..tower import SoundPiece, WhisperTower


@final
class WhisperFamily(SoundFamily):
    """A longer sound has a spectrogram and rows, window by window; the decoder attends to one window."""

    preparation = "whisper"
    placeholder = marker = ""
    texts = ("whisper",)
    crosses = True

    @property
    def vector(self) -> int:
        return width_key("audio").of(self.config)

    def shape(self, samples: int) -> tuple[int, ...]:
        return self.bins, max(self.frames, -(-samples // HOP))

    def rows(self, samples: int) -> int:
        return len(range(0, self.shape(samples)[1], self.frames)) * (self.frames // 2)

    def pieces(self, prepared: PreparedAudio, /) -> list[SoundPiece]:
        begins, positions = range(0, prepared.mel.shape[1], self.frames), self.frames // 2
        windows = (mel_window(prepared.mel, begin, self.frames) for begin in begins)
        return [SoundPiece(mel, positions, positions) for mel in windows]

    def placed(self, prepared: PreparedAudio, /, tokenizer: Tokenizer | None) -> MediaPlace:
        return self.place(prepared, tokenizer)

    def place(self, prepared: PreparedAudio, /, tokenizer: Tokenizer | None) -> MediaPlace:
        if prepared.tokens > self.frames // 2:
            window = seconds(self.frames * HOP)
            raise AudioError(f"the decoder attends to {window} of sound; transcribe takes longer ones")
        return MediaPlace(np.zeros(0, np.int32), np.zeros(0, np.bool_), crosses=True)

    def network(self, backend: Backend) -> EncoderNetwork:
        weights = Weights(backend)
        tower = WhisperTower(weights, backend, self.bins)
        weights.check()
        return tower
