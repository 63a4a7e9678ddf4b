"""Slots: the sequences of the cache, and which one serves a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol, final

from ..arguments import AdapterMix
from ..cache.contract import Cache
from ..errors import CacheShiftError
from ..steps.tokens import Token, before_picture, media_spans

_TICKS = count(1)


@dataclass(eq=False)
class Slot:
    """A sequence of the cache, and the tokens that it holds.

    After a shift, only the first `exact` tokens are as if computed anew: later ones have seen forgotten tokens.
    `adapters` have computed them. The first `restored` ones come from a snapshot, and may be forged: they serve only a
    prompt that begins with all of them.
    """

    sequence: int
    tokens: list[Token] = field(default_factory=list)
    exact: int = sys.maxsize
    busy: bool = False
    last_used: int = 0
    adapters: AdapterMix = ()
    restored: int = 0

    def serves(self, prompt: Sequence[Token]) -> bool:
        return self.restored == common_length(self.tokens[: self.restored], prompt)


class PrefixStore(Protocol):
    """Beginnings of prompts that outlive the cache. It is called between steps, and raises nothing."""

    def fetch(self, prompt: Sequence[Token], slot: Slot) -> None:
        """Let a slot hold more of a prompt's beginning than it does, if the shelf has it."""

    def keep(self, slot: Slot) -> None:
        """Keep what a slot holds: a prompt that was computed."""


@final
class Slots:
    """The slots of a cache, given to jobs so that cached prefixes are reused."""

    def __init__(self, cache: Cache, parallel: int) -> None:
        self.cache = cache
        self.all = [Slot(n) for n in range(parallel)]

    def take(self, prompt: Sequence[Token], *, reuse: bool = True, adapters: AdapterMix = ()) -> Slot | None:
        """A free slot that holds the longest cached prefix of the prompt, without its last token; None if all are busy.

        Only what the same adapters computed counts, and of a snapshot only the whole.

        A longer prefix in another slot is shared with the free one. Without any prefix, the least recently used slot
        is emptied.
        """
        free = [slot for slot in self.all if not slot.busy]
        if not free:
            return None
        chosen, source, length = self._choose(free, prompt if reuse else [], adapters)
        if source is not None and source is not chosen:
            self.cache.copy_prefix(source.sequence, chosen.sequence, length)
            chosen.tokens, chosen.exact = source.tokens[:length], sys.maxsize
        else:
            if length < len(chosen.tokens):
                self.take_back(chosen, len(chosen.tokens) - length)
            if length <= chosen.exact:
                chosen.exact = sys.maxsize
        chosen.busy, chosen.last_used, chosen.adapters = True, next(_TICKS), adapters
        chosen.restored = 0 if source is None else source.restored
        return chosen

    def clear(self, slot: Slot, *, wipe: bool = False) -> None:
        """Empty a slot; `wipe` also overwrites its memory, so that NaN cannot spread to other sequences."""
        if wipe:
            self.cache.wipe(slot.sequence)
        else:
            self.cache.remove(slot.sequence, 0)
        slot.tokens.clear()
        slot.exact, slot.restored = sys.maxsize, 0

    def take_back(self, slot: Slot, count: int) -> list[Token]:
        """Forget a slot's last tokens. Windows keep what the tokens before them see, as one step computed them all.

        Returns the tokens to compute again: where states are kept, those behind the last one.
        """
        length = len(slot.tokens) - count
        kept = self.cache.last_resumable(slot.sequence, length) if self.cache.is_uniform else length
        self.cache.remove(slot.sequence, kept)
        lost = slot.tokens[kept:length]
        del slot.tokens[kept:]
        return lost

    def shift(self, slot: Slot, keep: int) -> list[Token]:
        """Make room: forget the older half of the tokens after the first `keep`, and no picture in part.

        Returns the tokens to compute again: none, unless the cache cannot move the later tokens.
        """
        held = slot.tokens
        keep, end = shift_range(held, keep)
        left = held[:keep] + held[end:]
        crosses = any(span.media.crosses for span in media_spans(held))
        try:
            if any(span.media.positions is not None for span in media_spans(held)):
                raise CacheShiftError("the positions of pictures are not the places of their tokens")
            self.cache.remove(slot.sequence, keep, end)
        except CacheShiftError:
            self.clear(slot)
            if crosses:
                slot.exact = 0  # its first tokens no longer see the pictures that are gone
            return left
        slot.tokens, slot.exact = left, 0 if crosses or keep < slot.restored else min(slot.exact, keep)
        return []

    def _choose(
        self, free: list[Slot], prompt: Sequence[Token], adapters: AdapterMix
    ) -> tuple[Slot, Slot | None, int]:
        """The slot to take, the slot whose prefix it shall hold, and the prefix's length."""
        oldest = min(free, key=lambda slot: slot.last_used)
        source, length = None, 0
        alike = [slot for slot in self.all if slot.adapters == adapters and slot.serves(prompt)]
        for slot in sorted(alike, key=lambda slot: slot.busy):  # a free one needs no copy
            shared = self._resumable(slot, min(slot.exact, common_length(slot.tokens, prompt[:-1])))
            if shared > length:
                source, length = slot, shared
        if source is None:
            return oldest, None, 0
        # if much of the slot would be lost and another is free, keep it whole
        if not source.busy and (length >= len(source.tokens) // 2 or len(free) == 1):
            return source, source, length
        others = (slot for slot in free if slot is not source)
        return min(others, key=lambda slot: slot.last_used), source, length

    def _resumable(self, slot: Slot, length: int) -> int:
        """The most tokens up to `length` after which a step may continue; never between tokens that see each other."""
        while length:
            length = self.cache.last_resumable(slot.sequence, length)
            whole = before_picture(slot.tokens, length)
            if whole == length:
                return length
            length = whole
        return 0


def common_length(a: Sequence[Token], b: Sequence[Token]) -> int:
    for i, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return i
    return min(len(a), len(b))


def shift_range(held: Sequence[Token], keep: int) -> tuple[int, int]:
    """The range of tokens that a shift forgets: the older half of those after the first `keep`.

    A picture that a limit cuts is kept, or goes, as a whole.
    """
    for place in media_spans(held):
        if place.begin < keep < place.end:
            keep = place.end if place.end <= len(held) // 2 else place.begin
    end = keep + max(1, (len(held) - keep) // 2)
    for place in media_spans(held):
        if place.begin < end < place.end:
            end = place.end
    return keep, end
