"""What would wait for the engine in its own thread is refused, and a model may be closed there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_llama import EOS

from backbay import BackbayError, ClosedError
from backbay_engine import LLM, RequestError, load

SIZES: dict[str, Any] = {"context": 64, "parallel": 2, "batch": 16, "num_threads": 1, "kv_dtype": "f32"}
ENDLESS = {"logit_bias": {EOS: float("-inf")}, "temperature": 0}
PATIENCE = 60.0  # seconds
CALLS: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate("inside", max_tokens=2),
    "result": lambda llm: llm.submit("inside", max_tokens=2).result(),
    "steps": lambda llm: list(llm.submit("inside", max_tokens=2).steps()),
    "save a prompt": lambda llm: llm.save("inside"),
    "logits": lambda llm: llm.logits("inside"),
    "forget": lambda llm: llm.forget(),
}


@pytest.mark.fault(
    "on_step waits for the model that calls it, such as by generate() or save()",
    "RequestError that says to hand the work to another thread",
)
@pytest.mark.parametrize("name", CALLS)
def test_on_step_cannot_wait_for_its_own_thread(llm: LLM, name: str) -> None:
    errors: list[BaseException] = []

    def told(what: object) -> None:
        try:
            CALLS[name](llm)
        except BackbayError as error:
            errors.append(error)

    assert len(llm.submit("outside", max_tokens=3, on_step=told, **ENDLESS).result(PATIENCE).tokens) == 3
    assert errors and {type(error) for error in errors} == {RequestError}
    assert "another thread" in str(errors[0])
    assert llm.generate("later", max_tokens=2, **ENDLESS).tokens


def test_a_running_request_is_not_saved_in_the_engines_thread(llm: LLM) -> None:
    errors: list[BaseException] = []
    known = threading.Event()

    def told(what: object) -> None:
        assert known.wait(PATIENCE)
        try:
            llm.save(handle)
        except BackbayError as error:
            errors.append(error)

    handle = llm.submit("outside", max_tokens=3, on_step=told, **ENDLESS)
    known.set()
    handle.result(PATIENCE)
    assert errors and {type(error) for error in errors} == {RequestError}


def test_on_step_may_submit_and_another_model_may_be_waited_for(llm: LLM, path: Path) -> None:
    with load(path, "cpu_ref", **SIZES) as other:
        found: list[Any] = []

        def told(what: object) -> None:
            found.append(other.generate("inside", max_tokens=2, **ENDLESS).tokens)
            found.append(llm.submit("inside", max_tokens=2, **ENDLESS))

        llm.submit("outside", max_tokens=1, on_step=told, **ENDLESS).result(PATIENCE)
        assert [len(tokens) for tokens in found[::2]] == [2] * (len(found) // 2)
        assert all(len(handle.result(PATIENCE).tokens) == 2 for handle in found[1::2])


class Asking:
    """A constraint that asks the model that asks it."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def mask(self) -> bytes | None:
        self._llm.generate("inside", max_tokens=2)
        return None

    def accept(self, token: int) -> None:
        pass


def test_a_constraint_cannot_wait_for_its_model(path: Path) -> None:
    with load(path, "cpu_ref", **SIZES) as llm:
        with pytest.raises(RequestError, match="another thread"):
            llm.submit("outside", constraint=Asking(llm)).result(PATIENCE)
        assert llm.generate("later", max_tokens=2, **ENDLESS).tokens


@pytest.mark.fault("on_step closes its model", "the model closes, and its requests end with ClosedError")
@pytest.mark.parametrize("worker", [False, True])
def test_on_step_may_close_its_model(path: Path, caplog: pytest.LogCaptureFixture, worker: bool) -> None:
    caplog.set_level(logging.WARNING)
    llm = load(path, "cpu_ref", **SIZES, worker=worker)
    try:
        beside = llm.submit("beside", max_tokens=10_000, num_keep=0, **ENDLESS)
        next(beside.steps())
        closing = llm.submit("outside", max_tokens=50, on_step=lambda _: llm.close(), **ENDLESS)
        for handle in (closing, beside):
            with pytest.raises(ClosedError):
                handle.result(PATIENCE)
        with pytest.raises(ClosedError):
            llm.generate("later")
    finally:
        llm.close()
    assert "Traceback" not in caplog.text
