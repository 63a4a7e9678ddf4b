"""The place where a tensor belongs: a hint that contexts give and backends follow."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LAYERS = 1 << 16  # more than any model has: memory reports have an entry for each layer


@dataclass(frozen=True)
class Placement:
    """Host memory, the device of a model's layer, or (neither given) any place."""

    host: bool = False
    layer: int | None = None
