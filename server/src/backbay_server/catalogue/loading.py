"""Loading a model on offer, as the settings say."""

from __future__ import annotations

from typing import Any

from backbay import BackendParams
from backbay_engine import LLM, load

from ..settings import Settings
from .entries import Entry


def load_entry(settings: Settings, entry: Entry, **own: Any) -> LLM:
    """The model of an entry; `own` are further arguments of `load`."""
    return load(
        entry.path,
        settings.backend,
        context=settings.context,
        parallel=settings.parallel,
        kv_dtype=settings.kv_dtype,
        params=BackendParams(options=settings.options),
        num_threads=settings.threads,
        projector=entry.projector,
        **own,
    )
