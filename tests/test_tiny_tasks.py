"""The problems of the demo's model: right answers, and problems that training never sees."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from tiny_tasks import LETTERS, TASKS, Problem, evaluate, held_out, training_problems, unseen_problems


def following(words: list[str]) -> list[str]:
    return [LETTERS[(LETTERS.index(word) + 1) % 26] for word in words]


def compared(a: int, b: int) -> str:
    return "less" if a - b < 0 else "greater" if a - b > 0 else "equal"


# Each task again, from the words of its question: another way than the one that made the answer, where there is one.
RULES = {
    "sum": lambda words: [str(int(words[0]) + int(words[1]))],
    "subtract": lambda words: [str(int(words[0]) - int(words[1]))],
    "max": lambda words: sorted(words, key=int)[-1:],
    "compare": lambda words: [compared(*map(int, words))],
    "sort": sorted,
    "count": lambda words: [str(sum(word == words[-1] for word in words[:-2]))],
    "parity": lambda words: [("even", "odd")[sum(map(int, words)) % 2]],
    "evens": lambda words: [word for word in words if word in "02468"] or ["none"],
    "reverse": lambda words: words[::-1],
    "copy": lambda words: words,
    "next": following,
    "member": lambda words: ["yes" if words[-1] in words[:-2] else "no"],
    "spell": lambda words: list(words[0]),
    "join": lambda words: ["".join(words)],
}


def right_answer(problem: Problem) -> str:
    task, *words, sign = problem.prompt.split()
    assert (task, sign) == (problem.task, "=")
    return " " + " ".join(RULES[task](words))


def test_answers_are_right():
    problems = list(itertools.islice(training_problems(Random(3)), 3000))
    assert {problem.task for problem in problems} == set(TASKS)
    assert [problem.answer for problem in problems] == [right_answer(problem) for problem in problems]


@pytest.mark.parametrize("task", TASKS)
def test_training_never_shows_what_is_asked_later(task):
    unseen = unseen_problems(task, 100)
    assert all(held_out(problem) and problem.task == task for problem in unseen)
    assert len({problem.prompt for problem in unseen}) == len(unseen) > 80
    assert unseen == unseen_problems(task, 100)


def test_training_shows_nothing_that_is_held_out():
    assert not any(held_out(problem) for problem in itertools.islice(training_problems(Random(4)), 3000))


def test_accuracy_counts_what_was_answered_right():
    asked: list[str] = []

    def answer(prompt: str) -> str:
        """Right, except for sums and every second parity."""
        asked.append(prompt)
        task, *words, _ = prompt.split()
        right = " ".join(RULES[task](words))
        return f"{right}0" if task == "sum" or (task == "parity" and len(asked) % 2) else right

    scores = {score.task: score for score in evaluate(answer, 20)}
    assert len(asked) == 20 * len(TASKS)
    assert {task: score.accuracy for task, score in scores.items()} == dict.fromkeys(TASKS, 1) | {
        "sum": 0,
        "parity": 0.5,
    }
    problem, given = scores["sum"].wrong[0]
    assert given == problem.answer.strip() + "0"
