"""Small models that see, opened for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_llama import EOS

from backbay_engine import LLM, load

ENDLESS: dict[str, Any] = {"logit_bias": {EOS: float("-inf")}, "temperature": 0}
Files = dict[str, tuple[Path, Path | None]]
"""The model and the projector of each kind."""


def opened(files: Files, kind: str, backend: str = "cpu_ref", **how: Any) -> LLM:
    model, projector = files[kind]
    sizes: dict[str, Any] = {"context": 128, "parallel": 3, "kv_dtype": "f32", "num_threads": 1}
    return load(model, backend, projector=projector, **{**sizes, **how})
