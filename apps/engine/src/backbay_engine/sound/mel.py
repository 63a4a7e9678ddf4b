"""Log-mel spectrograms, as Whisper and its relatives take them: those of transformers' WhisperFeatureExtractor."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .audio import RATE, Samples

Mel = NDArray[np.float32]  # (bins, frames)

WINDOW, HOP = 400, 160  # samples
HIGHEST = RATE / 2  # Hz
FLOOR = 1e-10  # of power
RANGE = 8.0  # decades below the loudest
TOGETHER = 3000  # frames
LINEAR_END, LINEAR_STEP, LOG_STEP = (
    1000.0,
    200.0 / 3,
    np.log(6.4) / 27,
)  # Slaney's scale: Hz, Hz a mel, per mel


def log_mel(samples: Samples, bins: int) -> Mel:
    """(bins, frames): a frame for each whole hop, centred on its first sample, the ends mirrored.

    Values below the loudest by more than eight decades are raised to it; so padding and what is padded are one sound.
    """
    count = len(samples) // HOP
    spectrum = np.empty((bins, count), np.float32)
    for begin in range(0, count, TOGETHER):
        end = min(count, begin + TOGETHER)
        spectrum[:, begin:end] = _decades(_frames(samples, begin, end), bins)
    if count:
        np.maximum(spectrum, spectrum.max() - np.float32(RANGE), out=spectrum)
    return (spectrum + np.float32(4)) / np.float32(4)


def mel_window(mel: Mel, begin: int, frames: int) -> Mel:
    """So many frames from `begin` on, followed by zeros behind the end, as the references fill a last window."""
    window = mel[:, begin : begin + frames]
    return np.pad(window, ((0, 0), (0, frames - window.shape[1])))


def _frames(samples: Samples, begin: int, end: int) -> NDArray[np.float64]:
    """The windows of frames [begin, end), (frames, WINDOW)."""
    first = begin * HOP - WINDOW // 2
    places = np.arange(first, first + (end - begin - 1) * HOP + WINDOW)
    last = len(samples) - 1
    mirrored = last - np.abs(last - np.abs(places))
    part = samples[mirrored].astype(np.float64)
    return np.lib.stride_tricks.sliding_window_view(part, WINDOW)[::HOP]


def _decades(frames: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """The logarithm of each band's power, (bins, frames)."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    lines = np.fft.rfft(frames * hann)
    power = lines.real**2 + lines.imag**2
    return np.log10(np.maximum(mel_filters(bins) @ power.T, FLOOR))


@cache
def mel_filters(bins: int) -> NDArray[np.float64]:
    """Triangles over the lines of the spectrum, of equal area, (bins, lines); Slaney's scale up to 8000 Hz."""
    lines = np.linspace(0, HIGHEST, WINDOW // 2 + 1)
    edges = _hertz(np.linspace(0, _mels(HIGHEST), bins + 2))
    widths, slopes = np.diff(edges), edges[:, None] - lines
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    filters: NDArray[np.float64] = triangles * (2 / (edges[2:] - edges[:-2]))[:, None]
    filters.flags.writeable = False
    return filters


def _mels(hertz: float) -> float:
    return float(LINEAR_END / LINEAR_STEP + np.log(hertz / LINEAR_END) / LOG_STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scale is linear up to 1000 Hz, then logarithmic."""
    end = LINEAR_END / LINEAR_STEP
    return np.where(mels < end, LINEAR_STEP * mels, LINEAR_END * np.exp(LOG_STEP * (mels - end)))
