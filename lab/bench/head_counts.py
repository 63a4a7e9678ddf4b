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
from typing import Any

from backbay_engine import load
from backbay_engine.runner.speculation import ModelSource, StepTimes

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from tiny_tasks import TASKS, unseen_problems


def pays_always() -> None:
    """Let guesses always pay."""
    kinds: Any = (StepTimes, ModelSource)
    times, source = kinds
    times.known = lambda self, tokens: 1.0
    times.seconds = lambda self, tokens, base: 1.0
    source.seconds = lambda self, counts: 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--count", type=int, default=25, help="problems of each task")
    options = parser.parse_args()
    pays_always()
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
