"""A device that sessions run on."""

from __future__ import annotations

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
        """Whether Python can read and write the device's memory directly."""
        return self.id == CPU

    def session_providers(self, limit: int | None = None) -> list[Any]:
        """Providers for a session, best first; `limit` is the most bytes of device memory that it may take."""
        settings = self.provider.settings(self.number, limit)
        own = (self.provider.name, settings) if settings else self.provider.name
        return [own] if self.provider is HOST_PROVIDER else [own, HOST_PROVIDER.name]

    def check(self, session: Any) -> None:
        """Refuse a session on another provider: ONNX Runtime leaves out a provider that it cannot start."""
        found = session.get_providers()[0]
        if found != self.provider.name:
            raise BackendUnavailableError(
                f"{self.id} was asked for, but ONNX Runtime uses {found}; remedy: {self.provider.remedy}"
            )


HOST = Device(CPU, HOST_PROVIDER)


def device_of(provider: Provider, number: int = 0) -> Device:
    """Device number n of a provider."""
    return Device(f"{provider.prefix}:{number}", provider, number)
