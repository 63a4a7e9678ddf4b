"""Answers about pictures that are interrupted and go on, wait too long, or are told step by step."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from seeing_models import ENDLESS, Files, opened
from small_vision import picture

from backbay_engine import LLM, Completion, DeadlineError, Image, QueueFullError, TokenStep
from backbay_engine.media.encoder import MediaEncoder

ASKED: list[Any] = ["what is this: ", Image(picture(20, 20))]


@pytest.mark.few(3)
def test_an_answer_about_a_picture_goes_on_after_any_of_its_tokens(llm: LLM) -> None:
    for options in ({"temperature": 0}, {"seed": 7, "temperature": 1.2, "stop": "ab"}):
        whole = llm.generate(ASKED, max_tokens=6, **options)
        for cut in range(len(whole.tokens) + 1):
            handle = llm.submit(ASKED, max_tokens=6, resume=whole.tokens[:cut], **options)
            steps, found = list(handle.steps()), handle.result()
            assert (found.text, found.tokens) == (whole.text, whole.tokens)
            assert [token for step in steps for token in step.tokens] == whole.tokens[cut:]


def test_steps_are_told_and_places_given_back(files: Files) -> None:
    for worker in (False, True):
        with opened(files, "gemma3", parallel=1, queue=0, worker=worker) as llm:
            for _ in range(3):
                told: list[Any] = []
                answer = llm.submit(ASKED, max_tokens=4, on_step=told.append, **ENDLESS).result()
                assert isinstance(told[-1], Completion)
                assert [token for step in told[:-1] for token in step.tokens] == answer.tokens
                assert all(isinstance(step, TokenStep) for step in told[:-1])


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds encodings until it is set."""
    go_on, embed = threading.Event(), MediaEncoder.embed

    def held(encoder: MediaEncoder, *args: Any, **how: Any) -> Any:
        assert go_on.wait(300)
        return embed(encoder, *args, **how)

    monkeypatch.setattr(MediaEncoder, "embed", held)
    return go_on


def test_a_picture_that_takes_too_long_is_late(files: Files, gate: threading.Event) -> None:
    with opened(files, "gemma3", parallel=1, queue=0) as llm:
        handle = llm.submit(ASKED, max_tokens=2, deadline=0.05)
        assert llm.state().waiting == 1
        with pytest.raises(QueueFullError):
            llm.submit("text", max_tokens=2)
        threading.Timer(0.2, gate.set).start()
        with pytest.raises(DeadlineError):
            handle.result(300)
        assert llm.generate("text", max_tokens=2).tokens


def test_a_damaged_picture_takes_no_place(files: Files, tmp_path: Path) -> None:
    with opened(files, "gemma3", parallel=1, queue=0) as llm:
        for _ in range(3):
            with pytest.raises(Exception, match="picture"):
                llm.generate([Image(b"no picture")], max_tokens=2)
        assert llm.generate("text", max_tokens=2).tokens
