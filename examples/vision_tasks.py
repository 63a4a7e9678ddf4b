"""Small pictures, and questions about them with right and wrong answers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

SIDE = 48
COLOURS = {
    "red": (215, 40, 45),
    "green": (45, 165, 65),
    "blue": (50, 85, 220),
    "yellow": (235, 210, 45),
    "purple": (145, 60, 180),
    "orange": (240, 135, 30),
}
DIGITS = {  # seven rows of five dots
    "0": "01110100011001110101110011000101110",
    "1": "00100011000010000100001000010001110",
    "2": "01110100010000100010001000100011111",
    "3": "11111000100010000010000011000101110",
    "4": "00010001100101010010111110001000010",
    "5": "11111100001111000001000011000101110",
    "6": "00110010001000011110100011000101110",
    "7": "11111000010001000100010000100001000",
    "8": "01110100011000101110100011000101110",
    "9": "01110100011000101111000010001001100",
}
HELD_BACK = 10  # one picture in so many is never trained on


@dataclass(frozen=True)
class Question:
    """The right answer to `text` about a picture of `task`."""

    task: str
    text: str
    answer: str


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture (height, width, 3) of uint8, with all that is asked about it."""

    picture: np.ndarray
    questions: list[Question]

    @property
    def unseen(self) -> bool:
        """Whether training leaves the picture out."""
        return zlib.crc32(self.picture.tobytes()) % HELD_BACK == 0


def scenes(rng: Random) -> Iterator[Scene]:
    """Scenes of all kinds, without end."""
    kinds = [_shapes, _shapes, _number, _number, _sides, _place]
    while True:
        yield rng.choice(kinds)(rng)


def training_scenes(rng: Random) -> Iterator[Scene]:
    return (scene for scene in scenes(rng) if not scene.unseen)


def unseen_questions(task: str, count: int) -> list[tuple[np.ndarray, Question]]:
    """Questions of one task about pictures that training never shows, no two about one picture."""
    found: list[tuple[np.ndarray, Question]] = []
    rng = Random(f"unseen {task}")
    for scene in scenes(rng):
        asked = [question for question in scene.questions if question.task == task]
        if asked and scene.unseen:
            found.append((scene.picture, rng.choice(asked)))
        if len(found) == count:
            break
    return found


class Canvas:
    """A picture that is being drawn: a plain, slightly noisy ground."""

    def __init__(self, rng: Random) -> None:
        ground = rng.choice([(250, 250, 250), (225, 222, 210), (120, 120, 125), (15, 15, 20)])
        noise = np.random.default_rng(rng.getrandbits(32))
        self.noise = noise.integers(-6, 7, (SIDE, SIDE, 3))
        self.pixels = np.empty((SIDE, SIDE, 3), np.int64)
        self.pixels[:] = ground
        self.rows, self.columns = np.mgrid[:SIDE, :SIDE]

    def fill(self, where: np.ndarray, colour: str, rng: Random) -> None:
        self.pixels[where] = [each + rng.randint(-12, 12) for each in COLOURS[colour]]

    def disc(self, row: int, column: int, radius: int) -> np.ndarray:
        return (self.rows - row) ** 2 + (self.columns - column) ** 2 <= radius**2 + radius // 2

    def square(self, row: int, column: int, radius: int) -> np.ndarray:
        half = radius * 0.9
        return (abs(self.rows - row) <= half) & (abs(self.columns - column) <= half)

    def scene(self, questions: list[Question]) -> Scene:
        return Scene(np.clip(self.pixels + self.noise, 0, 255).astype(np.uint8), questions)


def _shapes(rng: Random) -> Scene:
    """One to six circles and squares, each in a cell of its own."""
    canvas = Canvas(rng)
    cells = rng.sample([(row, column) for row in (8, 24, 40) for column in (8, 24, 40)], rng.randint(1, 6))
    placed = [
        (row + rng.randint(-1, 1), column + rng.randint(-1, 1), rng.randint(5, 6)) for row, column in cells
    ]
    few = rng.sample(list(COLOURS), rng.randint(1, 3))
    colours = []
    for row, column, radius in placed:
        colours.append(rng.choice(few))
        canvas.fill(rng.choice([canvas.disc, canvas.square])(row, column, radius), colours[-1], rng)
    asked = rng.choice([*few, rng.choice(list(COLOURS))])
    return canvas.scene(
        [
            Question("shapes", "How many shapes are there?", str(len(placed))),
            Question("of a colour", f"How many {asked} shapes are there?", str(colours.count(asked))),
        ]
    )


def _number(rng: Random) -> Scene:
    """A number of one or two digits; one digit stands at the right."""
    canvas = Canvas(rng)
    number, colour = str(rng.randrange(10 ** rng.randint(1, 2))), rng.choice(list(COLOURS))
    scale = 4
    dots = np.concatenate(
        [np.pad(np.array([*DIGITS[digit]]).reshape(7, 5) == "1", ((0, 0), (0, 1))) for digit in number],
        axis=1,
    )[:, :-1]
    ink = dots.repeat(scale, 0).repeat(scale, 1)
    top, left = rng.randint(9, 11), rng.randint(45, 47) - ink.shape[1]
    where = np.zeros((SIDE, SIDE), bool)
    where[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    canvas.fill(where, colour, rng)
    return canvas.scene(
        [
            Question("number", "What number is written?", number),
            Question("number", "What number is written?", number),
            Question("colour", "What colour is the number?", colour),
        ]
    )


def _sides(rng: Random) -> Scene:
    """One shape on each side, of different sizes."""
    canvas = Canvas(rng)
    small = rng.randint(3, 8)
    radii = [small, rng.randint(small + 2, 11)]
    rng.shuffle(radii)
    colours = rng.sample(list(COLOURS), 2)
    for radius, colour, start in zip(radii, colours, (0, SIDE // 2), strict=True):
        row, column = rng.randint(18, 30), start + SIDE // 4
        canvas.fill(rng.choice([canvas.disc, canvas.square])(row, column, radius), colour, rng)
    sides = ["left", "right"] if radii[0] > radii[1] else ["right", "left"]
    return canvas.scene(
        [
            Question("larger side", "Which side is larger?", sides[0]),
            Question("larger side", "Which side is smaller?", sides[1]),
            Question("colour", "What colour is the left shape?", colours[0]),
            Question("colour", "What colour is the right shape?", colours[1]),
        ]
    )


def _place(rng: Random) -> Scene:
    """One shape in a corner."""
    canvas = Canvas(rng)
    colour, radius = rng.choice(list(COLOURS)), rng.randint(6, 9)
    down, across = rng.random() < 0.5, rng.random() < 0.5
    row, column = (rng.randint(11, 13) + SIDE // 2 * far for far in (down, across))
    canvas.fill(rng.choice([canvas.disc, canvas.square])(row, column, radius), colour, rng)
    corner = f"{'bottom' if down else 'top'} {'right' if across else 'left'}"
    return canvas.scene(
        [
            Question("corner", "In which corner is the shape?", corner),
            Question("colour", "What colour is the shape?", colour),
        ]
    )


TASKS = ["shapes", "of a colour", "number", "colour", "larger side", "corner"]
