"""A traced graph as ONNX files that plain ONNX Runtime runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from backbay import Graph, Node
from backbay.building import build_graph
from backbay.encoding import Bytes
from backbay.errors import BackbayError

from .lowering import LeafInput, Lowered, Lowering
from .plan import sizes_of, stored_shape

if TYPE_CHECKING:
    from backbay.context import Context

    from .backend import OnnxBackend

ALIGNMENT = 64


def export(ctx: Context, folder: Path) -> Path:
    """Write the graph given to `ctx.forward` into a folder: `model.onnx`, and `weights.bin` beside it.

    The sizes are those of this graph. What the context's leaves hold are the model's inputs; written states are
    inputs and, as they are afterwards, outputs. Names: leafN and stateN by the node's place in the graph, resultN
    for outputs; weights have the names of the model file. The backend must be loaded.
    """
    from .backend import OnnxBackend

    backend = ctx.backend
    if not isinstance(backend, OnnxBackend):
        raise BackbayError(f"only the onnx backend exports to ONNX, not {backend.name!r}")
    backend.check_runnable()
    graph = build_graph(ctx.recording, tuple(ctx.recording._roots))
    if not graph.outputs:
        raise BackbayError("there is nothing to export; give the outputs to ctx.forward")
    lowered = Lowering(graph, exact=backend.is_exact, prefixes=False).lower()
    folder.mkdir(parents=True, exist_ok=True)
    model = ModelProto()
    model.CopyFrom(lowered.model)
    _fix_sizes(model, lowered, graph)
    with (folder / "weights.bin").open("wb") as file:
        _Weights(backend, graph, file).place(model, lowered)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _fix_sizes(model: ModelProto, lowered: Lowered, graph: Graph) -> None:
    """What depends on sizes becomes constants."""
    fed = lowered.feeds.of(graph)
    for name, array in fed.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    _drop_inputs(model, set(fed))


def _drop_inputs(model: ModelProto, names: set[str]) -> None:
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)


class _Weights:
    """Writes weights one after the other, and says in the model where they lie."""

    def __init__(self, backend: OnnxBackend, graph: Graph, file: Any) -> None:
        self._backend, self._graph, self._file = backend, graph, file

    def place(self, model: ModelProto, lowered: Lowered) -> None:
        weights = [leaf for leaf in lowered.leaves if self._graph.nodes[leaf.index].kind == "parameter"]
        for leaf in weights:
            self._place_input(model, leaf)
        _drop_inputs(model, {leaf.name for leaf in weights})
        files = {
            name: self._write(self._backend.weights.packed(self._graph.nodes[index]).part(part))
            for name, index, part in lowered.parts
        }
        for tensor in model.graph.initializer:
            for entry in tensor.external_data if tensor.data_location == TensorProto.EXTERNAL else ():
                if entry.key == "location" and entry.value in files:
                    _move(tensor, files[entry.value])
                    break

    def _place_input(self, model: ModelProto, leaf: LeafInput) -> None:
        node = self._graph.nodes[leaf.index]
        shape = node.shape if leaf.shape is None else sizes_of(leaf.shape, self._graph)
        shape = stored_shape(node) if leaf.form == "raw" else shape
        data = self._data(node, leaf)
        declared = next(value for value in model.graph.input if value.name == leaf.name)
        kind = declared.type.tensor_type.elem_type
        tensor = TensorProto(
            name=leaf.name, data_type=kind, dims=shape[::-1], data_location=TensorProto.EXTERNAL
        )
        for key, value in (
            ("location", "weights.bin"),
            ("offset", str(self._write(data))),
            ("length", str(data.size)),
        ):
            tensor.external_data.add(key=key, value=value)
        model.graph.initializer.append(tensor)

    def _data(self, node: Node, leaf: LeafInput) -> Bytes:
        if leaf.form == "floats":
            return self._backend.weights.floats(node).view(np.uint8)
        assert node.leaf is not None
        assert node.leaf.buffer is not None
        return node.leaf.buffer.read()

    def _write(self, data: Bytes) -> int:
        """Where the data begin."""
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        self._file.flush()
        begin = int(self._file.tell())
        data.tofile(self._file)
        return begin


def _move(tensor: TensorProto, begin: int) -> None:
    """From a file of its own to a place in the common one."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = "weights.bin"
        elif entry.key == "offset":
            entry.value = str(int(entry.value) + begin)
