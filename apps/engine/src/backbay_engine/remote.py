"""The door for models on other machines; Ray's replicas stand on it, and it is promised to no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .local.port import LocalPort as LocalPort
from .port.contract import ModelFacts as ModelFacts
from .port.questions import GetMemory as GetMemory
from .port.questions import Question as Question
from .port.remote import ProcessLink as ProcessLink
from .port.remote import RemotePort as RemotePort
from .port.remote_calls import Message as Message
from .port.remote_calls import RemoteCall as RemoteCall
from .runner.requests.request import Generate as Generate
from .runner.requests.request import Request as Request
from .worker.reports import pack_error as pack_error
from .worker.reports import unpack_error as unpack_error
from .worker.setup_messages import ModelDescription as ModelDescription
from .worker.setup_messages import describe_model as describe_model

if TYPE_CHECKING:
    from .llm import LLM


def port_of(llm: LLM) -> LocalPort:
    """The port of a model that was loaded into this process."""
    port = llm._port
    assert isinstance(port, LocalPort)
    return port
