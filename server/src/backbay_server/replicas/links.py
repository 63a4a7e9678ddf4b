"""Links: how an application reaches the replicas of a model, whatever carries its requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from backbay_engine.remote import Request


class ReplicaLostError(Exception):
    """A replica ended, or left, before its answer did."""


class ReplicasBusyError(Exception):
    """No replica has room, and as many requests wait as may."""


class Link(ABC):
    """Reaches the replicas of one model."""

    @abstractmethod
    def stream(self, request: Request[Any], *, session: str) -> AsyncIterator[list[Any]]:
        """What a replica gives for a request, in batches; the first one, perhaps empty, says that it has begun.

        Equal sessions go to the same replica while it lives and has room; "" goes to any. Leaving the loop cancels.
        """

    @abstractmethod
    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method of any replica returns."""
