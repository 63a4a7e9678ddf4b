"""Phrases spoken by espeak-ng, in voices for training and in others for tests, and the noise around them."""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

RATE = 16_000  # samples a second
WINDOW = 5  # seconds that the model hears at once
LEAD = 4800  # samples of silence before a phrase
PROGRAM = "espeak-ng"
INSTALL = f"{PROGRAM} is needed to speak; install it: apt install {PROGRAM}, or brew install {PROGRAM}"
VOCABULARY = """
zero one two three four five six seven eight nine
red green blue yellow purple orange black white
dog cat horse bird fish mouse
apple bread coffee sugar water window table garden music winter summer morning
left right under behind between
open close begin stop bring carry listen remember
please thanks never always again
"""
WORDS = VOCABULARY.split()
MOST_WORDS = 6  # of a phrase
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd")
SPEAKERS = """
m1 m2 m3 m4 m6 m7 f1 f2 f4 f5 klatt klatt2 klatt4 Alicia Andrea Andy Denis Gene Hugo Lee Michael
m5 f3 klatt3 Annie David Mike
"""
SEEN, UNSEEN = (line.split() for line in SPEAKERS.strip().splitlines())
SEEN_SPEEDS, UNSEEN_SPEEDS = (130, 145, 160, 175, 190, 200), (122, 138, 152, 168, 183, 208)  # words a minute
QUIET = 40  # of 32768: less is silence, before and after a phrase

Sound = NDArray[np.float32]  # 16000 samples a second


@dataclass(frozen=True)
class Voice:
    """`name` is an accent and a speaker; pitch is from 0 to 99, the gap behind a word in hundredths of a second."""

    name: str
    speed: int
    pitch: int
    gap: int

    @classmethod
    def draw(cls, rng: Random, *, unseen: bool) -> Voice:
        """A voice of training, or one that training never hears, at a speed that it never hears."""
        speakers, speeds = (UNSEEN, UNSEEN_SPEEDS) if unseen else (SEEN, SEEN_SPEEDS)
        name = f"{rng.choice(ACCENTS)}+{rng.choice(speakers)}"
        return cls(name, rng.choice(speeds), rng.randint(25, 75), rng.choice([0, 0, 1, 3, 6]))


PLAIN = Voice("en-us", 160, 50, 0)
SAID = {
    "seven four zero nine": Voice("en-gb+f3", 152, 50, 1),
    "please bring coffee again": Voice("en-us+m5", 168, 45, 0),
    "black cat under table": Voice("en-gb-scotland+Annie", 138, 55, 0),
}
"""The phrases of the sound that is shipped."""


@dataclass(frozen=True, eq=False)
class Phrase:
    """Words, and their sound, without silence around it."""

    words: tuple[str, ...]
    sound: NDArray[np.int16]


def phrases(rng: Random, count: int, *, unseen: bool, least: int = 1) -> list[Phrase]:
    """So many phrases of random words, each in a voice of its own."""
    asked = [
        (tuple(rng.choices(WORDS, k=rng.randint(least, MOST_WORDS))), Voice.draw(rng, unseen=unseen))
        for _ in range(count)
    ]
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda each: Phrase(each[0], speak(" ".join(each[0]), each[1])), asked))


def speak(text: str, voice: Voice) -> NDArray[np.int16]:
    """A text, spoken; FileNotFoundError says how to install espeak-ng where it is missing."""
    if shutil.which(PROGRAM) is None:
        raise FileNotFoundError(INSTALL)
    options = {"-v": voice.name, "-s": voice.speed, "-p": voice.pitch, "-g": voice.gap}
    given = [str(each) for pair in options.items() for each in pair]
    done = subprocess.run([PROGRAM, *given, "--stdout", text], capture_output=True, check=True)
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate, data = file.getframerate(), file.readframes(1 << 30)
    return _trimmed(_resampled(np.frombuffer(data, "<i2"), rate))


def spoken_sound() -> NDArray[np.int16]:
    """The phrases of SAID, each in a window of its own."""
    sound = np.zeros(len(SAID) * WINDOW * RATE, np.int16)
    for number, (text, voice) in enumerate(SAID.items()):
        spoken, begin = speak(text, voice), number * WINDOW * RATE + LEAD
        sound[begin : begin + len(spoken)] = spoken
    return sound


def _resampled(sound: NDArray[np.int16], rate: int) -> NDArray[np.int16]:
    """At 16000 samples a second: the spectrum up to 8000 Hz. A phrase ends in silence, so its ends may meet."""
    count = len(sound) * RATE // rate
    spectrum = np.fft.rfft(sound)[: count // 2 + 1]
    return np.clip(np.fft.irfft(spectrum, count) * count / len(sound), -32767, 32767).astype(np.int16)


def _trimmed(sound: NDArray[np.int16]) -> NDArray[np.int16]:
    (heard,) = np.nonzero(np.abs(sound) > QUIET)
    return sound[heard[0] : heard[-1] + 1]


def noisy(sound: Sound, decibels: float, rng: np.random.Generator) -> Sound:
    """A sound with pink noise, whose power lies so many decibels below that of the sound where it is heard."""
    lines = np.arange(1, len(sound) // 2 + 2)
    spectrum = np.exp(2j * np.pi * rng.random(len(lines))) / np.sqrt(lines)
    noise = np.fft.irfft(spectrum, len(sound))
    heard = sound[np.abs(sound) > QUIET / 32768]
    power = float((heard**2).mean()) if len(heard) else 1e-3
    level = np.sqrt(power / (noise**2).mean()) * 10 ** (-decibels / 20)
    return (sound + level * noise).astype(np.float32)


def write_wav(path: Path, sound: NDArray[np.int16]) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(sound.astype("<i2").tobytes())


def read_wav(path: Path) -> NDArray[np.int16]:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """The words to replace, insert or leave out until what is heard is what is said."""
    row = list(range(len(heard) + 1))
    for n, word in enumerate(said, 1):
        before, row[0] = row[0], n
        for at, other in enumerate(heard, 1):
            before, row[at] = row[at], min(before + (word != other), row[at] + 1, row[at - 1] + 1)
    return row[-1]
