"""The pictures and questions of the demo's model that sees: right answers, and pictures that training never shows."""

from __future__ import annotations

from itertools import islice
from random import Random

import numpy as np
import pytest
from vision_tasks import COLOURS, TASKS, Scene, scenes, training_scenes, unseen_questions


def parts(picture: np.ndarray) -> list[np.ndarray]:
    """The connected regions that differ from the ground, each as a mask."""
    ground = np.median(np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]]), axis=0)
    left = np.abs(picture - ground).max(axis=2) > 40
    found = []
    while left.any():
        region = np.zeros_like(left)
        region[np.unravel_index(left.argmax(), left.shape)] = True
        grown = region
        while True:
            padded = np.pad(region, 1)
            grown = left & (
                region | padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]
            )
            if (grown == region).all():
                break
            region = grown
        found.append(region)
        left = left & ~region
    return found


def colour_of(picture: np.ndarray, part: np.ndarray) -> str:
    mean = picture[part].mean(axis=0)
    return min(COLOURS, key=lambda name: float(np.abs(mean - COLOURS[name]).sum()))


def seen(task: str, count: int) -> list[tuple[Scene, dict[str, str]]]:
    """Scenes with questions of a task, with the answers to all their questions."""
    found = (scene for scene in scenes(Random(7)) if any(each.task == task for each in scene.questions))
    return [(scene, {each.text: each.answer for each in scene.questions}) for scene in islice(found, count)]


def test_shapes_are_as_many_as_the_answers_say() -> None:
    for scene, answers in seen("shapes", 40):
        found = parts(scene.picture)
        assert answers["How many shapes are there?"] == str(len(found))
        for colour in COLOURS:
            told = answers.get(f"How many {colour} shapes are there?")
            assert told in (None, str([colour_of(scene.picture, part) for part in found].count(colour)))


def test_the_larger_shape_is_on_the_side_that_the_answer_says() -> None:
    for scene, answers in seen("larger side", 40):
        left, right = sorted(parts(scene.picture), key=lambda part: np.nonzero(part)[1].mean())
        larger = "left" if np.ptp(np.nonzero(left)[0]) > np.ptp(np.nonzero(right)[0]) else "right"
        assert answers["Which side is larger?"] == larger != answers["Which side is smaller?"]
        assert answers["What colour is the left shape?"] == colour_of(scene.picture, left)
        assert answers["What colour is the right shape?"] == colour_of(scene.picture, right)


def test_a_shape_is_in_the_corner_that_the_answer_says() -> None:
    for scene, answers in seen("corner", 40):
        (part,) = parts(scene.picture)
        row, column = (axis.mean() for axis in np.nonzero(part))
        corner = f"{'bottom' if row > 24 else 'top'} {'right' if column > 24 else 'left'}"
        assert answers["In which corner is the shape?"] == corner
        assert answers["What colour is the shape?"] == colour_of(scene.picture, part)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.few(2)
def test_unseen_questions_are_the_same_each_time_and_not_trained(task: str) -> None:
    asked = unseen_questions(task, 5)
    assert [question for _, question in asked] == [question for _, question in unseen_questions(task, 5)]
    assert all(Scene(picture, [question]).unseen for picture, question in asked)
    assert not any(scene.unseen for scene in islice(training_scenes(Random(3)), 50))
