"""A kind of model: a class of transformers with a small configuration, and random weights of few values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY = 64
LEVELS = 3  # weights are whole numbers from -3 to 3 times a step, so that a packed file is small


@dataclass(frozen=True, eq=False)
class Kind:
    """What to build, and how to compare it.

    model       a class of transformers, or a class like these
    pooling     for models of vectors: "mean", "first", "last", or "none" for the vectors of all tokens
    prepare     changes the model before it is saved
    files       further files of the folder, by name
    describe    changes config.json, where the converter wants other entries than transformers writes
    logits      for a model that is called otherwise: (model, tokens) to logits, (tokens, words)
    """

    model: str | type[Any]
    config: dict[str, Any]
    limit: float = 1e-5
    seed: int = 0
    pooling: str | None = None
    prepare: Callable[[Any], None] | None = None
    describe: Callable[[dict[str, Any]], None] | None = None
    logits: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
    files: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def torch(self) -> Any:
        """The model; made once."""
        return _made(self)


def kind(model: str | type[Any], *configs: dict[str, Any], **more: Any) -> Kind:
    """A kind; what is no field of Kind is its configuration."""
    given = {name: value for each in (*configs, more) for name, value in each.items()}
    fields = {name: given.pop(name) for name in [*given] if name in Kind.__dataclass_fields__}
    return Kind(model, given, **fields)


def make(kind: Kind, folder: Path) -> None:
    """Save the model as transformers does."""
    kind.torch.save_pretrained(folder)


@cache
def _made(kind: Kind) -> Any:
    torch.manual_seed(kind.seed)
    made: Callable[..., Any] = (
        getattr(transformers, kind.model) if isinstance(kind.model, str) else kind.model
    )
    config = made.config_class(**{"vocab_size": VOCABULARY, **kind.config})  # type: ignore[attr-defined]
    config._attn_implementation = config._experts_implementation = "eager"
    model = made(config).eval().float()
    with torch.no_grad():
        for name, weight in (*model.named_parameters(), *model.named_buffers()):
            if weight.is_floating_point() and "inv_freq" not in name:
                _fill(name, weight)
        if kind.prepare is not None:
            kind.prepare(model)
    return model


def _fill(name: str, weight: torch.Tensor) -> None:
    """Matrices keep activations near 1; vectors move around the values that transformers starts with."""
    numbers = torch.randint(-LEVELS, LEVELS + 1, weight.shape).float()
    if "embed_scale" in name or weight.dim() == 0:
        return
    if weight.dim() == 1 or "norm" in name:
        weight.add_(numbers * 0.05)
    elif "embed" in name and weight.dim() == 2:
        weight.copy_(numbers / 2)
    else:
        weight.copy_(numbers * (0.75 / weight.shape[-1] ** 0.5))
