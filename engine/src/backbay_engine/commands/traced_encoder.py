"""An encoder's whole pass over one picture, traced to be looked into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray

from backbay import BackbayError, Backend, Context, Tensor

from ..images.encoder import Pass
from ..images.picture import Image
from ..images.prepared import Prepared
from ..llm import LLM


@final
@dataclass(frozen=True)
class Traced:
    """A forward pass in a context, and its named tensors."""

    ctx: Context
    result: Tensor
    taps: Mapping[str, Tensor]
    backend: Backend
    prefix: str = ""

    def values(self) -> dict[str, NDArray[Any]]:
        """The values of the named tensors."""
        self.ctx.compute(*self.taps.values())
        return {name: tensor.numpy() for name, tensor in self.taps.items()}


@contextmanager
def traced_encoder(llm: LLM, picture: Image | Prepared) -> Iterator[Traced]:
    """The encoder of a model over a picture."""
    encoder = llm.encoder
    if encoder is None:
        raise BackbayError("the model has no encoder")
    whole = Pass(encoder.backend, encoder.network, [llm.prepare(picture)], whole=True)
    try:
        start, *blocks = whole.states
        taps = {"encoder start": start, **{f"encoder blk.{n}": x for n, x in enumerate(blocks)}}
        taps["encoder rows"] = whole.result
        yield Traced(whole.ctx, whole.result, taps, encoder.backend, "encoder ")
    finally:
        whole.close()
