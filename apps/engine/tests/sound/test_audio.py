from __future__ import annotations

import base64
import io
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sounds import as_file, heard

from backbay_engine.errors import AudioError, RequestError
from backbay_engine.sound import audio
from backbay_engine.sound.audio import Audio

SOUND = heard(0.3)
INTEGERS = np.rint(SOUND * 2**15).astype(np.int16)
EXACT = INTEGERS.astype(np.float32) / 2**15


def test_all_forms_of_a_sound_are_the_same_sound(tmp_path: Path) -> None:
    data = as_file(INTEGERS)
    path = tmp_path / "ä sound.wav"
    path.write_bytes(data)
    url = "data:audio/wav;base64," + base64.b64encode(data).decode()
    sources = [str(path), path, data, bytearray(data), memoryview(data), io.BytesIO(data), url]
    with path.open("rb") as file:
        for source in (*sources, file):
            audio = Audio(source)
            assert (audio.samples() == EXACT).all()
            assert (pickle.loads(pickle.dumps(audio)).samples() == EXACT).all()
    for array in (INTEGERS, EXACT, EXACT.astype(np.float64), EXACT[:, None], EXACT[::-1][::-1]):
        assert (Audio(array, rate=16_000).samples() == EXACT).all()


@pytest.mark.parametrize(
    ("kind", "subtype", "error"),
    [
        ("WAV", "PCM_16", 1e-7),
        ("WAV", "PCM_24", 1e-8),
        ("WAV", "FLOAT", 0),
        ("FLAC", "PCM_16", 1e-7),
        ("OGG", "VORBIS", 0.05),
        ("OGG", "OPUS", 0.05),
        ("MP3", None, 0.05),
    ],
)
def test_files_of_all_kinds_are_decoded(kind: str, subtype: str | None, error: float) -> None:
    sound = heard(2)
    found = Audio(as_file(sound, kind=kind, subtype=subtype)).samples()
    assert abs(len(found) - len(sound)) <= 1200  # MP3 has whole frames
    count = min(len(found), len(sound))
    assert ((found[:count] - sound[:count]) ** 2).sum() <= error * (sound**2).sum()


def test_channels_become_their_mean() -> None:
    other = heard(0.3, seed=1)
    both = np.stack([SOUND, other], axis=1)
    np.testing.assert_allclose(Audio(both, rate=16_000).samples(), (SOUND + other) / 2, atol=1e-7)
    np.testing.assert_allclose(
        Audio(as_file(both, subtype="FLOAT")).samples(), (SOUND + other) / 2, atol=1e-7
    )


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 47_999])
def test_other_rates_are_resampled(rate: int) -> None:
    time = np.arange(2 * rate) / rate
    found = Audio(np.sin(2 * np.pi * 440 * time), rate=rate).samples()
    assert abs(len(found) - 32_000) <= 1
    right = np.sin(2 * np.pi * 440 * np.arange(len(found)) / 16_000)
    inner = slice(400, -400)
    assert np.abs(found - right)[inner].max() < 1e-3


def test_blocks_of_a_file_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    data = as_file(heard(1, rate=44_100), 44_100)
    whole = Audio(data).samples()
    monkeypatch.setattr(audio, "BLOCK", 1000)
    np.testing.assert_allclose(Audio(data).samples(), whole, atol=1e-6)


def test_the_shortest_sounds_are_sounds() -> None:
    assert Audio(np.ones(1, np.float32), rate=16_000).samples().tolist() == [1]
    assert len(Audio(np.ones(1, np.float32), rate=384_000).samples()) >= 1


def wav_of(rate: int = 16_000, channels: int = 1, size: int | None = None) -> bytes:
    body = INTEGERS.tobytes()
    size = len(body) if size is None else size
    begin = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    return (
        b"RIFF\xff\xff\xff\xffWAVEfmt "
        + struct.pack("<I", 16)
        + begin
        + b"data"
        + struct.pack("<I", size)
        + body
    )


def test_a_wav_file_that_was_written_to_a_pipe_does_not_know_its_length() -> None:
    assert (Audio(wav_of(size=0xFFFFFFFF)).samples() == EXACT).all()


DAMAGED: dict[str, tuple[Any, str]] = {
    "empty": (b"", "is empty"),
    "text": (b"not a sound, but a text", "is no WAV, FLAC, OGG or MP3 file"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), "is no WAV"),
    "only a header": (as_file(INTEGERS)[:40], "is truncated: it ends before its samples begin"),
    "cut wav": (as_file(INTEGERS)[:-100], "is truncated: it has 9500 bytes of samples of 9600"),
    "no samples": (as_file(INTEGERS[:0]), "has no samples"),
    "cut flac": (as_file(heard(3), kind="FLAC")[:20_000], "truncated|damaged"),
    "flac of zeros": (b"fLaC" + bytes(1000), "damaged"),
    "ogg of zeros": (b"OggS" + bytes(1000), "damaged"),
    "mp3 of nothing": (b"\xff\xfb" + bytes(1000), "damaged|has no samples"),
    "slow": (wav_of(rate=10), "rate of 10 samples"),
    "fast": (wav_of(rate=1 << 30), "rate of 1073741824 samples"),
    "many channels": (wav_of(channels=48), "has 48 channels, more than 32"),
    "not a number": (as_file(np.array([0, np.nan], np.float32), subtype="FLOAT"), "has a sample of nan"),
    "infinite": (as_file(np.array([0, np.inf], np.float32), subtype="FLOAT"), "has a sample of inf"),
    "no base64": ("data:audio/wav;base64,!!!", "is no base64"),
    "an address": ("https://example.org/a.wav", "is not fetched"),
    "no file": ("/does/not/exist.wav", "cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_an_error_that_says_what(kind: str) -> None:
    source, reason = DAMAGED[kind]
    with pytest.raises(AudioError, match=reason):
        Audio(source).samples()


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        (SOUND, {}, "needs its rate"),
        (SOUND, {"rate": 16_000.5}, "needs its rate"),
        (SOUND, {"rate": 1}, r"must be in \[1000, 384000\]"),
        (as_file(INTEGERS), {"rate": 16_000}, "a file states its own"),
        (INTEGERS.astype(np.int32), {"rate": 16_000}, "of int16 or floats"),
        (SOUND.reshape(2, -1, 1), {"rate": 16_000}, "of int16 or floats"),
        (np.stack([SOUND, SOUND]), {"rate": 16_000}, "channels are the last axis"),
        (SOUND[:0], {"rate": 16_000}, "has no samples"),
        (7, {}, "a sound must be a path"),
        (io.StringIO("text"), {}, "binary mode"),
    ],
)
def test_what_is_no_sound_is_refused_at_once(source: Any, options: Any, reason: str) -> None:
    with pytest.raises(AudioError, match=reason) as error:
        Audio(source, **options)
    assert isinstance(error.value, RequestError)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    array = SOUND.copy()
    array[7] = value
    with pytest.raises(AudioError, match="has a sample of"):
        Audio(array, rate=16_000).samples()


def test_a_sound_is_not_decoded_beyond_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MOST_SECONDS", 1)
    monkeypatch.setattr(audio, "BLOCK", 4000)
    data = as_file(heard(1.5), kind="FLAC")
    with pytest.raises(AudioError, match="lasts more than 1 seconds"):
        Audio(data).samples()
    with pytest.raises(AudioError, match="lasts more than 1 seconds"):
        Audio(heard(1.5), rate=16_000).samples()


@pytest.mark.parametrize(
    ("library", "source", "rate"), [("soundfile", as_file(INTEGERS), None), ("soxr", SOUND, 8000)]
)
def test_a_missing_package_is_an_error_that_names_the_remedy(
    library: str, source: Any, rate: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(AudioError, match=rf"{library} is not installed .*apps/engine\[sound\]"):
        Audio(source, rate=rate).samples()
    assert (Audio(INTEGERS, rate=16_000).samples() == EXACT).all()
