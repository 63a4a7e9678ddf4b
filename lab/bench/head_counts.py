"""Tokens of a step where a model's own head guesses, or the text itself: on unseen problems of the tasks of examples.

    python lab/bench/train_head.py tiny-head.gguf
    python lab/bench/head_counts.py tiny-head.gguf

These are counts, as if steps of all sizes took equally long. The first token of an answer comes of its prompt's step,
and does not count.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from backbay_engine import load

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "examples"), str(ROOT / "apps/engine/tests")]

from runner_scripts import let_guesses_pay  # noqa: E402
from tiny_tasks import TASKS, unseen_problems  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--count", type=int, default=25, help="problems of each task")
    options = parser.parse_args()
    let_guesses_pay(pytest.MonkeyPatch())
    for source in ("mtp", "ngram"):
        tokens = right = 0
        with load(options.path, options.backend, speculate=source) as llm:
            for problem in (each for task in TASKS for each in unseen_problems(task, options.count)):
                found = llm.generate(problem.prompt, temperature=0, max_tokens=64).timings
                tokens, right = tokens + found.tokens - 1, right + found.accepted_tokens
        steps = tokens - right
        print(f"{source}: {tokens} tokens in {steps} steps, {tokens / steps:.2f} a step", flush=True)


if __name__ == "__main__":
    main()
