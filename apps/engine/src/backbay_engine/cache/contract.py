"""The contract of caches: plan a step, bind the cache to a traced step once, fill its leaves for each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from backbay import BackbayError, Backend, Context, DType, Tensor

from ..steps.step import Step

if TYPE_CHECKING:
    from .attention.media import MediaCrossAttentionCache
    from .cells.contents import CacheContents
    from .cells.rotation import KeyRotation

Shift: TypeAlias = Callable[[Context, int, Tensor, Tensor], Tensor]
"""(ctx, layer, keys (head_dim, kv_heads, cells), offsets i32 (cells,)) -> keys rotated by these offsets."""
ROUNDOFFS = {DType.F64: 2.0**-53, DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
"""The largest relative error of rounding to a float type."""


@dataclass(frozen=True)
class CacheSizes:
    sequences: int  # at the same time
    capacity: int  # tokens of each
    batch: int  # tokens of the largest step
    dtype: DType = DType.F16


@dataclass(frozen=True)
class CachePlan:
    """The cells that a step writes and sees. Steps with equal keys can share a traced context."""

    step: Step
    key: Hashable


P = TypeVar("P", bound=CachePlan)


def own_plan(kind: type[P], plan: CachePlan) -> P:
    """The plan, if it is of the cache's own kind; BackbayError if another kind of cache made it."""
    if not isinstance(plan, kind):
        raise BackbayError(f"a {type(plan).__name__} belongs to another kind of cache")
    return plan


@dataclass(frozen=True)
class AttentionOperands:
    """The keys and values of one layer, as a cache stores them, and the mask of a step.

    cached    whether values and mask are as the backend's CacheConfig wants them
    rotation  of the keys; None: they are as they were put
    """

    keys: Tensor  # (head_dim, kv_heads, history)
    values: Tensor  # (head_dim, kv_heads, history), or as the backend's CacheConfig permutes them
    mask: Tensor | None  # (history, tokens and padding)
    cached: bool = True
    rotation: KeyRotation | None = None

    def attend(
        self,
        ctx: Context,
        query: Tensor,
        scale: float,
        *,
        sinks: Tensor | None = None,
        vmla: Tensor | None = None,
        softcap: float = 0.0,
    ) -> Tensor:
        """The attention of queries (head_dim, heads, tokens), as scaled_dot_product_attention defines it."""
        if self.rotation is not None:
            query = self.rotation(ctx, query)
            if sinks is not None or softcap:
                self.rotation.keep_scores()
        return query.scaled_dot_product_attention(
            ctx,
            self.keys,
            self.values,
            self.mask,
            scale=scale,
            sinks=sinks,
            vmla=vmla,
            softcap=softcap,
            cache_config_applied=self.cached,
        )


class BoundCache(ABC):
    """A cache in one traced context."""

    @abstractmethod
    def fill(self, plan: CachePlan) -> None:
        """Write the locations and masks of a step; its plan must have this context's key."""

    @abstractmethod
    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        """Store a layer's keys and values, (head_dim, kv_heads, tokens); comes before `get`.

        Values that are a view of the keys' features may be stored only once.
        """

    @abstractmethod
    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> AttentionOperands:
        """The history of a layer. `spans=False` ignores the step's spans: causal attention throughout."""

    def named(self) -> dict[str, Tensor]:
        """The leaves by name, once the forward pass is traced; exported models use the names."""
        return {}


class Cache(ABC):
    """The state of all sequences in all layers. A model makes its cache; the runner opens it.

    In a step, a sequence continues at the position after its last one, its tokens in order.
    """

    @property
    def is_uniform(self) -> bool:
        """Whether all sequences of a step must have equally many tokens, each sequence's tokens adjacent."""
        return False

    @property
    def pictures(self) -> MediaCrossAttentionCache | None:
        """The cache of the pictures that text attends to; None if the model has none."""
        return None

    @property
    @abstractmethod
    def used(self) -> int:
        """The number of cells or states in use; 0 once all sequences are removed."""

    @abstractmethod
    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        """Open the cache; each layer's memory is allocated at its first `put`."""

    def reserve(self) -> None:
        """Once all layers are known, allocate the memory that moving cells needs."""

    @property
    def host_nbytes(self) -> int:
        """Bytes of the host that the open cache takes beside leaves: its records, and masks in the making."""
        return 0

    @abstractmethod
    def plan(self, step: Step) -> CachePlan:
        """Take cells for a step; CacheFullError names sequence, need and room, and changes nothing."""

    @abstractmethod
    def worst(self, step: Step) -> CachePlan:
        """The plan of a step of this shape with the longest history, to reserve memory; takes no cells."""

    @abstractmethod
    def bind(self, ctx: Context, plan: CachePlan) -> BoundCache:
        """Make the leaves in a context that serves all plans of this key, and fill them for this plan."""

    @abstractmethod
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Let `target` hold the first `length` positions of `source`, and nothing else."""

    @abstractmethod
    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether a step may continue at `position`: the cache still holds all that it would see."""

    def last_resumable(self, sequence: int, position: int) -> int:
        """The last position up to this one where a step may continue; 0, after removing everything, if there is none."""
        return position if self.can_resume(sequence, position) else 0

    @property
    def learns(self) -> bool:
        """Whether a sample of keys lets the cache store later keys better."""
        return False

    def learn(self, sequence: int) -> None:
        """Learn from the keys of a sequence, the only one, which must be removed then: its keys are stored as before."""

    def contents(self, sequence: int) -> CacheContents:
        """What the cache holds of a sequence, to restore it here or elsewhere."""
        raise BackbayError(f"a {type(self).__name__} gives no snapshots")

    def restore(self, sequence: int, contents: CacheContents) -> None:
        """Let a sequence, which was removed, hold what `contents` gave; on an error it holds nothing.

        ForeignSnapshotError if the contents are another model's, CacheFullError if there is no room.
        """
        raise BackbayError(f"a {type(self).__name__} restores no snapshots")

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        """Forget the positions [begin, end); later positions move down to begin. Without `end`, forget all from begin.

        CacheShiftError if later positions cannot move, because their keys cannot be rotated; the cache stays
        unchanged. Without `end` nothing moves; ask `can_resume` before continuing at begin.
        """
        self.removal(sequence, begin, end)()

    @abstractmethod
    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        """Check a removal and allocate the memory it needs; the result is a function that removes the range."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory."""

    def wipe(self, sequence: int) -> None:
        """Forget a sequence that may hold NaN or infinities, and overwrite all free cells.

        Masked cells still take part in products, with weight 0, and 0 times NaN is NaN.
        """
        self.remove(sequence, 0)

    def rollback(self, step: Step) -> None:
        """Forget a step that failed or was cancelled."""
        for sequence in set(step.sequences.tolist()):
            first = int(step.positions[step.sequences == sequence].min())
            self.remove(sequence, first)


class SingleCache(Cache):
    """A cache that is not made of others: open while it has sizes."""

    _sizes: CacheSizes | None = None

    @property
    def is_open(self) -> bool:
        return self._sizes is not None

    @property
    def sizes(self) -> CacheSizes:
        if self._sizes is None:
            raise BackbayError("the cache is not open")
        return self._sizes

    def check_closed(self, sizes: CacheSizes) -> None:
        """BackbayError if the cache is open, ValueError if it cannot be opened with these sizes."""
        for name in ("sequences", "capacity", "batch"):
            if getattr(sizes, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(sizes, name)}")
        if self.is_open:
            raise BackbayError("the cache is open already; close it first")

    def check(self, *sequences: int) -> None:
        count = self.sizes.sequences
        for sequence in sequences:
            if not 0 <= sequence < count:
                raise BackbayError(f"sequence must be in [0, {count}), got {sequence}")


def require_prefix(source: int, length: int, end: int) -> None:
    if not 0 <= length <= end:
        raise BackbayError(f"sequence {source} has {end} positions, so a prefix of {length} is impossible")


def require_next_positions(sequence: int, position: int, end: int) -> None:
    if position != end:
        raise BackbayError(f"sequence {sequence} continues at position {end}, not {position}")
