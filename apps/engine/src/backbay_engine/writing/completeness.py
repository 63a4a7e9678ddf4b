"""Whether a model has all tensors that its architecture or its encoder takes, before it is written."""

from __future__ import annotations

from typing import final

from backbay import CONTRACT_VERSION, BackendParams
from backbay.gguf import ModelFile
from backbay.plugin import KernelBackend

from ..media.encoder_file import encoder_family, kind_of
from ..models.registry import ARCHITECTURE, architectures, load_model


@final
class DeclaringBackend(KernelBackend):
    """A backend that knows the shapes of a model's weights, and computes nothing."""

    contract_version = CONTRACT_VERSION


def require_complete(model: ModelFile) -> None:
    """ModelFileError naming the tensors that are missing or do not fit; architectures of others are not checked."""
    backend = DeclaringBackend(model, BackendParams(alloc_memory=False))
    if ARCHITECTURE.of(model.metadata) in architectures():
        load_model(backend)
    if kind_of(model) is not None:
        encoder_family(model).network(backend)
