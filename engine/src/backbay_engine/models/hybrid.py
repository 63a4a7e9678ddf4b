"""The frame of decoders with recurrent blocks, beside blocks with attention or alone."""

from __future__ import annotations

from backbay import Backend

from ..cache.attention.causal import CausalCache
from ..cache.contract import Cache
from ..cache.layered import LayeredCache
from ..cache.recurrent import RecurrentCache
from .decoder import Decoder
from .keys import POOLING
from .nn import Pooling


class HybridDecoder(Decoder):
    """A decoder whose blocks say whether they keep states, in `recurs`; the others keep keys and values."""

    def __init__(self, backend: Backend) -> None:
        if POOLING.of(backend.config, Pooling.NONE) != Pooling.NONE:
            raise POOLING.refuse(backend.config, "none (0): a recurrent model gives no vectors of texts")
        super().__init__(backend)

    def recurs(self, layer: int) -> bool:
        """Whether a block keeps states; by default all do."""
        return True

    def new_cache(self) -> Cache:
        recurrent = [self.recurs(layer) for layer in range(len(self.blocks))]
        if all(recurrent):
            return RecurrentCache()
        return LayeredCache([CausalCache(self.shift), RecurrentCache()], lambda layer: int(recurrent[layer]))
