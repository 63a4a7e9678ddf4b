"""The blocks of a model file: those of a text model as its metadata count them, those of an encoder alone by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, final

from ..errors import ModelFileError
from ..types.gpu_layers import MAX_LAYERS

if TYPE_CHECKING:
    from ..gguf import ModelFile

_TEXT = re.compile(r"blk\.([0-9]{1,9})\.")
_AFTER = ("v.post_ln", "v.post_layernorm", "v.merger", "a.post_ln")
_ENCODER = re.compile(r"([va]\.(?:[a-z]+\.)*blk\.)([0-9]{1,9})\.")


@final
class BlockNumbers:
    """Numbers the blocks of a file. A file without blocks of text is an encoder: its blocks are numbered in their order,
    those of v.global.blk behind those of v.blk.

    count   ModelFileError if the metadata state an impossible one
    """

    def __init__(self, model: ModelFile | None) -> None:
        names = model.tensors if model is not None else ()
        by_prefix: dict[str, set[int]] = {}
        for name in names:
            if found := _ENCODER.match(name):
                by_prefix.setdefault(found[1], set()).add(int(found[2]))
        prefixes = sorted(by_prefix, key=len)
        ordered = [f"{prefix}{n}." for prefix in prefixes for n in sorted(by_prefix[prefix])]
        self._numbers = {name: number for number, name in enumerate(ordered[: MAX_LAYERS - 1])}
        self.is_encoder = bool(self._numbers) and not any(map(_TEXT.match, names))
        stated = model.metadata.int("block_count", 0) if model is not None else 0
        if model is not None and not 0 <= stated < MAX_LAYERS:
            expected, offset = f"a block_count in [0, {MAX_LAYERS})", model.metadata.offset("block_count")
            raise ModelFileError(model.path, offset, expected, stated)
        self.count = len(self._numbers) if self.is_encoder else stated

    def of(self, tensor: str) -> int | None:
        """The number of the block that a tensor belongs to; None if it belongs to none of them."""
        if self.is_encoder:
            found = _ENCODER.match(tensor)
            return None if found is None else self._numbers.get(found[0])
        block = _TEXT.match(tensor)
        return int(block[1]) if block and int(block[1]) <= self.count else None

    def precedes(self, tensor: str) -> bool:
        """Whether a tensor of an encoder is used before its blocks."""
        return self.is_encoder and tensor.startswith(("v.", "a.")) and not tensor.startswith(_AFTER)
