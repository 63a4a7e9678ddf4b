"""The dimensions of a transformer, by a file's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from backbay import ModelFileError
from backbay.gguf import Config


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
    def of(cls, config: Config, layer: int = 0, *, plain: bool = False) -> Self:
        """The shape of a block, by the keys and defaults of llama.cpp; `plain`: the block has no experts."""
        width = positive(config, "embedding_length", layer)
        heads = positive(config, "attention.head_count", layer)
        kv_heads = positive(config, "attention.head_count_kv", layer, heads)
        if heads % kv_heads:
            raise config.mistyped("attention.head_count_kv", f"a divisor of the {heads} heads", kv_heads)
        experts = 0 if plain else per_layer(config, "expert_count", layer, 0)
        used = per_layer(config, "expert_used_count", layer, 0) if experts else 0
        if experts and not 0 < used <= experts:
            raise config.mistyped("expert_used_count", f"1 to {experts}, as there are experts,", used)
        of_experts = experts and "expert_feed_forward_length" in config
        return cls(
            width,
            heads,
            kv_heads,
            positive(config, "attention.key_length", layer, max(1, width // heads)),
            positive(config, "attention.value_length", layer, max(1, width // heads)),
            positive(config, "expert_feed_forward_length" if of_experts else "feed_forward_length", layer),
            experts,
            used,
        )


def per_layer(config: Config, key: str, layer: int, default: int | None = None) -> int:
    """A number of the metadata: one for all blocks, or an array with one for each."""
    if isinstance(config.get(key), np.ndarray):
        values = config.bools(key) if config[key].dtype == np.bool_ else config.ints(key)
        if layer >= len(values):
            raise config.mistyped(key, f"a number for layer {layer}", f"{len(values)} numbers")
        return int(values[layer])
    return config.int(key) if default is None else config.int(key, default)


def positive(config: Config, key: str, layer: int, default: int | None = None) -> int:
    value = per_layer(config, key, layer, default)
    if value < 1:
        raise config.mistyped(key, "a number above 0", value)
    return value


def epsilon(config: Config, key: str) -> float:
    """The epsilon of a norm; it must not be negative."""
    value = config.float(key)
    if not 0 <= value < 1:
        raise config.mistyped(key, "a number in [0, 1)", value)
    return value


def block_count(config: Config) -> int:
    return positive(config, "block_count", 0)


def sliding_layers(config: Config, pattern: int | None) -> tuple[int, list[bool]]:
    """The width of the window, and whether each block has one: all but the last of `pattern` blocks in a row, unless
    metadata say otherwise.

    Without a pattern no block has a window: files of some architectures name windows that are not used.
    """
    count, window = block_count(config), config.int("attention.sliding_window", 0)
    key = "attention.sliding_window_pattern"
    if window < 1 or (pattern is None and key not in config):
        return 0, [False] * count
    if isinstance(config.get(key), np.ndarray):
        return window, [per_layer(config, key, layer) != 0 for layer in range(count)]
    pattern = config.int(key) if pattern is None else config.int(key, pattern)
    return window, [pattern < 1 or layer % pattern < pattern - 1 for layer in range(count)]


def refuse(config: Config, key: str, expected: str) -> ModelFileError:
    """The error for a value that is not supported."""
    return config.mistyped(key, expected, config.get(key))
