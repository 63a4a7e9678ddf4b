"""An encoder's whole pass over one picture, traced to be looked into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray

from backbay import BackbayError, Backend, Context, Tensor

from ..images.inputs import Inputs
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
    network = encoder.network
    with encoder.backend.new_context() as ctx:
        inputs = Inputs(ctx, [llm.prepare(picture)])
        x = network.start(ctx.layer(0), inputs)
        taps, kept = {"encoder start": x}, dict[int, Tensor]()
        for layer in range(network.blocks):
            kept[layer] = x
            x = taps[f"encoder blk.{layer}"] = network.block(ctx.layer(layer), layer, x, inputs)
        kept[network.blocks] = x
        ends = [kept[layer] for layer in network.keeps]
        result = taps["encoder rows"] = network.finish(ctx.layer(network.blocks), x, ends, inputs)
        ctx.forward(result)
        yield Traced(ctx, result, taps, encoder.backend, "encoder ")
