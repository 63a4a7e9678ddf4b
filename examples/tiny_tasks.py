"""Problems with right and wrong answers, one line of text each, and a table of a model's right answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALPHABETS = ("abc", "klmno", "tuvwxyz")  # few letters, so that some come up again
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Problem:
    """The right continuation of `sort 5 2 9 =` is ` 2 5 9`."""

    task: str
    prompt: str
    answer: str


def _number(rng: Random) -> int:
    """One to three digits, each length equally often."""
    return rng.randrange(10 ** rng.randint(1, 3))


def _letters(rng: Random, most: int = 8, alphabet: str = LETTERS) -> list[str]:
    return rng.choices(alphabet, k=rng.randint(2, most))


def _digits(rng: Random) -> list[str]:
    return rng.choices("0123456789", k=rng.randint(2, 8))


def _word(rng: Random) -> str:
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 4)))


def _sum(rng: Random) -> tuple[str, str]:
    a, b = _number(rng), _number(rng)
    return f"{a} {b}", str(a + b)


def _subtract(rng: Random) -> tuple[str, str]:
    small, large = sorted((_number(rng), _number(rng)))
    return f"{large} {small}", str(large - small)


def _max(rng: Random) -> tuple[str, str]:
    numbers = [_number(rng) for _ in range(rng.randint(2, 4))]
    return " ".join(map(str, numbers)), str(max(numbers))


def _compare(rng: Random) -> tuple[str, str]:
    a, b = _number(rng), _number(rng)
    if rng.random() < 0.2:
        b = a
    return f"{a} {b}", "equal" if a == b else "less" if a < b else "greater"


def _sort(rng: Random) -> tuple[str, str]:
    digits = _digits(rng)
    return " ".join(digits), " ".join(sorted(digits))


def _count(rng: Random) -> tuple[str, str]:
    letters = _letters(rng, alphabet=rng.choice(ALPHABETS))
    wanted = rng.choice(letters)
    return f"{' '.join(letters)} for {wanted}", str(letters.count(wanted))


def _parity(rng: Random) -> tuple[str, str]:
    bits = rng.choices("01", k=rng.randint(2, 9))
    return " ".join(bits), "odd" if bits.count("1") % 2 else "even"


def _evens(rng: Random) -> tuple[str, str]:
    digits = _digits(rng)
    return " ".join(digits), " ".join(digit for digit in digits if int(digit) % 2 == 0) or "none"


def _reverse(rng: Random) -> tuple[str, str]:
    letters = _letters(rng)
    return " ".join(letters), " ".join(reversed(letters))


def _copy(rng: Random) -> tuple[str, str]:
    text = " ".join(_letters(rng, 10))
    return text, text


def _next(rng: Random) -> tuple[str, str]:
    letters = _letters(rng)
    return " ".join(letters), " ".join(LETTERS[(LETTERS.index(letter) + 1) % 26] for letter in letters)


def _member(rng: Random) -> tuple[str, str]:
    alphabet = rng.choice((*ALPHABETS, LETTERS))
    letters = _letters(rng, alphabet=alphabet)
    absent = [letter for letter in alphabet if letter not in letters]
    yes = not absent or rng.random() < 0.5
    return f"{' '.join(letters)} has {rng.choice(letters if yes else absent)}", "yes" if yes else "no"


def _spell(rng: Random) -> tuple[str, str]:
    word = _word(rng)
    return word, " ".join(word)


def _join(rng: Random) -> tuple[str, str]:
    word = _word(rng)
    return " ".join(word), word


# In training a task comes up as often as its weight says: these take longest to learn that weigh most.
TASKS: dict[str, tuple[int, Callable[[Random], tuple[str, str]]]] = {
    "sum": (6, _sum),
    "subtract": (6, _subtract),
    "max": (2, _max),
    "compare": (1, _compare),
    "sort": (2, _sort),
    "count": (5, _count),
    "parity": (5, _parity),
    "evens": (2, _evens),
    "reverse": (2, _reverse),
    "copy": (1, _copy),
    "next": (1, _next),
    "member": (5, _member),
    "spell": (1, _spell),
    "join": (2, _join),
}


def make(task: str, rng: Random) -> Problem:
    question, answer = TASKS[task][1](rng)
    return Problem(task, f"{task} {question} =", f" {answer}")


def held_out(problem: Problem) -> bool:
    """Whether training never shows this problem: one in ten, by the hash of its text."""
    return zlib.crc32(problem.prompt.encode()) % 10 == 0


def training_problems(rng: Random) -> Iterator[Problem]:
    names, weights = list(TASKS), [weight for weight, _ in TASKS.values()]
    while True:
        problem = make(rng.choices(names, weights)[0], rng)
        if not held_out(problem):
            yield problem


def unseen_problems(task: str, count: int, seed: int = 0) -> list[Problem]:
    """Different problems of a task that training never shows."""

    def unseen() -> Iterator[Problem]:
        rng = Random(f"unseen {task} {seed}")
        while True:
            problem = make(task, rng)
            if held_out(problem):
                yield problem

    found: dict[str, Problem] = {}
    for problem in islice(unseen(), 50 * count):
        found.setdefault(problem.prompt, problem)
        if len(found) == count:
            break
    return list(found.values())


@dataclass(frozen=True)
class Score:
    task: str
    right: int
    total: int
    wrong: Sequence[tuple[Problem, str]]  # and what was answered

    @property
    def accuracy(self) -> float:
        return self.right / self.total


def evaluate(answer: Callable[[str], str], count: int = 100, seed: int = 0) -> list[Score]:
    """Asks `answer` for the continuation of unseen prompts of each task."""
    scores = []
    for task in TASKS:
        problems = unseen_problems(task, count, seed)
        answers = [(problem, answer(problem.prompt)) for problem in problems]
        wrong = [(problem, given) for problem, given in answers if given.strip() != problem.answer.strip()]
        scores.append(Score(task, len(problems) - len(wrong), len(problems), wrong))
    return scores
