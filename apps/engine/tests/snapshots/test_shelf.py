"""Beginnings of prompts in a folder: later processes compute them no more."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from constraints import Holding
from model_files import unpacked
from patience import wait_until
from small_llama import EOS, write_small_llama

import backbay
from backbay import OptionError
from backbay_engine import load
from backbay_engine.cache.cells.contents import CacheContents
from backbay_engine.local.prefix_folder import WORTH, PrefixFolder
from backbay_engine.port.options import LoadOptions
from backbay_engine.runner.slots import Slot
from backbay_engine.snapshots import Snapshot
from backbay_engine.snapshots.snapshot_folder import SnapshotFolder

SIZES: dict[str, Any] = {"context": 256, "parallel": 2, "batch": 64, "num_threads": 1, "kv_dtype": "f32"}
BACKENDS = sorted(backbay.backends())
SYSTEM = [int(n) for n in np.random.default_rng(1).integers(32, 127, 120)]
OPTIONS = {"max_tokens": 6, "temperature": 0, "logit_bias": {EOS: float("-inf")}}


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_beginning_is_found_by_the_next_process(path: Path, backend: str, tmp_path: Path) -> None:
    asked = [*SYSTEM, 65, 66]
    with load(path, backend, **SIZES, cache_dir=tmp_path) as llm:
        expected = llm.generate(asked, **OPTIONS)
        assert expected.timings.reused_tokens == 0
    assert len(files(tmp_path)) == 1
    for other in BACKENDS:
        with load(path, other, **SIZES, cache_dir=tmp_path) as llm:
            found = llm.generate(asked, **OPTIONS)
            assert (found.tokens, found.timings.reused_tokens) == (expected.tokens, len(asked) - 1)
            branch = llm.generate([*SYSTEM[:100], 67, 68], **OPTIONS)
            assert branch.timings.reused_tokens == 100


@pytest.mark.parametrize("kind", ["gemma2", "mamba2", "t5-flan"])
def test_caches_that_cannot_be_cut_are_found_whole(kind: str, tmp_path: Path) -> None:
    asked = [int(n) for n in np.random.default_rng(2).integers(3, 60, 80)]
    sizes = {**SIZES, "batch": 96}
    file, shelf = unpacked(kind, tmp_path), tmp_path / "shelf"
    with load(file, "cpu_ref", **sizes, cache_dir=shelf) as llm:
        answer = llm.generate(asked, **{**OPTIONS, "logit_bias": {}}).tokens
        if kind == "t5-flan":
            longer, resumed = asked, answer[:2]
        else:
            longer, resumed = [*asked, *answer[:2]], []
        expected = llm.generate(longer, resume=resumed, reuse=False, **{**OPTIONS, "logit_bias": {}}).tokens
    assert files(shelf)
    with load(file, "ggml", **sizes, cache_dir=shelf) as llm:
        found = llm.generate(longer, resume=resumed, **{**OPTIONS, "logit_bias": {}})
    assert found.tokens == expected
    assert found.timings.reused_tokens >= 80


def test_short_prompts_and_known_ones_are_not_written(path: Path, tmp_path: Path) -> None:
    with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path) as llm:
        llm.generate(SYSTEM[: WORTH - 1], **OPTIONS)
        for n in range(3):
            llm.generate([*SYSTEM, n], **OPTIONS)
    assert len(files(tmp_path)) == 1


def test_what_is_being_written_is_not_written_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, added, add = threading.Event(), list[Snapshot](), SnapshotFolder.add

    def add_late(shelf: SnapshotFolder, snapshot: Snapshot) -> None:
        added.append(snapshot)
        assert answered.wait(300)
        add(shelf, snapshot)

    monkeypatch.setattr(SnapshotFolder, "add", add_late)
    with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path) as llm:
        for n in range(3):
            llm.generate([*SYSTEM, n], **OPTIONS)
        answered.set()
    assert len(added) == len(files(tmp_path)) == 1


def test_a_conversation_that_grows_has_one_file(path: Path, tmp_path: Path) -> None:
    for length in (70, 140, 210):
        with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path) as llm:
            found = llm.generate((SYSTEM * 2)[:length], **OPTIONS)
            assert found.timings.reused_tokens == (0 if length == 70 else length - 70)
    assert len(files(tmp_path)) == 1


def test_the_budget_holds_and_what_is_used_stays(path: Path, tmp_path: Path) -> None:
    with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path) as llm:
        llm.generate(SYSTEM, **OPTIONS)
    one = files(tmp_path)[0].stat().st_size
    for n in range(4):
        with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path, cache_bytes=int(2.5 * one)) as llm:
            llm.generate([n + 1] * 120, **OPTIONS)
            used = llm.generate([*SYSTEM, 5], **OPTIONS)  # after the new one was written, perhaps
        assert used.timings.reused_tokens == 120
        assert sum(each.stat().st_size for each in files(tmp_path)) <= 2.5 * one
    assert len(files(tmp_path)) == 2


@pytest.mark.fault("the clock goes back by a day", "older prefixes leave the folder before newer ones")
def test_files_from_before_the_clock_went_back_leave_first(path: Path, tmp_path: Path) -> None:
    for n in range(2):
        with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path) as llm:
            llm.generate([n + 1] * 120, **OPTIONS)
    for file in files(tmp_path):
        os.utime(file, (time.time() + 86400,) * 2)
    budget = int(2.5 * files(tmp_path)[0].stat().st_size)
    with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path, cache_bytes=budget) as llm:
        llm.generate(SYSTEM, **OPTIONS)
    with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path, cache_bytes=budget) as llm:
        assert llm.generate([*SYSTEM, 5], **OPTIONS).timings.reused_tokens == 120


def test_a_damaged_file_is_removed_and_computed(path: Path, tmp_path: Path) -> None:
    with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path) as llm:
        expected = llm.generate([*SYSTEM, 1], **OPTIONS).tokens
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    (file.parent / "nonsense.safetensors").write_bytes(b"nonsense")
    with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path) as llm:
        found = llm.generate([*SYSTEM, 1], **OPTIONS)
    assert (found.tokens, found.timings.reused_tokens) == (expected, 0)
    assert Snapshot.read(file).tokens == (*SYSTEM, 1)  # written anew


@pytest.mark.fault(
    "no more files can be opened while a kept beginning is read", "it is computed, its file stays"
)
def test_a_file_that_cannot_be_read_now_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = SnapshotFolder(tmp_path, 1 << 20, "model", anywhere=True)
    shelf.add(Snapshot("model", (1, 2, 3)))
    (file,) = files(tmp_path)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("backbay_engine.snapshots.snapshot_folder.read_file", refuse)
    assert shelf.read(file) is None
    monkeypatch.undo()
    found = shelf.read(file)
    assert found is not None
    assert found.tokens == (1, 2, 3)


class ForgottenMeanwhile(dict[str, Any]):
    """What a shelf knows, forgotten by another thread just after this one has looked at it."""

    def keys(self) -> Any:
        found = set(super().keys())
        self.clear()
        return found

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        self.clear()
        return found


def test_two_threads_may_forget_the_same_files(tmp_path: Path) -> None:
    shelf, tokens = SnapshotFolder(tmp_path, 1 << 20, "model", anywhere=True), np.array([1, 2, 3], np.int32)
    shelf.add(Snapshot("model", (1, 2, 3)))
    for _ in range(2):
        shelf._known = ForgottenMeanwhile(shelf._known)
        assert shelf.find(tokens, 0) is not None
    shelf._known = ForgottenMeanwhile({"gone.safetensors": tokens})
    assert shelf.find(tokens, 0) is not None


def test_a_model_may_be_closed_in_the_thread_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = SimpleNamespace(
        model="model", cache=None, take=lambda slot: Snapshot("model", tuple(slot.tokens))
    )
    keeping = PrefixFolder(LoadOptions(cache_dir=tmp_path), cast("Any", snapshots))
    closed = list[str]()

    def close(_: Snapshot) -> None:
        keeping.close()
        closed.append(threading.current_thread().name)

    monkeypatch.setattr(keeping._shelf, "add", close)
    keeping.keep(Slot(0, list(SYSTEM)))
    keeping.close()
    assert closed == ["backbay shelf_0"]
    assert not caplog.records


@pytest.mark.fault(
    "a file of the cache folder has a header that cannot be",
    "a warning; it is removed, the other files serve on",
)
@pytest.mark.parametrize(
    "offsets",
    [[0, 1 << 70], [1 << 70, 1 << 71], [0, 1 << 62], [0, 1 << 40], [8, 4], [0, None], [0, 3], {}, "ab"],
)
def test_a_header_that_cannot_be_hides_no_other_file(offsets: Any, tmp_path: Path) -> None:
    shelf = SnapshotFolder(tmp_path, 1 << 20, "model", anywhere=True)
    shelf.add(Snapshot("model", (1, 2, 3)))
    header = json.dumps({"tokens": {"data_offsets": offsets}}).encode()
    damaged = tmp_path / "model" / "damaged.safetensors"
    damaged.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    found = SnapshotFolder(tmp_path, 1 << 20, "model", anywhere=True).find(np.array([1, 2, 3], np.int32), 0)
    assert not damaged.exists()
    assert found is not None
    assert found.length == 3


def test_other_models_do_not_meet(path: Path, tmp_path: Path) -> None:
    with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path / "shelf") as llm:
        llm.generate([*SYSTEM, 1], **OPTIONS)
    other = write_small_llama(tmp_path / "other.gguf", seed=8)
    with load(other, "cpu_ref", **SIZES, cache_dir=tmp_path / "shelf") as llm:
        assert llm.generate([*SYSTEM, 1], **OPTIONS).timings.reused_tokens == 0
    assert len(files(tmp_path / "shelf")) == 2


def test_a_folder_that_cannot_be_used_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OptionError, match="cannot be used"):
        load(path, "cpu_ref", **SIZES, cache_dir=tmp_path / "file")
    with pytest.raises(OptionError, match="cache_dir must be the path"):
        load(path, "cpu_ref", **SIZES, cache_dir=5)
    with pytest.raises(ValueError, match="cache_bytes"):
        load(path, "cpu_ref", **SIZES, cache_dir=tmp_path, cache_bytes=0)


def test_a_worker_that_dies_computes_no_prompt_again(path: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "max_tokens": 100}
    with load(path, "cpu_ref", **SIZES, worker=True, cache_dir=tmp_path / "shelf") as llm:
        expected = llm.generate([*SYSTEM, 1], **options).tokens
        wait_until(lambda: files(tmp_path / "shelf"))
        handle = llm.submit([*SYSTEM, 1], constraint=Holding(tmp_path / "mark", 20), **options)
        wait_until((tmp_path / "mark").exists)
        os.kill(llm.worker_pid or 0, signal.SIGKILL)
        found = handle.result(300)
    assert found.tokens == expected
    assert found.timings.resumed_tokens > 0
    assert found.timings.reused_tokens == len(SYSTEM) + 1


def write_many(folder: str, number: int) -> None:
    """What one of several processes does, at the top of a module, so that another process can import it."""
    shelf = SnapshotFolder(Path(folder), 40_000, "model", anywhere=True)
    chance = np.random.default_rng(number)
    for _ in range(25):
        tokens = tuple(int(n) for n in chance.integers(0, 3, 80))
        shelf.add(
            Snapshot("model", tokens, CacheContents({"a": np.zeros((80, 10), np.float32)}, {"end": 80}))
        )
        found = shelf.find(np.array(tokens, np.int32), 0)
        if found is not None:
            shelf.read(found.path)


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=write_many, args=(str(tmp_path), n)) for n in range(2)]
    stop = threading.Event()

    def remove() -> None:
        while not stop.is_set():
            for each in files(tmp_path):
                each.unlink(missing_ok=True)
                time.sleep(0.005)

    remover = threading.Thread(target=remove)
    for process in processes:
        process.start()
    remover.start()
    for process in processes:
        process.join(300)
    stop.set()
    remover.join()
    assert [process.exitcode for process in processes] == [0, 0]
    for each in files(tmp_path):
        Snapshot.read(each)  # whole
    assert sum(each.stat().st_size for each in files(tmp_path)) <= 40_000
    assert not list(tmp_path.glob("*/.*partial"))
