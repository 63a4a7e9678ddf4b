"""SentencePiece's normalization rules (precompiled_charsmap): replacements of character sequences."""

from __future__ import annotations

import re
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay.gguf import Config

from .vocabulary import CHARSMAP

# the next node, and the replacement if a rule ends there
Transition: TypeAlias = tuple[int, str | None] | None

_END = 1 << 31  # marks a unit that holds the offset of a replacement
_MAX_KNOWN = 1 << 16  # transitions remembered
_ANY = re.compile("(?s).")
_BESIDE_ASCII = re.compile(r"[^ -~]|[ -~](?=[^ -~])")  # where a rule with non-ASCII characters may begin


@final
class Charsmap:
    """Replaces, from left to right, the longest sequence of characters that has a rule.

    The rules are a trie in a double array of 32-bit units, as darts-clone packs it.
    """

    def __init__(self, data: NDArray[np.int64], config: Config) -> None:
        self._config = config
        raw = data.astype(np.uint8).tobytes()
        size = int.from_bytes(raw[:4], "little")
        if len(raw) < 9 or size < 4 or size % 4 or 4 + size >= len(raw):
            expected = f"more bytes than {len(raw)}, for {size} bytes of rules and their replacements,"
            raise CHARSMAP.refuse(config, expected)
        self._units: list[int] = np.frombuffer(raw, "<u4", size // 4, 4).tolist()
        self._replacements = raw[4 + size :]
        self._root = _base(self._units[0])
        self._known: dict[tuple[int, str], Transition] = {}
        self._candidate = _ANY if self._has_ascii() else _BESIDE_ASCII

    def apply(self, text: str) -> str:
        pieces: list[str] = []
        done, at, search = 0, 0, self._candidate.search
        while (match := search(text, at)) is not None:
            start = match.start()
            end, written = self._longest(text, start)
            if written is not None:
                pieces += text[done:start], written
                done = end
            at = end
        return "".join([*pieces, text[done:]]) if pieces else text

    def _longest(self, text: str, start: int) -> tuple[int, str | None]:
        """The end of the longest rule at `start`, and its replacement; without a rule, the end of one character."""
        end, written, node = start + 1, None, self._root
        for at in range(start, len(text)):
            step = self._step(node, text[at])
            if step is None:
                break
            node, found = step
            if found is not None:
                end, written = at + 1, found
        return end, written

    def _step(self, node: int, character: str) -> Transition:
        key = node, character
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._walk(node, character)
        return self._known[key]

    def _walk(self, node: int, character: str) -> Transition:
        unit = 0
        for byte in character.encode():
            unit = self._unit(node ^ byte)
            if not byte or unit & (_END | 0xFF) != byte:
                return None
            node ^= byte ^ _base(unit)
        return node, self._replacement(self._unit(node) & ~_END) if unit & 0x100 else None

    def _unit(self, index: int) -> int:
        """A unit; out of range, a unit that is no child of any node."""
        return self._units[index] if index < len(self._units) else _END

    def _replacement(self, begin: int) -> str:
        end = self._replacements.find(b"\0", begin)
        if end < 0:
            expected = f"a zero byte after the replacement at byte {begin} of {len(self._replacements)}"
            raise CHARSMAP.refuse(self._config, expected)
        return self._replacements[begin:end].decode("utf-8", "replace")

    def _has_ascii(self) -> bool:
        """Whether a rule is a printable ASCII character, or begins with two."""
        printable = [chr(code) for code in range(0x20, 0x7F)]
        steps = [step for step in (self._step(self._root, first) for first in printable) if step is not None]
        return any(
            written is not None or any(self._step(node, second) is not None for second in printable)
            for node, written in steps
        )


def _base(unit: int) -> int:
    """The base of a node's children: child = node ^ base ^ byte."""
    return (unit >> 10) << ((unit & 0x200) >> 6)
