"""The base of caches that keep keys and values in cells."""

from __future__ import annotations

from backbay import BackbayError, Backend

from ..contract import Cache, CacheSizes
from .storage import Storage


class CellCache(Cache):
    """A cache with storage, from `open_store` to `close`."""

    _store: Storage | None = None

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def check_open(self) -> None:
        if self._store is None:
            raise BackbayError("the cache is not open")

    @property
    def storage(self) -> Storage:
        self.check_open()
        assert self._store is not None
        return self._store

    def open_store(self, backend: Backend, sizes: CacheSizes, cells: int) -> Storage:
        """Make the storage of `cells` cells; BackbayError if the cache is open."""
        for name in ("sequences", "capacity", "batch"):
            if getattr(sizes, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(sizes, name)}")
        if self._store is not None:
            raise BackbayError("the cache is open already; close it first")
        self._store, self._batch = Storage(backend, sizes.dtype, cells), sizes.batch
        return self._store

    @property
    def host_nbytes(self) -> int:
        """Bytes of the mask of the largest step."""
        return self.storage.mask_nbytes(self._batch)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
