"""Blocks of a folder that predict further tokens, beside those of the model, by the names that a model file has for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from backbay import ModelFileError

from .config_json import Keys, Settings

T = TypeVar("T")

RECURRENT = "attention.recurrent_layers"
_APART = re.compile(r"(?:model\.)?mtp\.(?:layers\.([0-9]{1,6})\.)?(.+)")
_BLOCK = re.compile(r"(?:^|\.)(?:layers|blk)\.([0-9]{1,7})\.(.+)")
_QWEN_PARTS = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}
_PARTS = ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head")


def with_predicting_blocks(named: Mapping[str, T], settings: Settings, *, kept: bool) -> dict[str, T]:
    """Without what lies in blocks that neither the model has nor, if they are kept, a head that predicts tokens; a head's own
    tensors as `blk.N.nextn.*`, and blocks that Qwen keeps apart, as `mtp.*`, behind the model's.
    """
    blocks, found = settings.blocks, dict[str, T]()
    for name, each in named.items():
        target = _in_order(name, blocks)
        if target in found:
            raise ModelFileError(
                settings.folder, None, f"one tensor for {target!r}", f"two, one of them {name!r}"
            )
        found[target] = each
    count = blocks
    while kept and f"blk.{count}.nextn.eh_proj.weight" in found:
        count += 1
    return {
        name: each for name, each in found.items() if not name.startswith("mtp.") and _number(name) < count
    }


def predicting_keys(keys: Keys, names: Iterable[str]) -> Keys:
    """The keys that count blocks, with those of heads among the tensors of a model file; none without heads."""
    count = sum(name.endswith(".nextn.eh_proj.weight") for name in names)
    if not count:
        return {}
    found = {"block_count": keys["block_count"] + count, "nextn_predict_layers": count}
    if recurrent := keys.get(RECURRENT):
        found[RECURRENT] = [*recurrent, *[False] * count]
    return found


def _in_order(name: str, blocks: int) -> str:
    """The name of a tensor if heads lie behind the model's blocks; `mtp.*` for what belongs to none of their blocks."""
    if apart := _APART.fullmatch(name):
        part, _, kind = apart[2].partition(".")
        if apart[1] is not None:
            name = f"model.layers.{blocks + int(apart[1])}.{apart[2]}"
        elif part in _QWEN_PARTS:
            name = f"model.layers.{blocks}.{_QWEN_PARTS[part]}.{kind}"
        else:
            return f"mtp.{apart[2]}"
    block = _BLOCK.search(name)
    if block is not None and int(block[1]) >= blocks:
        part, _, kind = block[2].rpartition(".")
        if part in _PARTS:
            return f"blk.{block[1]}.nextn.{part.replace('.', '_')}.{kind}"
    return name


def _number(name: str) -> int:
    """That of the block of a name; -1 if it is in none."""
    block = _BLOCK.search(name)
    return -1 if block is None else int(block[1])
