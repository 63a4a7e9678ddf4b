"""The model in examples/models that sees answers questions about pictures, and the same on every backend."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from train_tiny_vision import PROJECTOR, TEXT
from vision_answers import by_engine
from vision_tasks import TASKS, Question, unseen_questions

import backbay
from backbay_engine import Image, load

MODELS = Path(__file__).parents[1] / "examples" / "models"


@cache
def questions() -> list[tuple[np.ndarray, Question]]:
    return [each for task in TASKS for each in unseen_questions(task, 6)]


@cache
def answers_of(backend: str) -> list[str]:
    with by_engine(MODELS / TEXT, MODELS / PROJECTOR, backend) as answer:
        return [answer(picture, question.text) for picture, question in questions()]


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
@pytest.mark.thorough
def test_questions_about_unseen_pictures_are_answered_right_and_alike(backend: str) -> None:
    given = answers_of(backend)
    right = sum(answer == question.answer for answer, (_, question) in zip(given, questions(), strict=True))
    assert right / len(given) >= 0.8
    assert given == answers_of("cpu_ref")


def test_the_model_looks_at_its_picture() -> None:
    """Without a text before it, and enlarged; a picture of another colour has another answer."""
    colours = {"red": (215, 40, 45), "blue": (50, 85, 220)}
    with load(MODELS / TEXT, projector=MODELS / PROJECTOR, backend="cpu_ref", context=128) as llm:
        for name, colour in colours.items():
            picture = np.full((240, 240, 3), 250, np.uint8)
            picture[30:110, 30:110] = colour
            answer = llm.generate([Image(picture), "What colour is the shape?"], max_tokens=4, temperature=0)
            assert answer.text.strip() == name
