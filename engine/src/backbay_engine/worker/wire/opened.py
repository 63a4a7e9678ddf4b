"""A model as other processes know it: its facts, and its vocabulary as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backbay.gguf import Config, Strings

from ...local.port import LocalPort
from ...port.contract import Facts
from ...port.options import Path
from ...text.tokenizers import Tokenizer, tokenizer_from_gguf

OF_TOKENIZERS = ("tokenizer.", "general.architecture")


@dataclass(frozen=True)
class Opened:
    """A model that was opened.

    vocabulary  the metadata of the tokenizer, no value a view of the file; None if the file has no vocabulary, or if
                the host has it
    offsets     the places of the values in the file
    """

    facts: Facts
    vocabulary: dict[str, Any] | None = None
    offsets: dict[str, int] = field(default_factory=dict)

    def tokenizer(self, path: Path) -> Tokenizer | None:
        """A tokenizer of one's own. It is no view of the model file, whose end must not be the host's."""
        if self.vocabulary is None:
            return None
        return tokenizer_from_gguf(Config(self.vocabulary, path=path, offsets=self.offsets))


def opened(port: LocalPort) -> Opened:
    """The port's model, for another process."""
    if port.tokenizer is None:
        return Opened(port.facts)
    config = port.backend.config
    keys = [key for key in config if key.startswith(OF_TOKENIZERS)]
    offsets = {key: config.offset(key) for key in keys}
    known = {key: offset for key, offset in offsets.items() if offset is not None}
    return Opened(port.facts, {key: _copied(config, key) for key in keys}, known)


def _copied(config: Config, key: str) -> Any:
    value = config[key]
    if isinstance(value, Strings):
        return list(value)
    return np.array(value) if isinstance(value, np.ndarray) else value
