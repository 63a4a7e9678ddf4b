"""Files with hostile metadata or tensors: a ModelFileError that names them, or an answer, and nothing else.

BACKBAY_HOSTILE_FILES=N tries N values of each key and each tensor in place of 3; `all` tries all values in all files.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from gguf_build import STRING, UINT32, array, pair, text, u32
from hostile_files import (
    FLOAT32,
    INT32,
    UINT64,
    Seed,
    answer,
    hostile_pairs,
    hostile_tensors,
    judged,
    keys_that_are_read,
    seeds,
    sound_file,
)

import backbay
import backbay_engine
from backbay import ModelFileError
from backbay.gguf import Key
from backbay.gguf.content import Content

T = TypeVar("T")
PARTS = 6  # of a test that takes minutes, so that several processes share it
ENGINE = Path(backbay_engine.__file__).parent
NAN, INF = float("nan"), float("inf")


def some(cases: Mapping[str, list[T]], part: int) -> Iterator[T]:
    """Some cases of each kind, as many as the environment says; of all kinds, those of one part."""
    asked = os.environ.get("BACKBAY_HOSTILE_FILES", "3")
    for kind, listed in sorted(cases.items())[part::PARTS]:
        drawn = Random(kind).sample(listed, len(listed))
        yield from drawn if asked == "all" else islice(drawn, int(asked))


def verdicts(path: Path, files: Iterable[tuple[str, Seed]]) -> list[str]:
    found = ((name, judged(seed.write(path))) for name, seed in files)
    return [f"{name}: {wrong}" for name, wrong in found if wrong]


@pytest.mark.thorough
def test_the_seeds_are_sound(tmp_path):
    for seed in seeds():
        answer(seed.write(tmp_path / "m.gguf"))


@pytest.mark.thorough
def test_every_declared_key_is_read_from_some_seed(tmp_path):
    read = {f".{key}" for seed in seeds() for key in keys_that_are_read(seed, tmp_path / "m.gguf")}
    missed = [key.name for key in declared_keys() if not any(full.endswith(f".{key.name}") for full in read)]
    assert not missed, "add a seed to hostile_files.py that needs these keys"


@pytest.mark.fault(
    "a key of the metadata is missing, of another type or out of range",
    "ModelFileError naming key, offset, value and expectation",
)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.thorough
def test_hostile_metadata_are_refused_or_answered(tmp_path, part):
    cases: dict[str, list[tuple[str, Seed]]] = {}
    for seed in seeds():
        for key in keys_that_are_read(seed, tmp_path / "m.gguf"):
            kind = key if key.startswith("tokenizer.") else key.partition(".")[2]
            cases.setdefault(kind, []).extend(
                (f"{seed.name}, {key}: {name}", seed.with_pair(key, value))
                for name, value in hostile_pairs(key)
            )
    assert len(cases) > 60
    assert verdicts(tmp_path / "m.gguf", some(cases, part)) == []


@pytest.mark.fault(
    "a tensor is missing, or of another shape or dtype",
    "ModelFileError naming tensor, offset, shape and dtype",
)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.thorough
def test_hostile_tensors_are_refused_or_answered(tmp_path, part):
    cases: dict[str, list[tuple[str, Seed]]] = {}
    for seed in seeds():
        for tensor, held in seed.tensors.items():
            kind = re.sub(r"blk\.[0-9]+\.", "", tensor)
            cases.setdefault(kind, []).extend(
                (f"{seed.name}, {tensor}: {name}", seed.with_tensor(tensor, value))
                for name, value in hostile_tensors(held)
            )
    assert len(cases) > 30
    assert verdicts(tmp_path / "m.gguf", some(cases, part)) == []


def u64(key: str, value: int) -> bytes:
    return pair(key, UINT64, struct.pack("<Q", value))


def i32(key: str, value: int) -> bytes:
    return pair(key, INT32, struct.pack("<i", value))


def f32(key: str, value: float) -> bytes:
    return pair(key, FLOAT32, struct.pack("<f", value))


def string(key: str, value: str) -> bytes:
    return pair(key, STRING, text(value))


@pytest.mark.parametrize(
    ("seed", "key", "write", "value", "found"),
    [
        *(("llama-yarn", "llama.rope.scaling.factor", f32, bad, bad) for bad in (INF, NAN, -1.0, 0.5)),
        *(("llama-yarn", "llama.rope.freq_base", f32, bad, bad) for bad in (0.0, 1.0, NAN, -5.0, INF)),
        *(("llama-yarn", "llama.rope.scaling.yarn_beta_fast", f32, bad, bad) for bad in (0.0, -1.0, NAN)),
        ("llama-yarn", "llama.rope.scaling.yarn_beta_slow", f32, 64.0, 64.0),
        ("llama-yarn", "llama.rope.scaling.original_context_length", u64, 0, 0),
        ("llama-yarn", "llama.rope.scaling.type", string, "dynamic", "the string 'dynamic'"),
        *(("gemma3", "gemma3.attention.sliding_window", u64, bad, bad) for bad in (2**32 - 1, 2**63, 2**64 - 1)),
        ("gemma3", "gemma3.attention.sliding_window", i32, -1, -1),
        ("gemma3", "gemma3.final_logit_softcapping", f32, 1e-45, "1.4"),
        ("gemma3", "gemma3.attention.scale", f32, INF, INF),
        ("gpt-oss", "gpt-oss.rope.freq_base_swa", f32, 1.0, 1.0),
        ("gpt-oss", "gpt-oss.expert_used_count", i32, 0, 0),
        ("llama-llama3", "llama.context_length", u64, 2**64 - 1, 2**64 - 1),
        ("llama-llama3", "llama.block_count", string, "2", "the string '2'"),
        ("llama-llama3", "llama.rope.dimension_count", i32, 7, 7),
        ("bert-cls", "bert.context_length", i32, 257, 257),
        ("bert-cls", "bert.attention.layer_norm_epsilon", f32, -1.0, -1.0),
        ("llama-llama3 gpt2", "tokenizer.ggml.pre", string, "gpt-5", "the string 'gpt-5'"),
        ("llama-llama3 gpt2", "tokenizer.ggml.bos_token_id", i32, -2, -2),
        ("llama-llama3 gpt2", "tokenizer.ggml.add_bos_token", i32, 1, 1),
    ],
)  # fmt: skip
def test_an_impossible_value_is_told_with_key_and_offset(tmp_path, seed, key, write, value, found):
    path = sound_file(seed).with_pair(key, write(key, value)).write(tmp_path / "m.gguf")
    told = refusal(path)
    assert f"in {key!r}" in str(told)
    assert str(found) in told.found
    assert told.offset == path.read_bytes().rindex(key.encode()) + len(key) + 4 + (
        8 if write is string else 0
    )


def test_an_impossible_element_is_told_with_its_own_offset(tmp_path):
    key = "llama.attention.head_count_kv"
    path = (
        sound_file("llama-llama3")
        .with_pair(key, array(key, UINT32, 2, u32(2) + u32(0)))
        .write(tmp_path / "m.gguf")
    )
    told = refusal(path)
    assert f"a whole number from 1 to 2147483647 in element 1 of {key!r}, found the int 0" in str(told)
    assert told.offset == path.read_bytes().rindex(key.encode()) + len(key) + 4 + 4 + 8 + 4


def test_a_tensor_that_does_not_fit_is_told_with_its_offset(tmp_path):
    seed, name = sound_file("llama-llama3"), "blk.1.ffn_norm.weight"
    held = dict(hostile_tensors(seed.tensors[name]))
    for kind, expected in {
        "of Q8_0": "[32] of q8_0",
        "of I8": "[32] of i8",
        "empty by axis 0": "[0]",
    }.items():
        path = seed.with_tensor(name, held[kind]).write(tmp_path / "m.gguf")
        told = refusal(path)
        assert str(told).count(name) == 1
        assert told.found == expected
        assert told.offset == path.read_bytes().index(name.encode()) + len(name)


@pytest.mark.fault(
    "block_count is lower than the blocks in the file", "ModelFileError naming the blocks left out"
)
def test_blocks_that_the_count_denies_are_refused(tmp_path):
    path = (
        sound_file("qwen3")
        .with_pair("qwen3.block_count", i32("qwen3.block_count", 1))
        .write(tmp_path / "m.gguf")
    )
    told = refusal(path)
    assert "expected a count that includes the blocks of blk.1." in str(told)
    assert "in 'qwen3.block_count', found the int 1" in str(told)


def test_the_last_blocks_may_predict_further_tokens(tmp_path):
    seed, key = sound_file("qwen3"), "qwen3.nextn_predict_layers"
    answer(seed.with_pair(key, i32(key, 1)).write(tmp_path / "m.gguf"))
    with pytest.raises(ModelFileError, match="less than the 2 blocks"):
        answer(seed.with_pair(key, i32(key, 2)).write(tmp_path / "m.gguf"))


@pytest.mark.fault("a vocabulary of 10 million tokens", "ModelFileError before any token is read")
def test_a_vocabulary_of_ten_million_tokens_is_refused_at_once(tmp_path, monkeypatch):
    key, count = "tokenizer.ggml.tokens", 10_000_000
    seed = sound_file("llama-llama3 gpt2").with_pair(key, array(key, STRING, count, text("a") * count))
    path = seed.write(tmp_path / "m.gguf")
    read, content_read = [], Content.read
    monkeypatch.setattr(
        Content, "read", lambda file, at, to: read.append(len(to)) or content_read(file, at, to)
    )
    assert "found a count of 10000000" in str(refusal(path))
    assert 0 < sum(read) < 2**20 < path.stat().st_size


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
def test_backends_take_heads_that_differ_by_block(tmp_path, backend):
    key = "llama.attention.head_count"
    seed = sound_file("llama-llama3").with_pair(key, array(key, UINT32, 2, u32(4) + u32(4)))
    answer(seed.write(tmp_path / "m.gguf"), backend)


def test_the_engine_reads_no_key_without_a_declared_range():
    undeclared = re.compile(r"config\.(?:int|float|bool|string|ints|floats|bools|strings|get)\(")
    assert not [path for path in ENGINE.rglob("*.py") if undeclared.search(path.read_text())]


def refusal(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as told:
        answer(path)
    return told.value


def declared_keys() -> list[Key[Any]]:
    """The keys that modules of the engine declare, one by one or in tables."""
    modules = [module for name, module in sys.modules.items() if name.startswith("backbay_engine.")]
    return [key for module in modules for value in vars(module).values() for key in keys_in(value)]


def keys_in(value: object) -> Iterator[Key[Any]]:
    if isinstance(value, Key):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from keys_in(each)
