"""The contract's version: additions raise the minor number, changes that break plugins the major number."""

from __future__ import annotations

import re
from typing import NamedTuple, Self


class ContractVersion(NamedTuple):
    """A version of the contract. A plugin states its version as "1.1", as (1, 1), or as 1, which means "1.0"."""

    major: int
    minor: int = 0

    @classmethod
    def parse(cls, stated: object) -> Self:
        """Convert a plugin's statement to a version; ValueError if it is no version."""
        if type(stated) is int and stated >= 0:
            return cls(stated)
        if isinstance(stated, str) and re.fullmatch(r"[0-9]+\.[0-9]+", stated):
            major, minor = map(int, stated.split("."))
            return cls(major, minor)
        numbers = stated if isinstance(stated, (tuple, list)) else ()
        if len(numbers) == 2 and all(type(number) is int and number >= 0 for number in numbers):
            return cls(*numbers)
        raise ValueError(f"a contract version is two numbers, such as '1.1', got {stated!r}")

    def takes(self, plugin: ContractVersion) -> bool:
        """Whether a core of this version runs a plugin of the version `plugin`."""
        return plugin.major == self.major and plugin.minor <= self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


CONTRACT_VERSION = ContractVersion(1, 2)
