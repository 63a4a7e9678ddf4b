"""The sound that a user gives: a path, a file's bytes, a file, or samples; decoded to one channel of floats."""

from __future__ import annotations

import io
import reprlib
from collections.abc import Callable, Iterator, Mapping
from operator import index
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError
from ..media_file import MediaFile, MediaKind, has_scheme

Samples: TypeAlias = NDArray[np.float32]  # (samples,) of one channel
Frames: TypeAlias = NDArray[np.float32]  # (samples, channels)

SOUND = MediaKind("a sound", AudioError, 2**30)
RATE = 16_000  # of the samples that encoders take
LEAST_RATE, MOST_RATE = 1_000, 384_000
MOST_SECONDS = 2 * 60 * 60  # samples of so many seconds are 460 MB
MOST_CHANNELS = 32
LOUDEST = 2.0**15  # a float beyond it is none: squares must stay finite
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
BEGINNINGS = b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3"
BLOCK = 1 << 18  # samples that are decoded at once
UNKNOWN = 0xFFFFFFFF  # the length in the header of a WAV file that was written to a pipe


@final
class Audio:
    """A sound for a prompt.

    `source` is a path, the bytes of a file, a binary file, a `data:` URL, or an array of samples, (samples,) or (samples,
    channels), of int16 or of floats in [-1, 1], with its `rate` in samples a second. A path is read when the sound is
    needed, all others now.
    """

    __slots__ = ("_source", "name", "rate")

    def __init__(self, source: object, *, rate: int | None = None) -> None:
        self.name, self._source = _taken(source)
        self.rate = _checked_rate(rate, samples=isinstance(self._source, np.ndarray))

    def __repr__(self) -> str:
        return f"Audio({self.name})" if self.rate is None else f"Audio({self.name}, rate={self.rate})"

    def samples(self) -> Samples:
        """The sound as floats of one channel, the mean of all, 16000 a second; AudioError if it cannot be decoded."""
        if isinstance(self._source, MediaFile):
            return decode_sound(self.name, self._source.data())
        assert self.rate is not None  # as __init__ has checked
        return _resampled(self.name, [self._source], self.rate)


def audio_of(part: object) -> Audio:
    """The sound of a content part of a chat message, or of a part of a prompt.

    A content part is {"type": "audio", "audio": ...}, or OpenAI's {"type": "input_audio", "input_audio": {"data": base64,
    "format": "wav"}}, or {"type": "audio_url", "audio_url": {"url": "data:..."}}.
    """
    if isinstance(part, Audio):
        return part
    if not isinstance(part, Mapping):
        return Audio(part)
    if "audio" in part:
        return audio_of(part["audio"])
    if "input_audio" in part:
        given = part["input_audio"]
        data = given.get("data") if isinstance(given, Mapping) else None
        if isinstance(data, str):
            return Audio(data if has_scheme(data, "data") else SOUND.decoded(data, "the data of input_audio"))
        raise AudioError(f'input_audio needs the key "data", a text in base64, got {reprlib.repr(given)}')
    if "audio_url" in part:
        return Audio(SOUND.data_url(part["audio_url"], "audio_url"))
    raise AudioError(
        f'a part of sound needs the key "audio", "input_audio" or "audio_url", got {sorted(map(str, part))}'
    )


def decode_sound(name: str, data: bytes) -> Samples:
    """The samples of a file's sound, 16000 a second."""
    if not data:
        raise AudioError(f"{name} is empty")
    if not data.startswith(BEGINNINGS) and not (data[0] == 0xFF and data[1:2] >= b"\xe0"):
        raise AudioError(f"{name} is no WAV, FLAC, OGG or MP3 file: it begins with {data[:16]!r}")
    _require_whole_wav(name, data)
    soundfile = _library(name, "soundfile", "decoded")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in FORMATS:
                raise AudioError(f"{name} is of the kind {file.format}, not one of {', '.join(FORMATS)}")
            if file.channels > MOST_CHANNELS:
                raise AudioError(f"{name} has {file.channels} channels, more than {MOST_CHANNELS}")
            return _resampled(name, _blocks(name, file), _checked_rate(file.samplerate, samples=True) or RATE)
    except soundfile.SoundFileError as error:
        raise AudioError(f"{name} cannot be decoded, it is damaged: {error}") from error


def _blocks(name: str, file: Any) -> Iterator[Frames]:
    """The samples of an open file, block by block; AudioError if there are fewer than its header says."""
    count = 0
    while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
        count += len(block)
        yield block
    if file.format == "FLAC" and count < file.frames:
        raise AudioError(f"{name} is truncated: it has {count} samples of {file.frames}")


def _require_whole_wav(name: str, data: bytes) -> None:
    """AudioError if a WAV file ends before its samples do: the decoder would give what is there."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return
    at = 12
    while at + 8 <= len(data):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        if kind == b"data":
            if at + size > len(data) and size < UNKNOWN - BLOCK:
                raise AudioError(f"{name} is truncated: it has {len(data) - at} bytes of samples of {size}")
            return
        at += size + size % 2
    raise AudioError(f"{name} is truncated: it ends before its samples begin")


def _resampled(name: str, blocks: list[Frames] | Iterator[Frames], rate: int) -> Samples:
    """One channel, 16000 a second, of samples in blocks; AudioError if there are none, too many, or no numbers."""
    resample = _resampler(name, rate)
    found: list[Samples] = []
    count = 0
    for block in blocks:
        count += len(block)
        if count > MOST_SECONDS * rate:
            raise AudioError(f"{name} lasts more than {MOST_SECONDS} seconds; give it in parts")
        parts = (
            block[begin : begin + BLOCK] for begin in range(0, len(block), BLOCK)
        )  # an array is one block
        found += [resample(_mono(name, part), False) for part in parts]
    if not count:
        raise AudioError(f"{name} has no samples")
    found.append(resample(np.zeros(0, np.float32), True))
    samples = np.concatenate(found)
    return samples if len(samples) else np.zeros(1, np.float32)  # a few samples of a high rate


def _mono(name: str, block: NDArray[Any]) -> Samples:
    """The mean of the channels, as floats; int16 becomes [-1, 1)."""
    values = block.astype(np.float32)
    if block.dtype == np.int16:
        values /= np.float32(2**15)
    elif not (np.abs(values) <= LOUDEST).all():
        wrong = values[~(np.abs(values) <= LOUDEST)][0]
        raise AudioError(f"{name} has a sample of {wrong}; samples are numbers in [-1, 1]")
    return values[:, 0] if values.shape[1] == 1 else values.mean(axis=1, dtype=np.float32)


def _resampler(name: str, rate: int) -> Callable[[Samples, bool], Samples]:
    """A function of the next samples, and whether they are the last, to those of 16000 a second."""
    if rate == RATE:
        return lambda samples, _last: samples
    stream = _library(name, "soxr", "resampled").ResampleStream(rate, RATE, 1, dtype="float32", quality="HQ")
    return lambda samples, last: stream.resample_chunk(samples, last=last)


def _library(name: str, library: str, purpose: str) -> Any:
    try:
        if library == "soxr":
            import soxr

            return soxr
        import soundfile
    except (ImportError, OSError):  # soundfile without libsndfile is an OSError
        remedy = 'in a clone of backbay: pip install "./apps/engine[sound]"; arrays of 16000 samples a second need no package'
        raise AudioError(f"{name} cannot be {purpose}: {library} is not installed ({remedy})") from None
    return soundfile


def _taken(source: object) -> tuple[str, Frames | MediaFile]:
    """The name of a source in errors, and what is kept of it."""
    if isinstance(source, np.ndarray):
        return "an array", _checked_samples(source)
    found = SOUND.source(source)
    if found is not None:
        return found.name, found
    raise AudioError(
        "a sound must be a path, bytes, a binary file, a data: URL, or an array of samples with rate=, got "
        f"{type(source).__name__}"
    )


def _checked_samples(array: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array, (samples, channels)."""
    if array.ndim not in (1, 2) or not (array.dtype == np.int16 or np.issubdtype(array.dtype, np.floating)):
        raise AudioError(
            f"an array must be (samples,) or (samples, channels) of int16 or floats, got {array.shape} of {array.dtype}"
        )
    if array.ndim == 2 and not 1 <= array.shape[1] <= MOST_CHANNELS:
        raise AudioError(
            f"an array of {array.shape[1]} channels, where 1 to {MOST_CHANNELS} are possible; channels are the last axis"
        )
    if not len(array):
        raise AudioError("an array has no samples")
    if len(array) > MOST_SECONDS * MOST_RATE:
        raise AudioError(f"an array of {len(array)} samples lasts more than {MOST_SECONDS} seconds")
    kept = array.reshape(len(array), -1).copy()
    kept.flags.writeable = False
    return kept


def _checked_rate(rate: object, *, samples: bool) -> int | None:
    """The rate of samples; None, and nothing else, if a file states it."""
    if not samples:
        if rate is not None:
            raise AudioError(f"rate={reprlib.repr(rate)} is for an array of samples; a file states its own")
        return None
    try:
        number = index(rate)  # type: ignore[arg-type]  # raises TypeError if it is no integer
    except TypeError:
        raise AudioError(
            f"an array of samples needs its rate in samples a second, such as rate=16000, got {reprlib.repr(rate)}"
        ) from None
    if not LEAST_RATE <= number <= MOST_RATE:
        raise AudioError(f"a rate of {number} samples a second; it must be in [{LEAST_RATE}, {MOST_RATE}]")
    return number
