"""A traced graph as ONNX files that plain ONNX Runtime runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from backbay import BackbayError, Graph
from backbay.internals import Bytes, replacing

from ..lowering.graph_lowering import lower_graph
from ..lowering.kernel_view import LoweringSettings
from ..lowering.lowered_model import LeafInput, LoweredModel, TermValues
from ..lowering.model_builder import external_tensor
from ..ops import KERNELS
from ..weights.store import WeightStore, named_data
from .bound_graph import bound_shape, stored_shape

ALIGNMENT = 64
RESERVED = re.compile(r"((v|c|b|body|size|leaf|state|result|weight)\d+\W?.*)?", re.DOTALL)


def export(
    weights: WeightStore,
    graph: Graph,
    names: Mapping[int, str],
    folder: Path,
    *,
    exact: bool,
    standard: bool = False,
) -> Path:
    """Write a graph into a folder: `model.onnx`, and `weights.bin` beside it.

    The sizes are those of this graph. Leaves are the model's inputs. Written states are inputs and, with `_out` after
    their name, outputs. Without a name they are called leafN, stateN and resultN, by node index. Weights have the names
    of the model file. With `standard`, none of ONNX Runtime's own ops are used, only those of the ONNX standard.
    """
    for name in names.values():
        if RESERVED.fullmatch(name) or list(names.values()).count(name) > 1:
            raise BackbayError(f"{name!r} is taken by another value of the model; choose another name")
    settings = LoweringSettings(exact=exact, usual=False, exported=True, standard=standard, names=names)
    lowered = lower_graph(graph, KERNELS, settings)
    if standard and (own := sorted({node.op_type for node in lowered.model.graph.node if node.domain})):
        raise BackbayError(f"the model needs {', '.join(own)}, which has no form in standard ONNX ops here")
    folder.mkdir(parents=True, exist_ok=True)
    model = ModelProto()
    model.CopyFrom(lowered.model)
    fix_sizes(model, lowered, graph)
    path = folder / "model.onnx"
    with replacing(folder / "weights.bin", path) as (weights_file, model_file):
        _WeightsFile(weights, graph, weights_file).place(model, lowered)
        model_file.write(model.SerializeToString())
    return path


def fix_sizes(model: ModelProto, lowered: LoweredModel, graph: Graph) -> None:
    """Give a model the sizes of a graph: its inputs and outputs, and the constants in the place of its feeds."""
    fed = lowered.feeds.of(graph).arrays
    for name, array in fed.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    _drop_inputs(model, set(fed))
    sizes = lowered.sizes_of(graph)
    shapes = {leaf.name: bound_shape(leaf, graph, sizes) for leaf in lowered.leaves}
    shapes |= {name: stored_shape(graph.nodes[index]) for name, index in lowered.results}
    shapes |= {state.name: sizes.all(state.shape) for state in lowered.states}
    for value in (*model.graph.input, *model.graph.output):
        extents = shapes[value.name][::-1]
        for dim, extent in zip(value.type.tensor_type.shape.dim, extents, strict=True):
            dim.dim_value = extent


def _drop_inputs(model: ModelProto, names: set[str]) -> None:
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)


class _WeightsFile:
    """Writes weights one after the other, and their offsets into the model."""

    def __init__(self, weights: WeightStore, graph: Graph, file: Any) -> None:
        self._weights, self._graph, self._file = weights, graph, file

    def place(self, model: ModelProto, lowered: LoweredModel) -> None:
        weights = [leaf for leaf in lowered.leaves if self._graph.nodes[leaf.index].kind == "parameter"]
        for leaf in weights:
            self._place_input(model, leaf)
        _drop_inputs(model, {leaf.name for leaf in weights})
        files = {
            name: self._write(self._weights.packed(self._graph.nodes[index]).part(part))
            for name, index, part in lowered.parts
        }
        for tensor in model.graph.initializer:
            for entry in tensor.external_data if tensor.data_location == TensorProto.EXTERNAL else ():
                if entry.key == "location" and entry.value in files:
                    _move(tensor, files[entry.value])
                    break

    def _place_input(self, model: ModelProto, leaf: LeafInput) -> None:
        node = self._graph.nodes[leaf.index]
        shape = bound_shape(leaf, self._graph, TermValues())
        floats = leaf.form == "floats"
        data = self._weights.floats(node).view(np.uint8) if floats else named_data(node)[1]
        declared = next(value for value in model.graph.input if value.name == leaf.name)
        kind = declared.type.tensor_type.elem_type
        span = self._write(data), data.size
        model.graph.initializer.append(external_tensor(leaf.name, kind, shape[::-1], "weights.bin", span))

    def _write(self, data: Bytes) -> int:
        """Append data; the offset where they begin."""
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        begin = int(self._file.tell())
        self._file.write(data.data)  # numpy's tofile would not say why it failed
        return begin


def _move(tensor: TensorProto, begin: int) -> None:
    """Point a tensor to the common file, from a file of its own."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = "weights.bin"
        elif entry.key == "offset":
            entry.value = str(int(entry.value) + begin)
