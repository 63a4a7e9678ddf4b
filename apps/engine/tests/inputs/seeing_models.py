"""Small models that see, opened for tests."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from small_llama import EOS

from backbay_engine import LLM, load
from backbay_engine.media.encoder import MediaEncoder

ENDLESS: dict[str, Any] = {"logit_bias": {EOS: float("-inf")}, "temperature": 0}
Files = dict[str, tuple[Path, Path | None]]
"""The model and the projector of each kind."""


def opened(files: Files, kind: str, backend: str = "cpu_ref", **how: Any) -> LLM:
    model, projector = files[kind]
    sizes: dict[str, Any] = {"context": 128, "parallel": 3, "kv_dtype": "f32", "num_threads": 1}
    return load(model, backend, projector=projector, **{**sizes, **how})


class Gate:
    """Holds encodings until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        embed = MediaEncoder.embed

        def held(encoder: MediaEncoder, *args: Any, **how: Any) -> Any:
            self.reached.set()
            assert self.open.wait(300)
            return embed(encoder, *args, **how)

        monkeypatch.setattr(MediaEncoder, "embed", held)
