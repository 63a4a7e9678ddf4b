"""Damaged variants of whole model files, and a reader that touches all that it can of them.

Variant `index` is the same on every machine. `python lab/bench/fuzz_gguf.py --only INDEX` runs one alone.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf_build import u32, u64, write_model

import backbay.gguf
from backbay.errors import ModelFileError
from backbay.gguf import Config, Strings

LIMIT = 10.0  # seconds of the processor for one variant; a sound reader takes some milliseconds
GETTERS = ("string", "int", "float", "bool", "strings", "ints", "floats", "bools")
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
EDGES = (
    0,
    1,
    2,
    5,
    7,
    8,
    9,
    13,
    31,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


@dataclass(frozen=True)
class Field:
    """A number that shapes the file: a count, a length, a type, a dimension, an offset."""

    offset: int
    width: int


@dataclass(frozen=True)
class Seed:
    """A sound model: its files, and the fields of each."""

    directory: Path
    files: dict[str, bytes]
    fields: dict[str, list[Field]]


@dataclass(frozen=True)
class Outcome:
    """What became of a variant; `failure` is None unless something other than ModelFileError came up."""

    index: int
    mutation: str
    accepted: bool
    seconds: float
    failure: BaseException | None


def seeds(directory: Path) -> list[Seed]:
    """Sound files of all kinds: every dtype, version 2, a vocabulary, and a model of three parts."""
    kinds = list(GGMLQuantizationType)
    made = [directory / name for name in ("dtypes", "version2", "vocabulary", "split")]
    for each in made:
        each.mkdir()
    write_model(made[0] / "m.gguf", kinds=kinds)
    write_model(made[1] / "m.gguf", kinds=kinds[:2], alignment=64)
    _patch(made[1] / "m.gguf", 4, u32(2))
    write_model(made[2] / "m.gguf", vocabulary=500)
    write_model(made[3] / "m.gguf", kinds=kinds[:3], per_part=2)
    return [_seed(each) for each in made]


def exercise(path: Path) -> None:
    """Open a model and touch all of it, so that what is lazy is read as well."""
    with backbay.gguf.open(path) as file:
        config = file.metadata
        for key in config:
            _tolerant(_touch, config, key)
            for getter in GETTERS:
                _tolerant(getattr(config, getter), key)
        for info in file.tensors.values():
            data = file.data(info.name)
            assert data.nbytes == info.nbytes
            data.max(initial=0)  # reads every byte


def run(
    seeds: list[Seed], indexes: Iterable[int], check: Callable[[Path], None] = exercise
) -> Iterator[Outcome]:
    for index in indexes:
        random = Random(f"gguf {index}")
        seed = random.choice(seeds)
        mutation, damaged = _damage(random, seed, seeds)
        opened = seed.directory / random.choice(list(seed.files))
        with _on_disk(seed, damaged):
            start = time.perf_counter()
            accepted, failure = _attempt(opened, check)
            yield Outcome(index, mutation, accepted, time.perf_counter() - start, failure)


def _attempt(path: Path, check: Callable[[Path], None]) -> tuple[bool, BaseException | None]:
    try:
        with _deadline(LIMIT):
            check(path)
    except ModelFileError as error:
        return False, _unhelpful(error, path)
    except Exception as error:
        return False, error
    return True, None


def _unhelpful(error: ModelFileError, path: Path) -> AssertionError | None:
    """A refusal must name a file of this model, and a place inside it."""
    named = Path(error.path)
    size = named.stat().st_size if named.exists() else 0
    sound = named.parent == path.parent and (error.offset is None or 0 <= error.offset <= size)
    return None if sound and len(str(error)) < 1000 else AssertionError(str(error))


def _tolerant(action: Callable[..., object], *arguments: object) -> None:
    try:
        action(*arguments)
    except ModelFileError as error:
        str(error).encode("utf-8")


def _touch(config: Config, key: str) -> None:
    value = config[key]
    if isinstance(value, Strings):
        assert list(value) == value[:] == [value[index] for index in range(-len(value), 0)]
    elif isinstance(value, np.ndarray):
        value.tobytes()


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Break out of a hang, where signals can."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s of the processor")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _on_disk(seed: Seed, damaged: dict[str, bytes | None]) -> Iterator[None]:
    """The seed's files with some of them replaced, None meaning lost."""
    for name, content in damaged.items():
        _replace(seed.directory / name, content)
    try:
        yield
    finally:
        for name in damaged:
            _replace(seed.directory / name, seed.files[name])


def _replace(path: Path, content: bytes | None) -> None:
    # A new file each time: cutting one that is still mapped would fault.
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


def _seed(directory: Path) -> Seed:
    files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    return Seed(directory, files, {name: list(fields(content)) for name, content in files.items()})


def _patch(path: Path, offset: int, raw: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:offset] + raw + content[offset + len(raw) :])


# Mutations


def _damage(random: Random, seed: Seed, others: list[Seed]) -> tuple[str, dict[str, bytes | None]]:
    name = random.choice(list(seed.files))
    content = seed.files[name]
    mutation = random.choice(["flip", "flip", "cut", "remove", "splice", "field", "field", "field", "parts"])
    if mutation == "parts" and len(seed.files) > 1:
        return mutation, _mix_parts(random, seed)
    if mutation in {"field", "parts"}:
        return "field", {name: _set_fields(random, content, seed.fields[name])}
    if mutation == "splice":
        donor = random.choice(list(random.choice(others).files.values()))
        return mutation, {name: _splice(random, content, donor)}
    simple = {"flip": _flip, "cut": _cut, "remove": _remove}[mutation]
    return mutation, {name: simple(random, content)}


def _place(random: Random, content: bytes) -> int:
    """A position, mostly in the first kilobytes, where the header lies."""
    end = random.choice([64, 1024, 8192, len(content)])
    return random.randrange(min(end, len(content)))


def _flip(random: Random, content: bytes) -> bytes:
    damaged = bytearray(content)
    for _ in range(random.choice([1, 1, 2, 8])):
        damaged[_place(random, content)] ^= random.choice([1 << random.randrange(8), 0xFF])
    return bytes(damaged)


def _cut(random: Random, content: bytes) -> bytes:
    return content[: _place(random, content)]


def _remove(random: Random, content: bytes) -> bytes:
    start = _place(random, content)
    return content[:start] + content[start + random.choice([1, 4, 8, 32, 1000]) :]


def _splice(random: Random, content: bytes, donor: bytes) -> bytes:
    start, source = _place(random, content), _place(random, donor)
    chunk = donor[source : source + random.choice([1, 8, 32, 200, 4000])]
    over = random.choice([0, len(chunk)])  # inserted, or written over what is there
    return content[:start] + chunk + content[start + over :]


def _set_fields(random: Random, content: bytes, known: list[Field]) -> bytes:
    damaged = bytearray(content)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        # The first fields, and those of the tensors at the end, matter more than the lengths of 1000 strings.
        field = random.choice([random.choice(known), random.choice(known[:40]), random.choice(known[-40:])])
        now = int.from_bytes(content[field.offset : field.offset + field.width], "little")
        near = (
            now - 1,
            now + 1,
            now * 2,
            now ^ 1 << random.randrange(8 * field.width),
            len(content) - field.offset,
        )
        value = random.choice([random.choice(EDGES), random.choice(near), random.getrandbits(64)])
        damaged[field.offset : field.offset + field.width] = u64(value)[: field.width]
    return bytes(damaged)


def _mix_parts(random: Random, seed: Seed) -> dict[str, bytes | None]:
    first, second = random.sample(list(seed.files), 2)
    lost = random.choice([None, seed.files[second], seed.files[second][: random.randrange(400)]])
    return random.choice([{first: lost}, {first: seed.files[second], second: seed.files[first]}])


# A second, independent walk over sound files


def fields(content: bytes) -> Iterator[Field]:
    """The counts, lengths, types, dimensions and offsets of a sound file, in order."""
    yield from (Field(0, 4), Field(4, 4), Field(8, 8), Field(16, 8))
    at = 24
    for _ in range(_number(content, Field(16, 8))):
        at = yield from _string(content, at)
        yield Field(at, 4)
        at = yield from _value(content, at + 4, _number(content, Field(at, 4)))
    for _ in range(_number(content, Field(8, 8))):
        at = yield from _string(content, at)
        rank = _number(content, Field(at, 4))
        yield Field(at, 4)
        yield from (Field(at + 4 + 8 * index, 8) for index in range(rank))
        at += 4 + 8 * rank
        yield from (Field(at, 4), Field(at + 4, 8))
        at += 12


def _value(content: bytes, at: int, kind: int) -> Generator[Field, None, int]:
    if kind == STRING:
        return (yield from _string(content, at))
    if kind != ARRAY:
        yield Field(at, WIDTHS[kind])
        return at + WIDTHS[kind]
    element, count = _number(content, Field(at, 4)), _number(content, Field(at + 4, 8))
    yield from (Field(at, 4), Field(at + 4, 8))
    at += 12
    if element != STRING:
        return at + count * WIDTHS[element]
    for _ in range(count):
        at = yield from _string(content, at)
    return at


def _string(content: bytes, at: int) -> Generator[Field, None, int]:
    yield Field(at, 8)
    return at + 8 + _number(content, Field(at, 8))


def _number(content: bytes, field: Field) -> int:
    return int.from_bytes(content[field.offset : field.offset + field.width], "little")
