"""A device that sessions run on."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from backbay import BackendUnavailableError
from backbay.plugin import CPU

from .providers import HOST_PROVIDER, Provider


@dataclass(frozen=True)
class Device:
    """A device by our id, and by its provider and number in ONNX Runtime."""

    id: str
    provider: Provider
    number: int = 0

    @property
    def is_host(self) -> bool:
        return self.id == CPU

    @property
    def has_memory(self) -> bool:
        """Whether leaves and weights lie in memory of the device, which Python can only copy from and to."""
        return self.provider.has_memory

    def alone(self) -> AbstractContextManager[Any]:
        """While sessions on the device are made or run, if two threads must not do so at the same time."""
        return _ALONE if self.provider.one_at_a_time else nullcontext()

    def session_providers(self, limit: int | None = None) -> list[Any]:
        """Providers for a session, best first; `limit` is the most bytes of device memory that it may take."""
        settings = self.provider.settings(self.number, limit)
        own = (self.provider.name, settings) if settings else self.provider.name
        return [own] if self.provider.name == HOST_PROVIDER.name else [own, HOST_PROVIDER.name]

    def check(self, session: Any) -> None:
        """Refuse a session on another provider: ONNX Runtime leaves out a provider that it cannot start."""
        found = session.get_providers()[0]
        if found != self.provider.name:
            raise BackendUnavailableError(
                f"{self.id} was asked for, but ONNX Runtime uses {found}; remedy: {self.provider.remedy}"
            )


_ALONE = threading.RLock()
HOST = Device(CPU, HOST_PROVIDER)


def device_of(provider: Provider, number: int = 0) -> Device:
    """Device number n of a provider."""
    return Device(f"{provider.prefix}:{number}", provider, number)
