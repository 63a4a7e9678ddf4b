"""The results of transformers: every sequence of a script in one pass, without a cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from kind import Kind
from model_scripts import SEQUENCES, Action, Copy, Run
from numpy.typing import NDArray


@torch.no_grad()
def truth(kind: Kind, script: Sequence[Action]) -> NDArray[np.float32]:
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
        whole[known] = whole[longer][: len(known)] if longer else _logits(kind, known)
    return np.concatenate([whole[tuple(tokens)][-count:] for count, tokens in asked])


def _logits(kind: Kind, tokens: Sequence[int]) -> NDArray[np.float32]:
    ids = torch.tensor([list(tokens)])
    if kind.logits is not None:
        return kind.logits(kind.torch, ids).numpy()
    return kind.torch(ids, use_cache=False).logits[0].numpy()


@torch.no_grad()
def embeddings(kind: Kind, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """A vector for each text, by the kind's pooling; for "none" one of each token."""
    found = []
    for text in texts:
        ids = torch.tensor([list(text)])
        if kind.logits is not None:
            found.append(kind.logits(kind.torch, ids))
            continue
        hidden = kind.torch(ids).last_hidden_state[0]
        pooled = {"mean": lambda h: h.mean(0), "first": lambda h: h[0], "last": lambda h: h[-1]}
        found.append(pooled[kind.pooling](hidden)[None] if kind.pooling != "none" else hidden)
    return torch.cat(found).numpy()
