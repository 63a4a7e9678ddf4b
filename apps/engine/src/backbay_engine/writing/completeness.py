"""Whether a model has all tensors that its architecture or its encoder takes, before it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from backbay import CONTRACT_VERSION, BackendParams
from backbay.gguf import ModelFile
from backbay.plugin import KernelBackend

from ..media.encoder_file import encoder_family, kinds_of
from ..models.registry import ARCHITECTURE, architectures, load_model


@final
class DeclaringBackend(KernelBackend):
    """A backend that knows the shapes of a model's weights, and computes nothing."""

    contract_version = CONTRACT_VERSION


def require_complete(model: ModelFile) -> None:
    """ModelFileError naming the tensors that are missing or do not fit; architectures of others are not checked."""
    kinds = kinds_of(model)
    if ARCHITECTURE.of(model.metadata) in architectures():
        load_model(
            DeclaringBackend(_part(model, lambda name: not any(kind.has(name) for kind in kinds)), MEASURING)
        )
    for kind in kinds:
        part = _part(model, kind.has)
        encoder_family(part).network(DeclaringBackend(part, MEASURING))


MEASURING = BackendParams(alloc_memory=False)


def _part(model: ModelFile, has: Callable[[str], bool]) -> ModelFile:
    """Some tensors of a model, without their data."""
    tensors = {name: info for name, info in model.tensors.items() if has(name)}
    return ModelFile(model.path, (), model.metadata, tensors, {})
