"""The dimensions of a transformer, by a file's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from backbay.gguf import Config

from .. import keys


@dataclass(frozen=True)
class Shape:
    """The dimensions of a block. Blocks of one model may differ."""

    width: int
    heads: int
    kv_heads: int
    head: int  # elements of a query's and a key's head
    value_head: int
    hidden: int  # of the feed-forward, or of an expert's
    experts: int  # 0: none
    used_experts: int  # by each token

    @classmethod
    def of(
        cls,
        config: Config,
        layer: int = 0,
        *,
        plain: bool = False,
        attends: bool = True,
        feeds: bool = True,
    ) -> Self:
        """The shape of a block, by the keys and defaults of llama.cpp.

        plain      True: the block has no experts
        attends    False: the block has no attention, and no heads
        feeds      False: the block has no feed-forward
        """
        width = keys.WIDTH.of(config)
        heads = keys.HEADS.of(config, layer=layer) if attends else 0
        kv_heads = keys.KV_HEADS.of(config, heads, layer=layer) if attends else 0
        if attends and heads % kv_heads:
            raise keys.KV_HEADS.refuse(config, f"a divisor of the {heads} heads", layer)
        experts = 0 if plain else keys.EXPERTS.of(config, 0, layer=layer)
        used = keys.USED_EXPERTS.of(config, 0, layer=layer) if experts else 0
        if experts and not 0 < used <= experts:
            raise keys.USED_EXPERTS.refuse(config, f"1 to {experts}, as there are experts,", layer)
        hidden = keys.EXPERT_HIDDEN if experts and keys.EXPERT_HIDDEN.name in config else keys.HIDDEN
        return cls(
            width,
            heads,
            kv_heads,
            keys.KEY_LENGTH.of(config, max(1, width // heads), layer=layer) if attends else 0,
            keys.VALUE_LENGTH.of(config, max(1, width // heads), layer=layer) if attends else 0,
            hidden.of(config, layer=layer) if feeds else 0,
            experts,
            used,
        )


def attends(config: Config, layer: int) -> bool:
    """Whether a block has attention: files of hybrid models give 0 heads of keys and values for the other blocks."""
    return keys.ATTENDING_HEADS.of(config, layer=layer) > 0


def block_count(config: Config) -> int:
    """The number of blocks; the file may have further ones, which predict tokens after the next one."""
    count, predicting = keys.BLOCK_COUNT.of(config), keys.PREDICTING_BLOCKS.of(config, 0)
    if predicting >= count:
        raise keys.PREDICTING_BLOCKS.refuse(config, f"less than the {count} blocks")
    return count - predicting


def sliding_layers(config: Config, pattern: int | None) -> tuple[int, list[bool]]:
    """The width of the window, and whether each block has one: all but the last of `pattern` blocks in a row, unless
    metadata say otherwise.

    Without a pattern no block has a window: files of some architectures name windows that are not used.
    """
    count, window = block_count(config), keys.WINDOW.of(config, 0)
    given = keys.WINDOW_PATTERN.name in config
    if not window or (pattern is None and not given):
        return 0, [False] * count
    if given and isinstance(config[keys.WINDOW_PATTERN.name], np.ndarray):
        return window, [keys.WINDOW_PATTERN.of(config, layer=layer) != 0 for layer in range(count)]
    pattern = keys.WINDOW_PATTERN.of(config, pattern)
    return window, [not pattern or layer % pattern < pattern - 1 for layer in range(count)]
