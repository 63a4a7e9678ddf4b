"""Phi-4-multimodal's ear: a conformer over the whole sound, and one product for sound alone, another beside pictures."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor

from ...encoders.block import TwoLayerPerceptron
from ...encoders.contract import (
    EncoderInputs,
    EncoderNetwork,
    MediaPlace,
    Modality,
    placeholder_id,
    rows_in_runs,
)
from ...errors import AudioError
from ...models.nn import Weights
from ...text.tokenizers import Tokenizer
from ..audio import RATE, Samples
from ..conformer import REDUCTION, ConformerPiece, ConformerTower, positions_of
from ..contract import SoundFamily, seconds
from ..mel import HOP, WINDOW
from ..prepared_sound import PreparedAudio

SOUND: Final = "<|audio|>"
PIECE: Final = 500  # positions that see each other
LINES, HIGHEST = 512, 7690.0  # of the spectrum; Hz
EMPHASIS, AMPLITUDE, FLOOR = 0.97, 32768.0, 1.0
SPEECH, BESIDE = "mm.a.speech.", "mm.a.beside_picture."


@final
class Phi4SoundFamily(SoundFamily):
    """A sound of more positions than a piece is cut into pieces; all of the last piece's padding is seen, as in transformers."""

    preparation = "phi4"
    placeholder = marker = SOUND
    texts = ("phi4mm",)
    projections = (f"{SPEECH}down.weight",)

    def words(self) -> tuple[str, ...]:
        return (SOUND,)

    def shape(self, samples: int) -> tuple[int, ...]:
        if samples < WINDOW:
            raise AudioError(f"a sound of {seconds(samples)} is too short: {self.name} makes no row of it")
        return (samples - WINDOW) // HOP + 1, self.bins

    def rows(self, samples: int) -> int:
        return positions_of(self.shape(samples)[0])

    def prepare(self, samples: Samples) -> PreparedAudio:
        """The spectrogram of a sound; samples behind the last whole window are left out."""
        count = len(samples)
        self.shape(count)
        return PreparedAudio(emphasized_log_mel(samples, self.bins), self.rows(count), count, self.name)

    def beside(self, prepared: PreparedAudio, others: Collection[Modality], /) -> PreparedAudio:
        return replace(prepared, beside_picture="image" in others)

    def pieces(self, prepared: PreparedAudio, /) -> list[ConformerPiece]:  # type: ignore[override]
        """Pieces with the frames of one position more: before, or behind in the first piece, so that all are alike."""
        mel, count, beside = prepared.mel, prepared.tokens, prepared.beside_picture
        if count <= PIECE:
            return [ConformerPiece(mel, 0, count, count, beside)]
        found = []
        for begin in range(0, count, PIECE):
            skipped, held = int(begin > 0), min(PIECE, count - begin)
            first = begin - skipped
            part = mel[REDUCTION * first : REDUCTION * (first + PIECE + 1)]
            found.append(ConformerPiece(part, skipped, held, PIECE, beside))
        return found

    def cost(self, piece: ConformerPiece, /) -> int:  # type: ignore[override]
        return piece.padded

    def key(self, piece: ConformerPiece, /) -> Hashable:  # type: ignore[override]
        return piece.mel.shape, piece.skipped, piece.held, piece.padded, piece.beside_picture

    def largest(self) -> PreparedAudio:
        """A silence of two pieces."""
        return self.prepare(np.zeros(2 * PIECE * REDUCTION * HOP + WINDOW - HOP, np.float32))

    def smallest(self) -> PreparedAudio:
        return self.prepare(np.zeros(WINDOW, np.float32))

    def place(self, prepared: PreparedAudio, /, tokenizer: Tokenizer) -> MediaPlace:
        return rows_in_runs(placeholder_id(tokenizer, SOUND), prepared.tokens, [[], []])

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(ConformerTower):
    def __init__(self, family: Phi4SoundFamily, backend: Backend) -> None:
        weights = Weights(backend)
        super().__init__(weights, backend, family.bins)
        widths = self.width, family.vector, family.vector
        self.products = [
            TwoLayerPerceptron(weights.at(prefix), ("up", "down"), widths) for prefix in (SPEECH, BESIDE)
        ]
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        product = self.products[int(inputs.first.beside_picture)]
        return product(ctx, super().finish(ctx, x, kept, inputs))


def emphasized_log_mel(samples: Samples, bins: int) -> NDArray[np.float32]:
    """(frames, bins): the logarithm of each band's power in windows whose high frequencies are raised; as
    transformers' Phi4MultimodalFeatureExtractor.
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
    found = np.empty((len(frames), bins), np.float32)
    hamming = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(WINDOW) / (WINDOW - 1))
    for begin in range(0, len(frames), TOGETHER):
        part = frames[begin : begin + TOGETHER].astype(np.float32)
        before = np.concatenate([part[:, :1], part[:, :-1]], axis=1)
        raised = (part - np.float32(EMPHASIS) * before) * np.float32(AMPLITUDE)
        lines = np.fft.rfft(raised * hamming, LINES)
        power = lines.real**2 + lines.imag**2
        found[begin : begin + TOGETHER] = np.log(np.maximum(power @ kaldi_filters(bins).T, FLOOR))
    return found


TOGETHER: Final = 3000  # frames


@cache
def kaldi_filters(bins: int) -> NDArray[np.float64]:
    """Triangles over the lines of the spectrum, straight in mels of Kaldi's scale up to 7690 Hz, (bins, lines)."""
    lines = _mels(np.arange(LINES // 2 + 1) * (RATE / LINES))
    edges = np.linspace(0.0, float(_mels(np.array(HIGHEST))), bins + 2)
    widths, slopes = np.diff(edges), edges[:, None] - lines
    filters = np.maximum(0, np.minimum(-slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]))
    filters.flags.writeable = False
    return filters


def _mels(hertz: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    return 1127.0 * np.log1p(hertz.astype(np.float64) / 700.0)
