"""Code blocks of the documentation, so that tests can run them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that the first line names, if it does."""
        named = re.match(r"# file: (\S+)\n", self.text)
        return named[1] if named else ""


def blocks(document: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall((ROOT / document).read_text())]
