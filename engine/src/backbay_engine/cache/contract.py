"""What every cache is: it plans a step, is bound into a kept context once, and is filled for each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from backbay import BackbayError, Backend, Context, DType, Tensor

from ..steps.step import Step

Shift: TypeAlias = Callable[[Context, int, Tensor, Tensor], Tensor]
"""(ctx, layer, keys (head_dim, kv_heads, cells), offsets i32 (cells,)) -> the keys as if that much further on."""


@dataclass(frozen=True)
class CacheSizes:
    """How much a cache is to hold."""

    sequences: int  # that live at the same time
    capacity: int  # tokens of each
    batch: int  # tokens of the largest step
    dtype: DType = DType.F16


@dataclass(frozen=True)
class CachePlan:
    """Where a step's tokens go and what they see. Equal keys mean that one kept context serves both steps."""

    step: Step
    key: Hashable


P = TypeVar("P", bound=CachePlan)


def own_plan(kind: type[P], plan: CachePlan) -> P:
    """The plan, if it is of the cache's own kind; BackbayError if another kind of cache made it."""
    if not isinstance(plan, kind):
        raise BackbayError(f"a {type(plan).__name__} is of another kind of cache")
    return plan


@dataclass(frozen=True)
class History:
    """What a layer's queries look at, as scaled_dot_product_attention takes it with cache_config_applied."""

    key: Tensor  # (head_dim, kv_heads, history)
    value: Tensor  # (head_dim, kv_heads, history), or as the backend's CacheConfig permutes it
    mask: Tensor | None  # (history, tokens and padding)


class BoundCache(ABC):
    """A cache in one kept context."""

    @abstractmethod
    def fill(self, plan: CachePlan) -> None:
        """Write the locations and masks of a step whose plan has this context's key."""

    @abstractmethod
    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        """Remember (head_dim, kv_heads, tokens) of a layer, before its `get`."""

    @abstractmethod
    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> History:
        """What a layer sees. `spans=False` disregards the step's spans: causal throughout."""

    def named(self) -> dict[str, Tensor]:
        """Its leaves by name, once the forward pass is traced, for those who write it out."""
        return {}


class Cache(ABC):
    """What a model remembers of its sequences, in all layers. Made by a model, opened by who runs it.

    In a step, a sequence goes on at the position behind its last one, with its tokens in order.
    """

    @property
    def is_uniform(self) -> bool:
        """Whether the sequences of a step must all have equally many tokens in it, those of each side by side."""
        return False

    @property
    @abstractmethod
    def used(self) -> int:
        """How many cells, or slots of states, hold something; 0 once all sequences are removed."""

    @abstractmethod
    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        """Take what is known so far; layers take their memory when they are first put."""

    def reserve(self) -> None:
        """Take, once all layers are known, the memory that moving takes what they hold."""

    @abstractmethod
    def plan(self, step: Step) -> CachePlan:
        """Find room for a step and take it; CacheFullError names sequence, need and room, and changes nothing."""

    @abstractmethod
    def worst(self, step: Step) -> CachePlan:
        """The plan of such a step with the longest history, to reserve memory by; takes no room."""

    @abstractmethod
    def bind(self, ctx: Context, plan: CachePlan) -> BoundCache:
        """Make the leaves of a kept context, for all steps of this key, filled for this one."""

    @abstractmethod
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Let `target` hold just the first `length` positions of `source`."""

    @abstractmethod
    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether a step may go on at `position`: all that it would look at is still here."""

    def last_resumable(self, sequence: int, position: int) -> int:
        """The last position up to this one that a step may go on at; 0 is always one, once all was removed."""
        return position if self.can_resume(sequence, position) else 0

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        """Forget the positions [begin, end), all from begin on without end; what follows moves down to begin.

        CacheShiftError if it cannot move, as nothing can turn its keys; it then holds what it held. Without an end
        nothing has to move; ask `can_resume` before going on at begin.
        """
        self.removal(sequence, begin, end)()

    @abstractmethod
    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        """Check all that `remove` needs, take the memory that it needs, and return what removes the range."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory."""

    def wipe(self, sequence: int) -> None:
        """Forget a sequence that may hold NaN or infinities, and overwrite what nobody holds.

        Cells that no token sees are part of products all the same, with a weight of 0, and 0 times NaN is NaN.
        """
        self.remove(sequence, 0)

    def rollback(self, step: Step) -> None:
        """Forget a step that failed or was cancelled."""
        for sequence in set(step.sequences.tolist()):
            first = int(step.positions[step.sequences == sequence].min())
            self.remove(sequence, first)
