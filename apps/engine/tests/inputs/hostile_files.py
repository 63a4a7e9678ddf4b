"""Sound model files of every architecture and vocabulary, and copies with one hostile key or tensor."""

from __future__ import annotations

import atexit
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf, nan
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from time import process_time
from typing import Any, TypeAlias
from unittest.mock import patch

import gguf
import numpy as np
from adapter_files import random_pairs, write_adapter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from gguf_build import ARRAY, BOOL, PLAIN, STRING, UINT32, array, model, pair, tensor, text, u32
from model_files import KIND_NAMES, NAMES, stored, unpacked
from small_vision import KINDS, OTHER_LAYOUTS, picture, write_small_vision
from small_whisper import write_whisper
from sounds import heard

import backbay.gguf
import backbay_engine
from backbay.discovery import open_model
from backbay.errors import ModelFileError
from backbay.gguf import Config
from backbay_engine import Audio
from backbay_engine.port.questions import Embed

LIMIT = 60.0  # seconds of the processor for one file, which takes tenths of a second
GLOBAL = ("general.", "tokenizer.", "split.")
INT32, FLOAT32, UINT64, INT64, FLOAT64 = 5, 6, 10, 11, 12
EXACT = GGMLQuantizationType.F32
ADAPTED = "llama-llama3"  # the model of the adapter
CHARACTERS = "abcdefghijklmnopqrstuvwxyz"

Shape: TypeAlias = tuple[int, ...]  # dimension 0 is the innermost


@dataclass(frozen=True)
class Stored:
    """A tensor of a file."""

    shape: Shape
    kind: int
    data: bytes


@dataclass(frozen=True)
class Seed:
    """A sound file: its pairs of key and value as bytes, and its tensors."""

    name: str
    pairs: Mapping[str, bytes]
    tensors: Mapping[str, Stored]

    def write(self, path: Path) -> Path:
        rows, data = [], b""
        for name, each in self.tensors.items():
            rows.append(tensor(name, each.shape, each.kind, len(data)))
            data += each.data + bytes(-len(each.data) % 32)
        path.write_bytes(model(self.pairs.values(), rows, data))
        return path

    def with_pair(self, key: str, value: bytes | None) -> Seed:
        pairs = {name: raw for name, raw in self.pairs.items() if name != key}
        return replace(self, pairs=pairs if value is None else {**pairs, key: value})

    def with_tensor(self, name: str, value: Stored | None) -> Seed:
        tensors = {each: held for each, held in self.tensors.items() if each != name}
        return replace(self, tensors=tensors if value is None else {**tensors, name: value})


@cache
def sound_file(name: str) -> Seed:
    """The stored file of an architecture; "NAME gpt2" has GPT-2's vocabulary, too."""
    if name.endswith(" gpt2"):
        vocabulary = _vocabulary("gpt2", merges=["a b", "ab c"], pre="gpt-2")
        return _told(sound_file(name.removesuffix(" gpt2")), "gpt2", vocabulary)
    return _read(name, stored(name))


@cache
def seeds() -> list[Seed]:
    """Every architecture, every kind of vocabulary, and every way to extend a context."""
    with TemporaryDirectory() as folder:
        kinds = [_read(f"kind {name}", unpacked(name, Path(folder))) for name in KIND_NAMES]
        for kind in (*KINDS, *OTHER_LAYOUTS):
            text_model, projector = write_small_vision(Path(folder), kind)
            kinds.append(_read(f"seeing {kind}", projector or text_model))
        kinds.append(_of_folder("whisper", write_whisper(Path(folder) / "whisper")))
        adapter = write_adapter(Path(folder) / "adapter.gguf", random_pairs(stored(ADAPTED), 2, 1), alpha=2.0)
        kinds.append(_read("adapter", adapter))
    llama, bert = sound_file("llama-llama3"), sound_file("bert-mean")
    return [
        *map(sound_file, NAMES),
        *kinds,
        sound_file("llama-llama3 gpt2"),
        _told(llama, "gemma4", _vocabulary("gemma4", merges=["a b", "ab c"])),
        _told(llama, "spm", _vocabulary("llama", scores=[-float(n) for n in range(64)])),
        _told(bert, "wordpiece", _vocabulary("bert")),
        _told(bert, "unigram", _vocabulary("t5", scores=[-float(n) for n in range(64)], unknown_token_id=2)),
        _told(llama, "linear", {"llama.rope.scale_linear": 2.0}),
        _told(sound_file("llama-yarn"), "all", {f"llama.{key}": value for key, value in _YARN.items()}),
        _told(sound_file("mixtral"), "all", {"llama.expert_weights_norm": True}),
        _longrope(llama),
    ]


_YARN: Mapping[str, Any] = {
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": 2,
    "rope.scaling.attn_factor": 1.1,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.2,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}


def hostile_pairs(key: str) -> Iterator[tuple[str, bytes | None]]:
    """Values that attackers and broken converters write, each with a name."""
    yield "missing", None
    for n in (0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32 - 1):
        yield f"u32 {n}", pair(key, UINT32, u32(n))
    for n in (2**32, 2**63 - 1, 2**63, 2**64 - 1):
        yield f"u64 {n}", pair(key, UINT64, struct.pack("<Q", n))
    for n in (-1, -(2**31)):
        yield f"i32 {n}", pair(key, INT32, struct.pack("<i", n))
    yield "i64 -2**63", pair(key, INT64, struct.pack("<q", -(2**63)))
    for x in (nan, inf, -inf, 0.0, -0.0, -1.0, 1e-45, 1e-7, 0.5, 1.0, 1.0000001, 3e38):
        yield f"f32 {x}", pair(key, FLOAT32, struct.pack("<f", x))
    for x in (1e-300, 1.0 + 1e-12, 1e300):
        yield f"f64 {x}", pair(key, FLOAT64, struct.pack("<d", x))
    for flag in (0, 1):
        yield f"bool {flag}", pair(key, BOOL, bytes([flag]))
    for name, raw in {"": b"", "x": b"x", "not UTF-8": b"\xff\xfe", "64 KB": b"y" * 65536}.items():
        yield f"string {name}", pair(key, STRING, text(raw))
    for count in (0, 1, 2, 3, 1000):
        for n in (0, 1, 2**32 - 1):
            yield f"{count} u32 {n}", array(key, UINT32, count, u32(n) * count)
    for x in (nan, inf, 1.0):
        yield f"64 f32 {x}", array(key, FLOAT32, 64, struct.pack("<f", x) * 64)
    yield "64 i64 -2**63", array(key, INT64, 64, struct.pack("<q", -(2**63)) * 64)
    yield "64 u64 2**64-1", array(key, UINT64, 64, b"\xff" * 512)
    yield "64 bools", array(key, BOOL, 64, b"\1" * 64)
    for count in (0, 1, 64, 1000):
        yield f"{count} empty strings", array(key, STRING, count, text("") * count)
    yield "64 strings not UTF-8", array(key, STRING, 64, text(b"\xff \xfe") * 64)
    yield "an array of arrays", array(key, ARRAY, 1, u32(UINT32) + struct.pack("<Q", 1) + u32(1))


def hostile_tensors(held: Stored) -> Iterator[tuple[str, Stored | None]]:
    """The same tensor with another shape or dtype."""
    yield "missing", None
    shape = held.shape
    axes = range(len(shape))
    others = {
        "no dimension": (),
        "a dimension of 1 more": (*shape, 1),
        "a dimension of 2 more": (*shape, 2),
        "a dimension in front": (1, *shape),
        "a dimension less": shape[:-1],
        "transposed": shape[::-1],
        **{f"{n} by axis {axis}": _stretched(shape, axis, n) for axis in axes for n in (-1, 1)},
        **{f"empty by axis {axis}": (*shape[:axis], 0, *shape[axis + 1 :]) for axis in axes},
        **{f"1 by axis {axis}": (*shape[:axis], 1, *shape[axis + 1 :]) for axis in axes},
    }
    for name, other in others.items():
        if len(other) <= 4:
            yield name, _ones(other, EXACT)
    for kind in (GGMLQuantizationType[name] for name in ("I8", "I16", "I32", "I64", "F64", "F16", "BF16")):
        yield f"of {kind.name}", _ones(shape, kind)
    if shape and shape[0] % 32 == 0:
        for kind in (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0):
            blocks = quantize(np.ones(shape[::-1], np.float32), kind)
            yield f"of {kind.name}", Stored(shape, kind, blocks.tobytes())


def keys_that_are_read(seed: Seed, path: Path) -> list[str]:
    """The full names of the keys that a file's way from opening to an answer looks up, and those in the file."""
    asked: set[str] = set()
    resolve = Config.resolve

    def recording(config: Config, key: str) -> str | None:
        asked.add(key)
        return resolve(config, key)

    with patch.object(Config, "resolve", recording):
        answer(seed.write(path))
    counts = (key for key in seed.pairs if key.endswith(".block_count"))
    prefix = next(counts, "").removesuffix("block_count")  # an adapter's keys have none
    full = (key if key.startswith((*GLOBAL, prefix)) else prefix + key for key in asked)
    return sorted({*full, *seed.pairs})


def answer(path: Path, backend: str = "cpu_ref") -> None:
    """Load a model and ask for a short answer, or an embedding, by text if the file has a vocabulary."""
    with backbay_engine.load(backend=backend, num_threads=1, batch=8, context=None, **_files(path)) as llm:
        if (
            "image" in llm.modalities and llm.context > 64
        ):  # a shorter one, as the file says, holds no picture
            llm.generate([[0], picture(20, 30)], max_tokens=2)
        if llm.transcribes:
            llm.transcribe(Audio(heard(0.5), rate=16_000), temperature=0.0)
            return
        try:
            prompt: Any = "ab" if 0 < len(llm.tokenizer.encode("ab")) < llm.context else [0]
        except backbay_engine.RequestError:
            prompt = [0]
        if llm.model.ranks:
            llm._port.ask(Embed([[0]]))  # a file may have no vocabulary to write a pair in
        elif llm.cache is None:
            llm.embed([prompt])
        else:
            llm.generate(prompt, max_tokens=2, adapter=dict.fromkeys(llm.adapters, 1.0))


def _files(path: Path) -> dict[str, Any]:
    """What to load: a model itself, or the one that a projector or an adapter serves, with it."""
    with backbay.gguf.open(path) as file:
        if str(file.metadata.get("general.type")) == "adapter":
            return {"path": stored(ADAPTED), "adapters": {"adapter": path}}
        if str(file.metadata.get("general.architecture")) != "clip":
            return {"path": path, "projector": None}
        kind = str(file.metadata.get("clip.projector_type"))
        named = {"qwen2vl_merger": "qwen2vl", "qwen2.5vl_merger": "qwen2vl", "minicpmv4_6": "minicpm46"}.get(
            kind, kind
        )
        return {"path": _text_models().get(named, _text_models()["llava"]), "projector": path}


@cache
def _text_models() -> dict[str, Path]:
    folder = Path(mkdtemp())
    atexit.register(rmtree, folder)
    kinds = ("gemma3", "llama4", "llava", "minicpm46", "qwen2vl")
    return {kind: write_small_vision(folder, kind)[0] for kind in kinds}


def judged(path: Path, backend: str = "cpu_ref") -> str | None:
    """What is wrong with the outcome of a hostile file: None for an answer, or for a ModelFileError in its place."""
    start = process_time()
    try:
        answer(path, backend)
    except ModelFileError as error:
        size = path.stat().st_size
        if error.path != str(path) or not (error.offset is None or 0 <= error.offset <= size):
            return f"a ModelFileError elsewhere: {error}"
        if len(str(error)) > 3000:
            return f"a message of {len(str(error))} characters"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    seconds = process_time() - start
    return f"{seconds:.1f} s of the processor" if seconds > LIMIT else None


def _read(name: str, path: Path) -> Seed:
    reader = gguf.GGUFReader(path)
    pairs = {
        field.name: b"".join(part.tobytes() for part in field.parts)
        for field in reader.fields.values()
        if not field.name.startswith("GGUF.")
    }
    tensors = {
        each.name: Stored(tuple(map(int, each.shape)), each.tensor_type, each.data.tobytes())
        for each in reader.tensors
    }
    return Seed(name, pairs, tensors)


def _of_folder(name: str, folder: Path) -> Seed:
    """The model of a folder of transformers, as a file."""
    with open_model(folder) as read:
        found = {key: read.metadata[key] for key in read.metadata}
        tensors = {
            each.name: Stored(each.shape, int(each.dtype), bytes(read.data(each.name)))
            for each in read.tensors.values()
        }
    plain = {key: each if np.isscalar(each) else np.array(list(each)).tolist() for key, each in found.items()}
    return _told(Seed(name, {}, tensors), "folder", plain)


def _told(seed: Seed, name: str, values: Mapping[str, Any]) -> Seed:
    pairs = {**seed.pairs, **{key: _pair(key, value) for key, value in values.items()}}
    return replace(seed, name=f"{seed.name} {name}", pairs=pairs)


def _vocabulary(kind: str, **more: Any) -> dict[str, Any]:
    tokens = ["<s>", "</s>", "<unk>", *CHARACTERS, *CHARACTERS.upper(), "ab", "\u2581ab", "\u2581c"]
    tokens += [f"<{n}>" for n in range(64 - len(tokens))]
    types = [3, 3, 2] + [1] * (len(tokens) - 3)
    keys = {
        "model": kind,
        "tokens": tokens,
        "token_type": types,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def _longrope(seed: Seed) -> Seed:
    factors = Stored((4,), EXACT, np.full(4, 2, np.float32).tobytes())
    kept = {name: held for name, held in seed.tensors.items() if name != "rope_freqs.weight"}
    sets = {f"rope_factors_{kind}.weight": factors for kind in ("short", "long")}
    longer = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.original_context_length": 64}
    return _told(replace(seed, tensors={**kept, **sets}), "longrope", longer)


def _pair(key: str, value: Any) -> bytes:
    if isinstance(value, list):
        kind, _ = _packed(value[0])
        return array(key, kind, len(value), b"".join(_packed(each)[1] for each in value))
    return pair(key, *_packed(value))


def _packed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str):
        return STRING, text(value)
    if isinstance(value, bool):
        return BOOL, bytes([value])
    return (
        (INT32, struct.pack("<i", value)) if isinstance(value, int) else (FLOAT32, struct.pack("<f", value))
    )


def _ones(shape: Shape, kind: GGMLQuantizationType) -> Stored:
    if kind is GGMLQuantizationType.BF16:
        return Stored(shape, kind, np.full(shape, 0x3F80, np.uint16).tobytes())
    return Stored(shape, kind, np.ones(shape, PLAIN[kind]).tobytes())


def _stretched(shape: Shape, axis: int, by: int) -> Shape:
    return (*shape[:axis], shape[axis] + by, *shape[axis + 1 :])
