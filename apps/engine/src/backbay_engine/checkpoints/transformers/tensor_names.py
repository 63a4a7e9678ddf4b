"""The names of tensors: those of transformers, as GGUF has them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

from backbay import ModelFileError

from .config_json import Settings
from .family_mapping import Family

T = TypeVar("T")

_EXPERT = re.compile(r"(.*\.experts)\.([0-9]{1,6})\.(.*)")
_BLOCK = re.compile(r"(?:^|\.)([0-9]+)(?=\.)")
# as a family makes them where the table has no name
_FINAL = re.compile(
    r"(((a|v|v\.global)\.)?blk\.[0-9]+\.(nextn\.)?[a-z0-9_]+|([av]\.)?position_embd|a\.[a-z0-9_.]+|v\.(pre|post)_ln|cls\.output"
    r"|v\.patch_embd|v\.((pre|post)_)?tile_position_embd|v\.deepstack\.[0-9]+\.\w+|v\.vit_merger\.\w+|(mm|resampler)\.[a-z0-9_.]+)\.(weight|bias|scale|gate|weight\.1)"
    r"|blk\.[0-9]+\.cross_attn_\w+_gate|v\.global\.blk\.[0-9]+\.\w+_gate|v\.class_embd|v\.token_embd\.img_break"
    r"|model\.image_newline"
)
SUFFIXES = ".weight", ".bias", ".scale"
USUAL_NAMES = "llama"  # the table for architectures that the gguf package does not know


class TensorNames:
    """GGUF's names of a folder's tensors, by the table of the gguf package."""

    def __init__(self, family: Family, settings: Settings) -> None:
        import gguf

        numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        self._family, self._settings = family, settings
        # The table is as long for one block as it is wide; the number of the block is put in here.
        number = numbers.get(family.architecture, numbers[USUAL_NAMES])  # for architectures of other packages
        self._table = gguf.get_tensor_name_map(number, 1)

    def of(self, name: str) -> str:
        renamed = self._family.renamed(name)
        match = _BLOCK.search(renamed)
        first = renamed if match is None else f"{renamed[: match.start(1)]}0{renamed[match.end(1) :]}"
        for tried in (first, f"model.{first}", first.removeprefix("model.")):
            found = self._table.get_name(tried, SUFFIXES)
            if found is not None:
                return found if match is None else found.replace(".0.", f".{match[1]}.", 1)
        if _FINAL.fullmatch(renamed):
            return renamed
        expected = (
            f"tensors that {self._settings.architecture} has; convert models of other kinds with llama.cpp's "
            "convert_hf_to_gguf.py"
        )
        raise ModelFileError(self._settings.folder, None, expected, repr(name))


def joined_experts(
    named: Mapping[str, T],
    form: Callable[[T], object],
    join: Callable[[list[T]], T],
    misfit: Callable[[str, T], ModelFileError],
) -> dict[str, T]:
    """With one value in place of those of a block's experts, which must all be there, in one form; else `misfit` is raised."""
    whole, experts = dict[str, T](), defaultdict[str, dict[int, T]](dict)
    for name, value in named.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            whole[name] = value
        else:
            experts[f"{match[1]}.{match[3]}"][int(match[2])] = value
    for name, found in experts.items():
        ordered = [found[number] for number in sorted(found)]
        if sorted(found) != list(range(len(found))) or len(set(map(form, ordered))) > 1:
            raise misfit(name, ordered[0])
        whole[name] = join(ordered)
    return whole
