"""The nodes of an ONNX model, as calls of the contract. The model is not run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backbay import BackbayError, DType, ModelFileError, Tensor, ops

from . import lowerings as lower
from .graph_tracer import GraphNode, GraphTracer, GraphValue, Lowering, require

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto, TypeProto

BATCH, OTHERS = 1, 128
"""The extents of dimensions that have names, not numbers: of an input's outermost dimension, and of all others."""
FEW = 64  # the most elements of a constant whose numbers are known, such as axes
DTYPES = {1: DType.F32, 6: DType.I32, 7: DType.I64, 10: DType.F16, 16: DType.BF16}
OWN = ("", "ai.onnx")  # the names of ONNX's own domain


def trace_onnx(tracer: GraphTracer, path: Path) -> None:
    """Trace a model's nodes; files in which its weights may lie are not opened."""
    try:
        import onnx
        from onnx import inliner
    except ImportError as error:
        told = 'to read an ONNX model, install the package onnx; in a clone of backbay: pip install "./conformance[onnx]"'
        raise BackbayError(told) from error
    found: object = "no nodes"
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
        model = inliner.inline_local_functions(model) if model.functions else model
    except Exception as error:  # noqa: BLE001 protobuf has errors of its own
        model, found = onnx.ModelProto(), error
    if not model.graph.node:
        raise ModelFileError(path, None, "a GGUF file, an ONNX model or a program of torch.export", found)
    graph = OnnxGraphTracer(tracer, model)
    for node in model.graph.node:
        graph.trace(node)


class OnnxGraphTracer:
    """A graph whose nodes are traced in turn: ONNX's rules infer each result from the operands' shapes and known numbers."""

    def __init__(self, tracer: GraphTracer, model: ModelProto) -> None:
        from onnx import helper, numpy_helper

        self.tracer, self.opsets = tracer, model.opset_import
        self.version = next((one.version for one in model.opset_import if one.domain in OWN), 1)
        self.types = {one.name: one.type for one in model.graph.value_info}
        self.data: dict[str, Any] = {}
        named: dict[str, int] = {}
        for value in model.graph.input:
            for axis, extent in enumerate(value.type.tensor_type.shape.dim):
                if not extent.HasField("dim_value"):
                    name = extent.dim_param or f"{value.name} {axis}"
                    extent.dim_value = named.setdefault(name, OTHERS if axis else BATCH)
            self.types[value.name] = value.type
        for weight in model.graph.initializer:
            self.types[weight.name] = helper.make_tensor_type_proto(weight.data_type, weight.dims)
            if prod(weight.dims) <= FEW and not weight.external_data:
                self.data[weight.name] = numpy_helper.to_array(weight)
        self.values = {name: _value(kind) for name, kind in self.types.items()}
        for weight in model.graph.initializer:
            self.values[weight.name].constant = True
            self.values[weight.name].numbers = self._numbers(weight.name)

    def _numbers(self, name: str) -> list[Any] | None:
        return self.data[name].reshape(-1).tolist() if name in self.data else None

    def trace(self, node: NodeProto) -> None:
        name = node.op_type if node.domain in OWN else f"{node.domain}.{node.op_type}"
        args = [self.values.setdefault(one, GraphValue()) if one else None for one in node.input]
        self._infer(node)
        results = [self.values.setdefault(one, GraphValue()) for one in node.output if one]
        lowering = LOWERINGS.get(name) or lower.SHARED.get(name.lower())
        used = [] if name in ("Shape", "Size") else args  # no elements are needed
        self.tracer.trace(GraphNode(name, lowering, used, self._attributes(node, lowering), results))

    def _infer(self, node: NodeProto) -> None:
        """Note the dtype and shape of each result, and the numbers of one that follows from few known numbers."""
        from onnx import helper, numpy_helper, shape_inference
        from onnx.reference import ReferenceEvaluator

        data = {one: self.data[one] for one in node.input if one in self.data}
        try:
            inputs = [helper.make_value_info(one, self.types[one]) for one in {*node.input} - {""}]
            known = [numpy_helper.from_array(array, one) for one, array in data.items()]
            alone = helper.make_graph([node], "node", inputs, [], initializer=known)
            model = helper.make_model(alone, opset_imports=self.opsets)
            for found in shape_inference.infer_shapes(model).graph.value_info:
                self.types[found.name], self.values[found.name] = found.type, _value(found.type)
            if node.op_type == "Shape":
                data = {one: np.broadcast_to(np.False_, self.values[one].extents) for one in node.input}
            first = self.values[node.output[0]]
            small = {*data} == {*node.input} and prod(first.extents) <= FEW
            if small and not any(attribute.g.node for attribute in node.attribute):  # of a loop
                evaluated = ReferenceEvaluator(node, opsets={"": self.version}).run(None, data)
                self.data[node.output[0]] = np.asarray(next(iter(evaluated)))
                first.numbers = self._numbers(node.output[0])
        except Exception:  # noqa: BLE001, S110 what breaks ONNX's rules, or is not in them, stays unknown
            pass

    def _attributes(self, node: NodeProto, lowering: Lowering | None) -> dict[str, Any]:
        """The node's attributes, without those that have their default and that the lowering does not take."""
        from onnx import defs

        given = _decoded({one.name: one for one in node.attribute})
        if lowering is None or not defs.has(node.op_type):
            return given
        declared = defs.get_schema(node.op_type, self.version).attributes
        usual = _decoded(
            {name: one.default_value for name, one in declared.items() if one.default_value.name}
        )
        taken = inspect.signature(lowering).parameters
        given = {**usual, **given}
        return {name: value for name, value in given.items() if name in taken or value != usual.get(name)}


def _value(kind: TypeProto) -> GraphValue:
    from onnx import TensorProto

    tensor = kind.tensor_type
    number = tensor.elem_type
    shape = tuple(extent.dim_value for extent in tensor.shape.dim)
    whole = tensor.HasField("shape") and all(extent.HasField("dim_value") for extent in tensor.shape.dim)
    return GraphValue(
        DTYPES.get(number) or TensorProto.DataType.Name(number).lower(), shape if whole else None
    )


def _decoded(attributes: Mapping[str, AttributeProto]) -> dict[str, Any]:
    from onnx import helper

    found = {name: helper.get_attribute_value(one) for name, one in attributes.items()}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def _gemm(
    g: GraphTracer,
    a: GraphValue,
    b: GraphValue,
    c: GraphValue | None = None,
    *,
    alpha: float = 1,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    y = lower.product(
        g, g.tensor(b) if transB else lower.turned(g, b), lower.turned(g, a) if transA else g.tensor(a)
    )
    y = y if alpha == 1 else g.op(ops.scale, y, alpha)
    return y if c is None else g.op(ops.add, y, c)


def _conv(
    g: GraphTracer, x: GraphValue, weight: GraphValue, bias: GraphValue | None = None, **named: Any
) -> Tensor:
    axes = len(x.extents) - 2
    pads = named.get("pads", [0] * 2 * axes)
    require(pads[:axes] == pads[axes:], "pads")
    require(named.keys() <= {"strides", "pads", "dilations", "kernel_shape"}, "attributes")
    ones = [1] * axes
    return lower.convolution(
        g, x, weight, bias, named.get("strides", ones), pads[:axes], named.get("dilations", ones)
    )


def _slice(
    g: GraphTracer,
    x: GraphValue,
    starts: GraphValue | Sequence[int],
    ends: GraphValue | Sequence[int],
    axes: GraphValue | Sequence[int] | None = None,
    steps: GraphValue | None = None,
) -> Tensor:
    y, low, high = g.tensor(x), lower.numbers(starts), lower.numbers(ends)
    places = range(len(low)) if axes is None else lower.numbers(axes)
    gaps = [1] * len(low) if steps is None else lower.numbers(steps)
    for start, end, axis, step in zip(low, high, places, gaps, strict=True):
        y = lower.sliced(g, y, x.dim(axis), start, end, step)
    return y


LOWERINGS: dict[str, Lowering] = {
    "Erf": lower.unary(ops.gelu_erf),  # the op that computes it
    "Swish": lower.unary(ops.silu),
    "Clip": lower.clamp,
    "Gemm": _gemm,
    "Conv": _conv,
    "Attention": lower.attention,
    "LayerNormalization": lambda g, x, weight, bias=None, *, axis, epsilon: g.op(
        ops.layer_norm, lower.innermost(x, axis), weight, bias, epsilon
    ),
    "RMSNormalization": lambda g, x, weight, *, axis, epsilon: g.op(
        ops.rms_norm, lower.innermost(x, axis), weight, epsilon
    ),
    "BatchNormalization": lambda g, x, weight, *_, epsilon, momentum: lower.batch_norm(g, x, weight),
    "ReduceMean": lower.reduced(ops.mean),
    "ReduceSum": lower.reduced(ops.sum_rows),
    "GlobalAveragePool": lambda g, x: lower.reduced(ops.mean)(g, x, range(2, len(x.extents)), keepdims=True),
    "Gather": lower.rows,
    "Concat": lambda g, *parts, axis: lower.concat(g, parts, axis),
    "Slice": _slice,
    "Transpose": lower.transposed,
}
