"""A graph as a session on the provider: its sizes are fixed, its nodes are standard ones, its leaves are inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from onnx import ModelProto

from backbay import DType, Graph, RefusalError
from backbay.internals import Array
from backbay.plugin import NUMPY, Cancel, decode

from ..lowering.graph_lowering import lower_graph
from ..lowering.kernel_view import LoweringSettings
from ..lowering.lowered_model import LoweredModel, binding_type
from ..ops import KERNELS
from ..plans.bound_graph import bound_shape, stored_shape
from ..plans.export import fix_sizes
from ..plans.io_binding import DirectIOBinding
from ..plans.plan import cancellable_run_options
from ..session.device import HOST
from ..session.providers import HOST_PROVIDER
from ..session.runtime import translate_errors
from .model_files import save_inputs, save_model
from .provider import Provider


@dataclass(frozen=True)
class SessionKey:
    """A graph to run on a provider; equal if all that a session depends on is equal."""

    provider: Provider
    threads: int
    key: str
    graph: Graph = field(compare=False, repr=False)
    save: str = ""  # a folder for the models


STANDARD = LoweringSettings(exact=True, usual=False, exported=True, standard=True)
FOREIGN, PLAIN = replace(STANDARD, foreign=True), replace(STANDARD, plain=True)


def provider_graph(request: SessionKey) -> ProviderGraph:
    """The session of a graph; RefusalError if the provider takes none of the nodes that the graph may become."""
    found = try_models(request)
    if isinstance(found, str):
        raise RefusalError(found)
    return found


@lru_cache(maxsize=512)  # a worker runs the same calls again and again, on backends that it opens anew
def try_models(request: SessionKey) -> ProviderGraph | str:
    """The session of the first nodes that the provider takes, plainer ones last; else why it refuses the first nodes."""
    own = request.provider.name == HOST_PROVIDER.name
    reasons: dict[bytes, str] = {}  # of refused models
    for settings in (STANDARD, PLAIN) if own else (FOREIGN, STANDARD, PLAIN):
        lowered = lower_graph(request.graph, KERNELS, settings)
        fixed = ModelProto()
        fixed.CopyFrom(lowered.model)
        fix_sizes(fixed, lowered, request.graph)
        model = fixed.SerializeToString()
        if model not in reasons:
            try:
                return ProviderGraph(request, lowered, model)
            except RefusalError as refusal:
                reasons[model] = refusal.reason
    return next(iter(reasons.values()))


class ProviderGraph:
    def __init__(self, request: SessionKey, lowered: LoweredModel, model: bytes) -> None:
        self._graph, self._lowered = request.graph, lowered
        self._sizes = lowered.sizes_of(request.graph)
        self._saved = save_model(request.save, model) if request.save else None  # until its inputs are, too
        self._session = request.provider.session(model, request.threads)

    def run(self, stored: Sequence[Array], cancel: Cancel | None = None) -> dict[int, Array]:
        """The results and the new values of written leaves, by node index, from the stored arrays by node index."""
        nodes, binding = self._graph.nodes, DirectIOBinding(self._session, HOST)
        held = []  # while the session runs
        for leaf in self._lowered.leaves:
            shape, dtype = bound_shape(leaf, self._graph, self._sizes)[::-1], nodes[leaf.index].dtype
            floats = leaf.form == "floats"
            array = decode(stored[leaf.index], dtype).astype(np.float32) if floats else stored[leaf.index]
            held.append(np.ascontiguousarray(array).reshape(shape))
            binding.input(leaf.name, binding_type(DType.F32 if floats else dtype), shape, held[-1])
        outputs = [(name, index, stored_shape(nodes[index])[::-1]) for name, index in self._lowered.results]
        outputs += [
            (state.name, state.index, self._sizes.all(state.shape)[::-1]) for state in self._lowered.states
        ]
        made: dict[int, Array] = {}
        for name, index, shape in outputs:
            made[index] = np.empty(shape, NUMPY.get(nodes[index].dtype, np.uint8))
            binding.output(name, binding_type(nodes[index].dtype), shape, made[index])
        if self._saved is not None:
            save_inputs(
                self._saved,
                {leaf.name: each for leaf, each in zip(self._lowered.leaves, held, strict=True)},
            )
            self._saved = None
        with translate_errors("running on the provider"), cancellable_run_options(cancel) as options:
            self._session.run_with_iobinding(binding.bound, options)
        return made
