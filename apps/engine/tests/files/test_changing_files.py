"""A model file that changes while it is in use is an error, never a crash or a wrong answer, on every backend."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import read_gguf, write_gguf

import backbay
from backbay import BackendParams, ModelFileError, NoMemoryError
from backbay_engine import load

SHIPPED = Path(__file__).parents[4] / "examples" / "models" / "backbay-tiny-f16.gguf"
COPIED = BackendParams(options={"weights": "copied"})
PROMPT = "sum 417 268 ="
every_backend = pytest.mark.parametrize("backend", sorted(backbay.backends()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(SHIPPED, tmp_path / "model.gguf"))


def shrink(path: Path) -> None:
    os.truncate(path, 1000)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def grow(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"more")


def overwrite(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        stream.write(bytes(4096))


def touch(path: Path) -> None:
    path.touch()  # nothing tells this from the file's being overwritten


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(1000))
    other.rename(path)


def delete(path: Path) -> None:
    path.unlink()


every_change = pytest.mark.parametrize("change", [shrink, empty, grow, overwrite, touch])
harmless = pytest.mark.parametrize("change", [replace, delete])
Change = Callable[[Path], None]


@pytest.mark.fault(
    "the model file shrinks, or is overwritten in place, between steps", "ModelFileError with the remedy"
)
@every_change
@every_backend
@pytest.mark.few(5)
def test_a_change_between_steps_is_an_error(path: Path, backend: str, change: Change) -> None:
    with load(path, backend=backend) as llm:
        assert llm.generate(PROMPT, temperature=0).text == " 685"
        change(path)
        with pytest.raises(ModelFileError, match=r"model\.gguf: expected .* found .*weights=copied"):
            llm.generate(PROMPT, temperature=0)
        weight = llm.backend.get("token_embd.weight")
        assert weight is not None
        with pytest.raises(ModelFileError):
            weight.bytes()


@pytest.mark.fault("the model file is replaced by another, or deleted, while it is in use", "nothing")
@harmless
@every_backend
def test_replacing_and_deleting_are_harmless(path: Path, backend: str, change: Change) -> None:
    with load(path, backend=backend) as llm:
        change(path)
        assert llm.generate(PROMPT, temperature=0).text == " 685"


@pytest.mark.fault("the model file changes in any way after a load with weights=copied", "nothing")
@pytest.mark.parametrize("change", [shrink, empty, overwrite, delete])
@every_backend
@pytest.mark.few(4)
def test_copied_weights_outlive_their_file(path: Path, backend: str, change: Change) -> None:
    with load(path, backend=backend, params=COPIED) as llm:
        expected = llm.logits(PROMPT)
    with load(path, backend=backend, params=COPIED) as llm:
        change(path)
        np.testing.assert_array_equal(llm.logits(PROMPT), expected)
        llm.chat([{"role": "user", "content": "copy q r s"}], max_tokens=4)  # reads the template
        weight = llm.backend.get("token_embd.weight")
        assert weight is not None
        assert len(weight.bytes()) == weight.nbytes


@pytest.mark.fault("the model file shrinks while it is loaded", "ModelFileError with the remedy")
@pytest.mark.parametrize("params", [BackendParams(), COPIED], ids=["mapped", "copied"])
@every_backend
def test_a_change_while_loading_is_an_error(tmp_path: Path, backend: str, params: BackendParams) -> None:
    path = tmp_path / "quantized.gguf"
    write_gguf(path, "q8_0", *read_gguf(SHIPPED), "the shipped model, quantized")
    changed = threading.Event()

    def shrink_once(done: float) -> None:
        if not changed.is_set():
            changed.set()
            shrink(path)

    with (
        backbay.open(path, backend=backend, params=params) as opened,
        pytest.raises(ModelFileError, match="quantized"),
    ):
        opened.load(shrink_once)


@pytest.mark.fault(
    "the model file shrinks, or is overwritten in place, while requests run",
    "ModelFileError in each of them; the host goes on",
)
@pytest.mark.parametrize("change", [shrink, overwrite])
@every_backend
@pytest.mark.few(4)
def test_a_change_while_requests_run_ends_them_all(
    path: Path, backend: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(path, backend=backend, parallel=4) as llm:
        run, steps = llm.step_cache.run, iter(range(1000))

        def change_before_the_tenth(*step: Any) -> Any:  # in the midst of a step, lost pages end the process
            if next(steps) == 9:
                change(path)
            return run(*step)

        monkeypatch.setattr(llm.step_cache, "run", change_before_the_tenth)
        endless = {"max_tokens": 2000, "num_keep": 4, "logit_bias": dict.fromkeys(llm.end_ids, float("-inf"))}
        handles = [llm.submit(PROMPT, temperature=1, seed=n, **endless) for n in range(4)]
        for handle in handles:
            with pytest.raises(ModelFileError):
                handle.result(300)
        with pytest.raises(ModelFileError):
            llm.generate(PROMPT)


@every_backend
def test_copied_weights_are_in_the_report_whether_or_not_they_are_read(path: Path, backend: str) -> None:
    stored = sum(info.nbytes for info in backbay.gguf.open(path).tensors.values())
    totals = []
    for alloc in (True, False):
        params = BackendParams(alloc_memory=alloc, options={"weights": "copied"})
        with backbay.open(path, backend=backend, params=params) as opened:
            totals.append(opened.memory().total())
    assert totals[0] == totals[1] >= stored


@every_backend
def test_copies_that_the_machine_cannot_hold_are_refused(path: Path, backend: str, monkeypatch) -> None:
    def refuse(self: object) -> None:
        raise MemoryError("nothing left")

    monkeypatch.setattr(backbay.gguf.ModelFile, "copy_weights", refuse)
    with pytest.raises(NoMemoryError, match="nothing left"):
        backbay.open(path, backend=backend, params=COPIED)


@every_backend
def test_another_word_for_weights_is_refused(path: Path, backend: str) -> None:
    with pytest.raises(backbay.OptionError, match="weights"):
        backbay.open(path, backend=backend, params=BackendParams(options={"weights": "painted"}))
