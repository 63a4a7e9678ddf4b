"""The door for engines whose steps run on other machines; the server's replicas stand on it, and it is promised to no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engines.contract import Engine, Facts, Prompt
from .engines.local import LocalEngine
from .images.picture import Image
from .images.prepared import Prepared
from .images.prompts import Parts
from .images.store import Counters
from .worker.host.requests import generate_request
from .worker.host.resuming import Resuming
from .worker.wire.failures import packed, unpacked
from .worker.wire.opened import Opened, opened
from .worker.wire.setup import Generate

if TYPE_CHECKING:
    from .llm import LLM

__all__ = [
    "Counters",
    "Engine",
    "Facts",
    "Generate",
    "Image",
    "LocalEngine",
    "Opened",
    "Parts",
    "Prepared",
    "Prompt",
    "Resuming",
    "engine_of",
    "generate_request",
    "opened",
    "packed",
    "unpacked",
]


def engine_of(llm: LLM) -> LocalEngine:
    """The engine of a model that was loaded into this process."""
    engine = llm._engine
    assert isinstance(engine, LocalEngine)
    return engine
