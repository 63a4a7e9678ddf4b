"""SentencePiece's normalization rules: a double array of 32-bit units, and the replacements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

SPAN = 256  # units of a node's children, whose places differ in the low byte alone


def charsmap(rules: Mapping[str, str]) -> NDArray[np.uint8]:
    """The rules in a double array that wastes room: each node's children have 256 units of their own."""
    written, offsets = b"", {}
    for key, value in rules.items():
        offsets[key.encode()] = len(written)
        written += value.encode() + b"\0"
    prefixes = sorted({key[:n] for key in offsets for n in range(len(key))}, key=len)
    spans = {prefix: SPAN * (index + 1) for index, prefix in enumerate(prefixes)}
    alone = [key for key in offsets if key not in spans]
    leaves = {key: SPAN * (len(prefixes) + 1 + index) for index, key in enumerate(alone)}
    units = np.zeros(SPAN * (len(prefixes) + len(leaves) + 1), np.uint32)
    units[0] = _leading(0, spans[b""])
    for key in {*prefixes, *offsets} - {b""}:
        place = spans[key[:-1]] ^ key[-1]
        below = {**spans, **leaves}[key]
        units[place] = _leading(place, below) | key[-1] | (0x100 if key in offsets else 0)
        if key in offsets:
            units[below] = 1 << 31 | offsets[key]
    raw = units.astype("<u4").tobytes()
    return np.frombuffer(len(raw).to_bytes(4, "little") + raw + written, np.uint8)


def _leading(place: int, children: int) -> int:
    """The bits of a unit that lead from its place to its children."""
    return (place ^ children) << 10
