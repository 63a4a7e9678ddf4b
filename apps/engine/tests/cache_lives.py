"""Random lives of caches: how many, on which backends, and a backend that demands all that it can."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import backbay
from backbay import Backend, CacheConfig, DType
from backbay_conformance.plugin import Draw, Lab, Machine, walk

LIVES = int(os.environ.get("BACKBAY_CACHE_LIVES", "0"))  # the nightly run sets 200
INSTALLED = sorted(backbay.backends())


@cache
def permuted(cache_padding: int, mask_batch_padding: int, *dtypes: DType) -> type[Backend]:
    """The reference backend, with every demand that a CacheConfig can make."""

    class Permuted(backbay.backends()["cpu_ref"].load()):  # type: ignore[misc]
        def cache_config(self) -> CacheConfig:
            return CacheConfig(
                cache_padding=cache_padding,
                permuted_v=True,
                mask_dtype=DType.F16,
                mask_batch_padding=mask_batch_padding,
                dtypes=dtypes,
            )

    return Permuted


def live(kind: type[Machine], lab: Lab, name: str, first: int, lives: int, *, actions: int = 40) -> None:
    """Walk through lives of a kind, or through as many as the nightly run asks for."""
    for turn in range(first, first + (LIVES or lives)):
        walk(kind, lab, Draw(f"{name}/{turn}"), actions)


def lives_on(backend: str) -> int:
    """A few lives; ONNX Runtime takes a while to create a session."""
    return 2 if backend == "onnx" else 8


def fill_once(patch: Any, bound: type[Any]) -> None:
    """A fault: the leaves of a step are those of the step before."""
    fill = bound.fill

    def once_only(self: Any, plan: Any) -> None:
        if not hasattr(self, "filled"):
            fill(self, plan)
        self.filled = True

    patch.setattr(bound, "fill", once_only)
