"""Models as a provider gets them, in a folder, with the inputs of their first run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from backbay import OptionError
from backbay.internals import Array

LONGEST = 100  # characters of the ops in a name


def save_model(folder: str, model: bytes) -> Path:
    """Write a model as N-OPS.onnx, where N counts the models of the folder, and return the file's path."""
    made = [node.op_type for node in ModelProto.FromString(model).graph.node if node.op_type != "Identity"]
    ops = "-".join(dict.fromkeys(made or ["Identity"]))[:LONGEST]
    with _option_errors(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        number = 1 + len([*Path(folder).glob("*.onnx")])
        while not _write_new(path := Path(folder, f"{number}-{ops}.onnx"), model):
            number += 1
    return path


def save_inputs(model: Path, inputs: Mapping[str, Array]) -> None:
    """Write the inputs of a run beside its model, as N-OPS.npz."""
    named: dict[str, Any] = dict(inputs)
    with _option_errors(model.parent):
        np.savez(model.with_suffix(".npz"), **named)


def _write_new(path: Path, data: bytes) -> bool:
    """Write a file; False if another worker has just written it."""
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


@contextmanager
def _option_errors(folder: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OptionError(f"option save: {folder}: {error.strerror}") from error
