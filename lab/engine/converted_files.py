"""The files that `backbay convert` writes of a folder, and where they differ from those of llama.cpp's converter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import backbay_engine
from backbay.discovery import open_model

UNCOMPARED = ("general.", "tokenizer.")
REASONS = {
    r"\.vocab_size$": "ours alone: the rows of the embeddings, where config.json states them",
    r"^v\.token_embd\.img_break$": "ours alone: llama.cpp asks for it, and its converter skips it by newer names",
    r"^mm\.input_projection\.weight$": "f32 as asked for; llama.cpp's converter writes f16 always",
    r"^clip\.vision\.attention\.layer_norm_epsilon$": "1e-6 of the reference's encoder; theirs is that of the text",
    r"^clip\.vision\.feed_forward_length$": "that of the encoder's matrices; of Qwen 2 VL, theirs is the width of the text",
    r"^llama4\.(attention\.(chunk_size|floor_scale)|use_qk_norm)$": "ours alone, as Ollama's; llama.cpp has them in its code",
    r"^v\.blk\.\d+\.(attn_post_norm|ln2)\.": "of Llama 4, theirs has the name of another norm",
    r"^clip\.(has_text_encoder|vision\.projection_dim)$": "of llava's old script: CLIP's own width; nobody reads them",
    r"^(mm\.[02]|v\.patch_embd)\.weight$": "f32 as asked for; llava's old script writes f16 always",
    r"^(model|v)\.image_newline$": "the name of llama.cpp today; llava's old script has model.image_newline",
    r"^mllama\.vision\.image_(mean|std)$": "ours alone: the colours that the folder states",
}
"""By patterns of keys and tensors."""


def convert(folder: Path, target: Path) -> tuple[Path, Path]:
    """Write our files in f32; the path of the text and that of the projector, one of which may not be there."""
    backbay_engine.convert(folder, target, "f32", force=True)
    return target, target.with_name(f"mmproj-{target.name}")


def differences(ours: Path, theirs: Path) -> Iterator[tuple[str, str]]:
    """The keys and tensors that differ, each with the reason; without one, it is an error of ours."""
    with open_model(ours) as a, open_model(theirs) as b:
        for key in sorted({*a.metadata, *b.metadata}):
            values = [_plain(each.metadata.get(key)) for each in (a, b)]
            if not key.startswith(UNCOMPARED) and values[0] != values[1]:
                yield key, _reason(key)
        for name in sorted({*a.tensors, *b.tensors}):
            infos = [each.tensors.get(name) for each in (a, b)]
            forms = [info and (info.shape, info.dtype) for info in infos]
            if forms[0] != forms[1] or not np.array_equal(a.data(name), b.data(name)):
                yield name, _reason(name)


def _reason(name: str) -> str:
    return next((why for pattern, why in REASONS.items() if re.search(pattern, name)), "")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(np.float32(value))
    return value.tolist() if isinstance(value, np.ndarray) else value


def report(name: str, ours: Path, theirs: Path) -> bool:
    """Print the differences of a file; whether all have reasons."""
    found = list(differences(ours, theirs))
    for what, why in found:
        print(f"<!-- {name}: {what}: {why or '**no reason is known**'} -->")
    return all(why for _, why in found)
