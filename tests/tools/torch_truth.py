"""Runs scripts with transformers, for expected results."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from model_scripts import SEQUENCES, Action, Copy, Remove, Run
from numpy.typing import NDArray
from transformers import DynamicCache


@torch.no_grad()
def run_script(model: Any, script: Sequence[Action]) -> NDArray[np.float32]:
    """All logits of a script's tokens, in order; each sequence has a cache of its own."""
    caches = [DynamicCache() for _ in range(SEQUENCES)]
    found = []
    for action in script:
        match action:
            case Copy(source, target, length):
                caches[target] = copy.deepcopy(caches[source])
                for layer in caches[target].layers:
                    layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]
            case Remove(sequence, begin, end):
                _remove(model, caches[sequence], begin, end)
            case Run(parts):
                for sequence, given in parts:
                    first = caches[sequence].get_seq_length()
                    at = torch.arange(first, first + len(given))
                    output = model(
                        torch.tensor([given]), past_key_values=caches[sequence], position_ids=at[None]
                    )
                    found.append(output.logits[0].numpy())
    return np.concatenate(found)


def _remove(model: Any, cache: DynamicCache, begin: int, end: int) -> None:
    """Drop positions, and rotate later keys back."""
    config, rotary = model.config, model.model.rotary_emb
    kinds = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
    for layer, kind in zip(cache.layers, kinds, strict=True):
        frequencies = getattr(rotary, f"{kind}_inv_freq", None)
        angles = (rotary.inv_freq if frequencies is None else frequencies) * -(end - begin)
        cos, sin = (torch.cat([turn(angles)] * 2) for turn in (torch.cos, torch.sin))
        behind = layer.keys[:, :, end:]
        left, right = behind.chunk(2, dim=-1)
        turned = behind * cos + torch.cat([-right, left], dim=-1) * sin
        layer.keys = torch.cat([layer.keys[:, :, :begin], turned], dim=2)
        layer.values = torch.cat([layer.values[:, :, :begin], layer.values[:, :, end:]], dim=2)


@torch.no_grad()
def embeddings(model: Any, texts: Sequence[Sequence[int]], pooling: int) -> NDArray[np.float32]:
    """For each text the mean over its tokens, or its first token."""
    found = []
    for text in texts:
        hidden = model(torch.tensor([list(text)])).last_hidden_state[0]
        found.append(hidden.mean(0) if pooling == 1 else hidden[0])
    return torch.stack(found).numpy()
