"""Guessed tokens with none: tokens per second of the same model, in turns, where texts repeat their prompt and where not.

    python lab/bench/engine_speculation.py --sides ggml onnx

A model of random weights writes no such texts, so that each answer is forced, token by token: to an edited file, to a
summary with quotes, or to a text that has nothing of its prompt. What is guessed, what is accepted, and what a step
costs are as if the model had chosen the text. Tokens are words and signs; `columns` is the time of a step of some tokens
of one answer, of the time of a step of one.
"""

from __future__ import annotations

import argparse
import re
import statistics
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llama_file import arguments, be_side_or_compare
from sides import Side, library_of, serve

CONTEXT, PROMPT = 2048, 700
COLUMNS = (2, 4, 8, 16)
GIVEN = ("model", "shape", "dtype", "threads", "tokens", "parallel")  # to each side
PIECES = re.compile(r" ?[A-Za-z]{1,7}|\d{1,3}|\n+ *| +|[^\w\s]|_")
ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--parallel", type=int, default=1, help="answers at once")
    parser.add_argument("--sides", nargs="+", default=["ggml"], help="names of backends")
    args = parser.parse_args()
    be_side_or_compare(args, be_side, compare)


# -- texts -------------------------------------------------------------------------------------------------


def texts() -> dict[str, tuple[list[str], list[str]]]:
    """Prompts and answers, in pieces."""
    code = PIECES.findall(Path(textwrap.__file__).read_text().split("class TextWrapper", 1)[1])[:PROMPT]
    prose = PIECES.findall((ROOT / "docs" / "engine.md").read_text())
    return {
        "edited file": (code, PIECES.findall(edited("".join(code)))),
        "summary with quotes": (prose[:PROMPT], PIECES.findall(quoting("".join(prose[:PROMPT])))),
        "other text": (code, prose),
    }


def edited(code: str) -> str:
    """A file with other names, and a comment in some places."""
    renamed = re.sub(r"\bwidth\b", "columns", re.sub(r"\bself\b", "this", code))
    lines = renamed.splitlines()
    return "\n".join(f"{line}  # {n} checked" if n % 12 == 5 else line for n, line in enumerate(lines))


def quoting(prose: str) -> str:
    """Each third sentence of a text, with words of one's own between."""
    own = ("First of all it says:", "Somewhat later we find", "A reader should not miss", "And it ends so:")
    sentences = [each.strip() for each in re.split(r"(?<=\.)\s", prose) if len(each) > 40]
    return " ".join(f'{own[n % 4]} "{sentence}"' for n, sentence in enumerate(sentences[::2]))


class Forced:
    """A constraint that allows one text."""

    def __init__(self, ids: list[int], size: int) -> None:
        self._left, self._size = list(reversed(ids)), size

    def mask(self) -> bytes:
        bits = np.zeros(-(-self._size // 8), np.uint8)
        id = self._left[-1]
        bits[id // 8] = 1 << id % 8
        return bits.tobytes()

    def accept(self, token: int) -> None:
        self._left.pop()


# -- the sides ---------------------------------------------------------------------------------------------


def be_side(args: argparse.Namespace) -> None:
    import backbay_engine

    name = args.side.partition("@")[0]
    llm = backbay_engine.load(args.model, name, context=CONTEXT, num_threads=args.threads, speculate="ngram")
    known: dict[str, int] = {}
    ids = {
        title: [[known.setdefault(piece, 300 + len(known)) for piece in part] for part in parts]
        for title, parts in texts().items()
    }

    def answer(request: str) -> dict[str, Any]:
        if request == "columns":
            return columns(llm)
        title, _, guessed = request.partition("|")
        prompt, text = ids[title]
        handles = [
            llm.submit(
                [299 - number, *prompt],  # no two share a cache
                max_tokens=min(args.tokens, len(text)),
                temperature=0,
                constraint=Forced(text, llm.vocabulary_size),
                speculate=bool(guessed),
            )
            for number in range(args.parallel)
        ]
        timings = [handle.result().timings for handle in handles]
        return {
            "rate": sum(each.tokens - 1 for each in timings) / max(each.generation for each in timings),
            "guessed": sum(each.guessed_tokens for each in timings),
            "right": sum(each.accepted_tokens for each in timings),
        }

    serve({"vocabulary": llm.vocabulary_size}, answer)


def columns(llm: Any) -> dict[str, Any]:
    """The median seconds of steps of some tokens, the prompt in the cache."""
    from backbay_engine.plugin import Step

    llm.forget()
    cache, run = llm.cache, llm.step_cache.run
    whole = np.arange(PROMPT, dtype=np.int32)
    for at in range(0, PROMPT, llm.batch):
        part = whole[at : at + llm.batch]
        run(Step(part + 300, part, np.zeros_like(part), np.array([len(part) - 1], np.int32)))

    def timed(count: int) -> float:
        places = np.arange(PROMPT, PROMPT + count, dtype=np.int32)
        step = Step(places, places, np.zeros(count, np.int32), np.arange(count, dtype=np.int32))
        begun = time.perf_counter()
        run(step)
        seconds = time.perf_counter() - begun
        cache.remove(0, PROMPT)
        return seconds

    found: dict[int, list[float]] = {count: [] for count in (1, *COLUMNS)}
    for _ in range(8):
        for count, seconds in found.items():
            seconds.append(timed(count))
    cache.remove(0, 0)
    return {str(count): statistics.median(seconds[2:]) for count, seconds in found.items()}


# -- comparing ---------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"dtype": args.dtype, "shape": args.shape, "threads": args.threads}
    results["parallel"] = args.parallel
    given = [f"--{key}={getattr(args, key)}" for key in GIVEN]
    for name in args.sides:
        side = Side(name, [__file__, f"--side={name}", *given], library_of(name))
        results[name] = {"columns": told_columns(name, side.ask("columns"))}
        for title in texts():
            results[name][title] = measured(side.ask, title, args.rounds)
            print(f"{name}: {title:20} {told(results[name][title])}", flush=True)
        side.close()
    return results


def told_columns(name: str, seconds: dict[str, float]) -> dict[str, float]:
    ratios = {count: each / seconds["1"] for count, each in seconds.items()}
    print(f"{name}: a step of 1 takes {1e3 * seconds['1']:.1f} ms; columns", end="")
    print("".join(f"  {count}: {ratio:.2f}" for count, ratio in ratios.items()), flush=True)
    return ratios


def measured(ask: Callable[[str], dict[str, Any]], title: str, rounds: int) -> dict[str, float]:
    """Both ways in turns; the first round warms up."""
    pairs = [(ask(f"{title}|"), ask(f"{title}|guessed")) for _ in range(rounds + 1)][1:]
    return {
        "alone": statistics.median(plain["rate"] for plain, _ in pairs),
        "guessed": statistics.median(guessed["rate"] for _, guessed in pairs),
        "ratio": statistics.median(guessed["rate"] / plain["rate"] for plain, guessed in pairs),
        "guesses": pairs[-1][1]["guessed"],
        "right": pairs[-1][1]["right"],
    }


def told(found: dict[str, float]) -> str:
    return (
        f"{found['alone']:7.2f} tokens/s without guesses, {found['guessed']:7.2f} with: {found['ratio']:5.2f} "
        f"({found['right']:.0f} of {found['guesses']:.0f} guesses right)"
    )


if __name__ == "__main__":
    main()
