"""The door for ports of models on other machines; the server's replicas stand on it, and it is promised to no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .images.prompts import Parts
from .local.port import LocalPort
from .port.contract import Facts, Port
from .port.questions import GetMemory, Question
from .runner.requests.handle import OnStep
from .runner.requests.request import Generate, Request, ScoreTokens
from .worker.host.requests import sendable
from .worker.host.resuming import Resuming
from .worker.wire.failures import packed, unpacked
from .worker.wire.opened import Opened, opened

if TYPE_CHECKING:
    from .llm import LLM

__all__ = [
    "Facts",
    "Generate",
    "GetMemory",
    "LocalPort",
    "OnStep",
    "Opened",
    "Parts",
    "Port",
    "Question",
    "Request",
    "Resuming",
    "ScoreTokens",
    "opened",
    "packed",
    "port_of",
    "sendable",
    "unpacked",
]


def port_of(llm: LLM) -> LocalPort:
    """The port of a model that was loaded into this process."""
    port = llm._port
    assert isinstance(port, LocalPort)
    return port
