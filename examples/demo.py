"""The same models on every installed backend: a small Llama, one that sees, a Whisper that hears, and MiniLM."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from minilm_to_gguf import minilm
from tiny_whisper.speech import RATE, SAID, read_wav
from vision_tasks import Question, unseen_questions

import backbay
from backbay import BackbayError, UnsupportedOpError
from backbay_engine import LLM, Audio, load

REFERENCE = "cpu_ref"
MODELS = Path(__file__).parent / "models"
SMALL, SEEING = MODELS / "backbay-tiny-f16.gguf", MODELS / "backbay-tiny-vision-f16.gguf"
PROJECTOR = MODELS / "mmproj-backbay-tiny-vision-f16.gguf"
HEARING, SOUND = MODELS / "backbay-tiny-whisper", MODELS / "spoken.wav"
PROMPTS = ["sum 417 268 =", "sort 5 2 9 1 =", "reverse p l a n e t =", "max 81 730 95 ="]
SEEN = ["number", "colour", "larger side", "corner"]
QUESTION = "How do I get my money back?"
SENTENCES = [
    "Refunds are paid within ten days.",
    "Our office is closed on Sundays.",
    "The cat sleeps on the warm roof.",
    "You can return what you bought and be paid for it.",
]
ALIKE = 0.9999  # the cosine of one backend's vector and the reference's


@dataclass
class Row:
    """The results of one backend for a model."""

    backend: str
    model: str
    load_ms: float = 0.0
    rate: float = 0.0
    unit: str = ""
    answer: list[str] = field(default_factory=list)
    agrees: bool = False
    cannot: bool = False  # the backend lacks an op of the model, and says so
    problem: str = ""
    vectors: np.ndarray | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "vectors"}


def solve(llm: LLM, row: Row) -> None:
    """The answers to all prompts, in shared steps; and the speed of single ones."""
    handles = [llm.submit(prompt, max_tokens=24, temperature=0) for prompt in PROMPTS]
    row.answer = [handle.result().text.strip() for handle in handles]
    started = time.perf_counter()
    tokens = sum(len(llm.generate(prompt, max_tokens=24, temperature=0).tokens) for prompt in PROMPTS)
    row.rate, row.unit = tokens / (time.perf_counter() - started), "tokens/s"


def look(shown: list[tuple[np.ndarray, Question]], llm: LLM, row: Row) -> None:
    """The answers to a question about each picture; and the speed, with each picture encoded once."""
    started = time.perf_counter()
    for picture, question in shown:
        content = [{"type": "image", "image": picture}, {"type": "text", "text": question.text}]
        answer = llm.chat([{"role": "user", "content": content}], max_tokens=8, temperature=0)
        row.answer.append(answer.text.strip())
    row.rate, row.unit = len(shown) / (time.perf_counter() - started), "answers/s"


def hear(llm: LLM, row: Row) -> None:
    """The text of each phrase in a sound; and the speed, with each window encoded once."""
    sound = read_wav(SOUND)
    started = time.perf_counter()
    transcript = llm.transcribe(Audio(sound, rate=RATE), temperature=0)
    row.rate, row.unit = transcript.duration / (time.perf_counter() - started), "s/s"
    row.answer = [segment.text.strip() for segment in transcript]


def drawing(picture: np.ndarray) -> list[str]:
    """A picture as lines of a terminal with 24-bit colours: two pixels in each character."""
    small = picture[::2, ::2]
    return [
        "".join(
            "\x1b[38;2;{};{};{};48;2;{};{};{}m▀".format(*upper, *lower)
            for upper, lower in zip(above.tolist(), below.tolist(), strict=True)
        )
        + "\x1b[0m"
        for above, below in zip(small[::2], small[1::2], strict=True)
    ]


def show_pictures(pictures: list[np.ndarray]) -> None:
    """All pictures side by side, if standard output is a terminal."""
    if sys.stdout.isatty():
        print()
        for lines in zip(*map(drawing, pictures), strict=True):
            print("  " + "  ".join(lines))


def rank(llm: LLM, row: Row) -> None:
    """The similarity of each sentence to the question."""
    llm.embed([QUESTION, *SENTENCES])
    started = time.perf_counter()
    row.vectors = llm.embed([QUESTION, *SENTENCES])
    row.rate, row.unit = len(row.vectors) / (time.perf_counter() - started), "texts/s"
    row.answer = [f"{likeness:.4f}" for likeness in row.vectors[1:] @ row.vectors[0]]


def run(
    backend: str, path: Path, job: Callable[[LLM, Row], None], context: int | None = 128, **options: Path
) -> Row:
    row = Row(backend, path.name)
    try:
        started = time.perf_counter()
        with load(path, backend=backend, context=context, parallel=len(PROMPTS), **options) as llm:
            row.load_ms = (time.perf_counter() - started) * 1e3
            job(llm, row)
    except BackbayError as error:
        row.problem = str(error).splitlines()[0]
        row.cannot = isinstance(error, UnsupportedOpError)
    return row


def agree(row: Row, reference: Row) -> bool:
    """Texts must be equal; vectors must have the same direction."""
    if row.problem or reference.problem:
        return False
    if row.vectors is None or reference.vectors is None:
        return row.answer == reference.answer
    return bool(((row.vectors * reference.vectors).sum(axis=1) > ALIKE).all())


def collect(
    names: list[str], path: Path, job: Callable[[LLM, Row], None], context: int | None = 128, **options: Path
) -> list[Row]:
    rows = [run(name, path, job, context, **options) for name in names]
    for row in rows:
        row.agrees = agree(row, rows[0])
    return rows


def show(title: str, asked: list[str], rows: list[Row]) -> None:
    """Each prompt with the backends' answers; then the times."""
    print(f"\n{title}\n")
    answered = [row for row in rows if not row.problem]
    wide = max(map(len, asked), default=0) + 2
    column = max((len(answer) + 2 for row in answered for answer in row.answer), default=0)
    column = max(column, 16)
    print(f"  {'':<{wide}}" + "".join(f"{row.backend:<{column}}" for row in answered))
    for n, question in enumerate(asked):
        print(
            f"  {question:<{wide}}"
            + "".join(f"{''.join(row.answer[n : n + 1]):<{column}}" for row in answered)
        )
    print(f"\n  {'backend':<10} {'opened in':>12} {'speed':>18}")
    for row in rows:
        told = row.problem or ("agrees" if row.agrees else f"differs from {rows[0].backend}")
        print(f"  {row.backend:<10} {row.load_ms:>9.0f} ms {row.rate:>9.1f} {row.unit:<8}  {told}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print data instead of tables")
    options = parser.parse_args()
    names = sorted(backbay.backends(), key=lambda name: name != REFERENCE)
    if not options.json:
        print(f"{len(names)} backends: {', '.join(names)}")
    rows = collect(names, SMALL, solve)
    if not options.json:
        show(f"{SMALL.name} solves problems", PROMPTS, rows)
    shown = [unseen_questions(task, 1)[0] for task in SEEN]
    seen = collect(names, SEEING, partial(look, shown), projector=PROJECTOR)
    rows += seen
    if not options.json:
        show_pictures([picture for picture, _ in shown])
        show(
            f"{SEEING.name} looks at pictures, from left to right",
            [question.text for _, question in shown],
            seen,
        )
    heard = collect(names, HEARING, hear, context=None)
    rows += heard
    if not options.json:
        show(f"{HEARING.name} hears {SOUND.name}, in which is said", list(SAID), heard)
    try:
        embedding = minilm()
    except FileNotFoundError as error:
        print(f"\nno embeddings: {error}", file=sys.stderr)
    else:
        ranked = collect(names, embedding, rank)
        rows += ranked
        if not options.json:
            show(f"{embedding.name} ranks sentences by: {QUESTION}", SENTENCES, ranked)
    if options.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        print(f"\n{sum(row.agrees for row in rows)} of {len(rows)} runs agree with {REFERENCE}")
    return int(not all(row.agrees or row.cannot for row in rows))


if __name__ == "__main__":
    sys.exit(main())
