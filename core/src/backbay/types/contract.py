"""The contract's version: additions raise the minor number, changes that break plugins the major number."""

from __future__ import annotations

from typing import Any, NamedTuple, Self


class ContractVersion(NamedTuple):
    """A version of the contract. A plugin states its version as "1.1", as (1, 1), or as 1, which means "1.0"."""

    major: int
    minor: int = 0

    @classmethod
    def parse(cls, stated: object) -> Self:
        """Convert a plugin's statement to a version; ValueError if it is no version."""
        if isinstance(stated, int) and not isinstance(stated, bool):
            return cls(stated)
        parts: Any = stated.split(".") if isinstance(stated, str) else stated
        try:
            major, minor = [int(part) for part in parts]
        except (TypeError, ValueError):
            expected = "a contract version is two numbers, such as '1.1'"
            raise ValueError(f"{expected}, got {stated!r}") from None
        return cls(major, minor)

    def takes(self, plugin: ContractVersion) -> bool:
        """Whether a core of this version runs a plugin of the version `plugin`."""
        return plugin.major == self.major and plugin.minor <= self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


CONTRACT_VERSION = ContractVersion(1, 1)
