"""The door for models on other machines; the server's replicas stand on it, and it is promised to no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .local.port import LocalPort
from .port.calls import Call, Message
from .port.contract import Facts
from .port.questions import GetMemory, Question
from .port.remote import Link, RemotePort
from .runner.requests.request import Generate, Request
from .worker.messages import Description, describe
from .worker.reports import pack_error, unpack_error

if TYPE_CHECKING:
    from .llm import LLM

__all__ = [
    "Call",
    "Description",
    "Facts",
    "Generate",
    "GetMemory",
    "Link",
    "LocalPort",
    "Message",
    "Question",
    "RemotePort",
    "Request",
    "describe",
    "pack_error",
    "port_of",
    "unpack_error",
]


def port_of(llm: LLM) -> LocalPort:
    """The port of a model that was loaded into this process."""
    port = llm._port
    assert isinstance(port, LocalPort)
    return port
