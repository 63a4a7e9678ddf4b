"""Guesses stand behind the last token of a prompt or an answer, never in the midst of a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbay_engine.runner.requests.generation import GenerationJob
from backbay_engine.runner.requests.job import AtomicSpan, Job, PromptLayout
from backbay_engine.runner.requests.request import GenerationOptions
from backbay_engine.runner.scheduler import Scheduler, StepShare
from backbay_engine.runner.slots import Slot
from backbay_engine.runner.speculation import NgramSource, Speculation, StepTimes

CONTEXT, ROOM = 64, 15


@pytest.fixture
def speculation() -> Speculation:
    pace = StepTimes()
    for size in (1, 2, 4):
        for _ in range(2):
            pace.note(size, 1.0)  # more tokens cost nothing
    return Speculation(NgramSource(), pace)


def begun(speculation: Speculation, prompt: list[int], held: int) -> GenerationJob:
    """A request whose slot holds the first tokens of its prompt."""
    sizes: dict[str, Any] = {"context": CONTEXT, "tokenizer": None, "vocabulary_size": 100}
    job = GenerationJob(prompt, options=GenerationOptions(), **sizes)
    job.start(Slot(0, prompt[:held]))
    speculation.begin(job)
    return job


def test_the_last_token_of_each_sequence_gets_guesses(speculation: Speculation) -> None:
    jobs: list[Job] = [begun(speculation, [1, 2, 3] * 4, 11)]
    shares = speculation.extended(Scheduler(ROOM).split(jobs), CONTEXT, ROOM)
    assert len(jobs[0].guess) >= 3
    assert jobs[0].guess == ([1, 2, 3] * 5)[: len(jobs[0].guess)]
    assert shares == [StepShare(jobs[0], 1 + len(jobs[0].guess))]


def test_a_prompt_that_a_picture_cuts_after_one_token_gets_no_guesses(speculation: Speculation) -> None:
    answering, prompt = begun(speculation, [1, 2, 3] * 4, 11), begun(speculation, [7, 8, 9] * 5, 0)
    prompt.layout = PromptLayout(
        [AtomicSpan(1, 15)]
    )  # the tokens of a picture, for which the step has no room beside the answer
    jobs: list[Job] = [answering, prompt]
    shares = Scheduler(ROOM).split(jobs)
    assert [share.count for share in shares] == [1, 1]
    assert speculation.extended(shares, CONTEXT, ROOM) == shares
    assert prompt.todo == [7, 8, 9] * 5


@pytest.mark.parametrize(("counts", "measured"), [([1, 1], True), ([1, 3], False)])
def test_steps_of_answers_alone_are_measured(counts: list[int], measured: bool) -> None:
    speculation = Speculation(NgramSource())
    shares = [StepShare(begun(speculation, [1, 2, 3, 4], 4 - count), count) for count in counts]
    for _ in range(2):
        speculation.note(shares, 0.0, np.zeros((0, 0), np.float32))
    assert (speculation.pace.known(sum(counts)) is not None) is measured
