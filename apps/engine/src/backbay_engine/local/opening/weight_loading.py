"""Loads the weights of a model, of its encoder and of its draft as one work with one progress."""

from __future__ import annotations

from collections.abc import Sequence

from backbay import Backend
from backbay.gguf import ModelFile
from backbay.plugin import Cancel, Progress


def load_weights(backends: Sequence[Backend], progress: Progress | None, cancel: Cancel | None) -> None:
    """Load the weights of each backend; progress counts the bytes of all."""
    weights = [_nbytes(backend.model) for backend in backends]
    ends = [sum(weights[: n + 1]) / max(sum(weights), 1) for n in range(len(weights))]
    for backend, begin, end in zip(backends, [0.0, *ends], ends, strict=False):
        backend.load(_part_of(progress, begin, end), cancel)


def _nbytes(model: ModelFile | None) -> int:
    assert model is not None
    return sum(tensor.nbytes for tensor in model.tensors.values())


def _part_of(progress: Progress | None, begin: float, end: float) -> Progress | None:
    """The progress of a part of the work, as that of the whole."""
    if progress is None or not callable(progress):  # the backend refuses what is no function
        return progress
    return lambda done: progress(begin + done * (end - begin))
