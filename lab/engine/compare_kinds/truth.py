"""The results of transformers, and of llama.cpp: every sequence of a script in one pass, without a cache."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from kind import Kind
from model_scripts import SEQUENCES, TEXTS, Action, Copy, Run
from numpy.typing import NDArray

Model: TypeAlias = Callable[[Sequence[int]], NDArray[np.float32]]
"""From tokens to their logits; for a model of vectors, from a text to its vectors."""


def truth(model: Model, script: Sequence[Action]) -> NDArray[np.float32]:
    """The logits of a script's tokens, in the order of its steps."""
    held: list[list[int]] = [[] for _ in range(SEQUENCES)]
    asked: list[
        tuple[int, list[int]]
    ] = []  # the positions that a step asks for, and the sequence up to its end
    for action in script:
        match action:
            case Copy(source, target, length):
                held[target] = held[source][:length]
            case Run(parts):
                for sequence, given in parts:
                    held[sequence] = [*held[sequence], *given]
                    asked.append((len(given), held[sequence]))
            case _:
                raise ValueError(f"transformers cannot run {action} without a cache")
    whole = {tuple(tokens): None for _, tokens in asked}
    for known in sorted(whole, key=len, reverse=True):
        longer = next(
            (each for each in whole if len(each) > len(known) and each[: len(known)] == known), None
        )
        whole[known] = whole[longer][: len(known)] if longer else model(known)
    return np.concatenate([whole[tuple(tokens)][-count:] for count, tokens in asked])


def of_texts(model: Model) -> NDArray[np.float32]:
    """The vectors of all texts."""
    return np.concatenate([model(text) for text in TEXTS])


def in_torch(kind: Kind) -> Model:
    """The model of transformers. A text has one vector, by the kind's pooling; for "none" one of each token."""

    @torch.no_grad()
    def run(tokens: Sequence[int]) -> NDArray[np.float32]:
        ids = torch.tensor([list(tokens)])
        if kind.logits is not None:
            return kind.logits(kind.torch, ids).numpy()
        if kind.pooling is None:
            return kind.torch(ids, use_cache=False).logits[0].numpy()
        hidden = kind.torch(ids).last_hidden_state[0]
        pooled = {"mean": lambda h: h.mean(0), "first": lambda h: h[0], "last": lambda h: h[-1]}
        return (pooled[kind.pooling](hidden)[None] if kind.pooling != "none" else hidden).numpy()

    return run


@contextmanager
def in_llama_cpp(kind: Kind, path: Path) -> Iterator[Model]:
    """llama.cpp with the kind's file, in a process of its own."""
    command = [
        sys.executable, str(Path(__file__).with_name("llama_side.py")), str(path), kind.pooling or "logits", json.dumps(TEXTS[0]),
    ]  # fmt: skip
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:

        def run(tokens: Sequence[int]) -> NDArray[np.float32]:
            process.stdin.write(json.dumps(tokens) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(process.stderr.read().strip() or f"it ended with {process.wait()}")
            return np.array(json.loads(line), np.float32)

        yield run
