"""Damaged files are read or refused, never anything else. `lab/bench/fuzz_gguf.py` runs many more."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from gguf import GGUFReader
from gguf_fuzz import Field, exercise, fields, run, seeds
from gguf_oracle import agree

import backbay.gguf

VARIANTS = 500


@pytest.mark.fault(
    "bytes of a header are changed, cut out or repeated at random", "the file is read, or ModelFileError"
)
def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    prepared = seeds(tmp_path)
    outcomes = list(run(prepared, range(VARIANTS)))
    failures = [
        f"variant {each.index} ({each.mutation}): {each.failure!r}" for each in outcomes if each.failure
    ]
    assert not failures, "\n".join(failures)
    assert len(outcomes) == VARIANTS
    accepted = sum(each.accepted for each in outcomes)
    assert VARIANTS // 20 < accepted < VARIANTS // 2  # or the damage says little


@pytest.mark.fault("a damaged header promises large values", "no more memory is taken than for a sound file")
def test_damaged_files_take_no_more_memory_than_sound_ones(tmp_path: Path) -> None:
    prepared = seeds(tmp_path)
    tracemalloc.start()
    try:
        for each in run(prepared, range(100)):
            assert tracemalloc.get_traced_memory()[1] < 4 * 2**20, f"variant {each.index} ({each.mutation})"
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()


def test_the_seeds_are_sound(tmp_path: Path) -> None:
    for seed in seeds(tmp_path):
        for name in seed.files:
            exercise(seed.directory / name)


def test_a_variant_is_the_same_every_time(tmp_path: Path) -> None:
    results = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        outcomes = run(seeds(tmp_path / name), range(40, 60))
        results.append([(each.mutation, each.accepted) for each in outcomes])
    assert results[0] == results[1]


def test_all_fields_of_a_sound_file_are_found(tmp_path: Path) -> None:
    seed = seeds(tmp_path)[0]
    found = list(fields(seed.files["m.gguf"]))
    oracle = GGUFReader(seed.directory / "m.gguf")
    expected = {Field(int(each.field.offset), 8) for each in oracle.tensors}  # where a name's length stands
    assert expected <= set(found)
    assert found[-1].offset + found[-1].width <= oracle.data_offset


def test_damaged_files_that_are_read_are_read_as_the_gguf_package_reads_them(tmp_path: Path) -> None:
    agreed = 0

    def check(path: Path) -> None:
        nonlocal agreed
        backbay.gguf.open(path).close()
        if "-of-" not in path.name and _oracle_reads(path):
            agree(path)
            agreed += 1

    failures = [each for each in run(seeds(tmp_path), range(VARIANTS), check) if each.failure]
    assert not failures
    assert agreed > VARIANTS // 20


def _oracle_reads(path: Path) -> bool:
    try:
        for field in GGUFReader(path).fields.values():
            field.contents()
    except (ValueError, KeyError):  # it refuses strings that are not UTF-8
        return False
    return True


@pytest.mark.parametrize("bug", [IndexError, OverflowError, MemoryError, ValueError])
def test_the_fuzzing_finds_a_bug(tmp_path: Path, bug: type[Exception]) -> None:
    def broken(_: Path) -> None:
        raise bug

    assert all(isinstance(each.failure, bug) for each in run(seeds(tmp_path), range(5), broken))
