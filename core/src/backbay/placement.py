"""Where a tensor belongs: a hint that contexts give and backends follow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """In host memory, with a layer of the model, or anywhere."""

    host: bool = False
    layer: int | None = None
