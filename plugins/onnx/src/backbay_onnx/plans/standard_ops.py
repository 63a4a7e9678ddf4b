"""Rewrites a model for engines that know the ops of the ONNX standard alone: ONNX Runtime's own ops are taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from backbay import BackbayError

from ..lowering.model_builder import CONTRIB, names_read

MIDDLE = {4: 8, 8: 128}  # the zero of codes, by their bits
TYPES = {4: TensorProto.UINT4, 8: TensorProto.UINT8}
CODES = "_codes"  # ends the name of weights that are declared anew


def use_standard_ops(model: ModelProto) -> None:
    """Replace ONNX Runtime's own ops, whose operands' ranks shape inference finds; BackbayError if one has no other form."""
    while left := sum(1 for _ in _own_nodes(model.graph)):
        inferred = shape_inference.infer_shapes(model).graph
        rewriting = _Rewriting(model.graph, dict(_ranks(inferred)))
        rewriting.rewrite(model.graph)
        if sum(1 for _ in _own_nodes(model.graph)) == left:
            ops = sorted({node.op_type for node in _own_nodes(model.graph)})
            raise BackbayError(
                f"the model needs {', '.join(ops)}, which has no form in standard ONNX ops here"
            )
    standard = [each for each in model.opset_import if each.domain != CONTRIB]
    del model.opset_import[:]
    model.opset_import.extend(standard)
    read = {name for node in model.graph.node for name in names_read(node)}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]  # others were declared anew
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _own_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        if node.domain == CONTRIB:
            yield node
        for body in _bodies(node):
            yield from _own_nodes(body)


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g


def _ranks(graph: GraphProto) -> Iterator[tuple[str, int]]:
    """Names of values with their ranks, as far as they are known, also in loop bodies."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            yield value.name, len(value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield tensor.name, len(tensor.dims)
    for node in graph.node:
        for body in _bodies(node):
            yield from _ranks(body)


@final
class _Rewriting:
    """One pass over a graph."""

    def __init__(self, graph: GraphProto, ranks: Mapping[str, int]) -> None:
        self._graph, self._ranks = graph, ranks
        self._held = {tensor.name: tensor for tensor in graph.initializer}
        self._made: list[NodeProto] = []
        self._forms: Mapping[str, Callable[[NodeProto, Mapping[str, Any]], str | None]] = {
            "FusedMatMul": self._product,
            "MatMulNBits": self._packed_product,
            "MultiHeadAttention": self._attention,
        }

    def rewrite(self, graph: GraphProto) -> None:
        nodes: list[NodeProto] = []
        for node in graph.node:
            for body in _bodies(node):
                self.rewrite(body)
            nodes += self._standard(node)
        del graph.node[:]
        graph.node.extend(nodes)

    def _standard(self, node: NodeProto) -> list[NodeProto]:
        """The nodes in place of one; the node itself if it is standard, or its form is not known yet."""
        if node.domain != CONTRIB or node.op_type not in self._forms:
            return [node]
        self._made = []
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if self._forms[node.op_type](node, attributes) is None:
            return [node]
        self._made[-1].output[0] = node.output[0]
        return self._made

    def _add(self, node: NodeProto, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{node.name}_{len(self._made)}"
        self._made.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        return name

    def _constant(self, node: NodeProto, array: Any) -> str:
        name = f"{node.name}_{len(self._made)}_c{len(self._held)}"
        self._hold(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _hold(self, tensor: TensorProto) -> None:
        self._held[tensor.name] = tensor
        self._graph.initializer.append(tensor)

    # -- forms -------------------------------------------------------------------------------------------

    def _product(self, node: NodeProto, given: Mapping[str, Any]) -> str | None:
        first, second = node.input
        rank = self._ranks.get(second)
        if rank is None:
            return None
        axes = list(range(rank))
        if given.get("transBatchB"):
            axes = [*axes[1:-1], axes[0], axes[-1]]
        if given.get("transB"):
            axes[-2:] = axes[:-3:-1]
        if axes != list(range(rank)):
            second = self._add(node, "Transpose", second, perm=axes)
        made = self._add(node, "MatMul", first, second)
        alpha = given.get("alpha", 1.0)
        return made if alpha == 1.0 else self._add(node, "Mul", made, self._constant(node, np.float32(alpha)))

    def _packed_product(self, node: NodeProto, given: Mapping[str, Any]) -> str | None:
        x, codes, scales, *zeros = node.input
        if codes not in self._held or (zeros and self._reads_anything(zeros[0])):
            return None
        n, k, bits, block = (int(given[key]) for key in ("N", "K", "bits", "block_size"))
        inputs = [self._declared(codes, bits, (n, k)), self._declared_scales(scales, (n, k // block))]
        if not zeros:
            inputs.append(self._middle(bits, n, k // block))
        weight = self._add(node, "DequantizeLinear", *inputs, axis=1, block_size=block)
        return self._add(node, "MatMul", x, self._add(node, "Transpose", weight, perm=[1, 0]))

    def _reads_anything(self, zeros: str) -> bool:
        return zeros not in self._held or bool(numpy_helper.to_array(self._held[zeros]).any())

    def _declared(self, name: str, bits: int, shape: tuple[int, ...]) -> str:
        """The same bytes as a matrix of codes."""
        if name + CODES not in self._held:
            tensor = TensorProto()
            tensor.CopyFrom(self._held[name])
            tensor.name, tensor.data_type = name + CODES, TYPES[bits]
            tensor.dims[:] = shape
            self._hold(tensor)
        return name + CODES

    def _declared_scales(self, name: str, shape: tuple[int, ...]) -> str:
        tensor = self._held[name]
        if tuple(tensor.dims) != shape:
            tensor.dims[:] = shape
        return name

    def _middle(self, bits: int, n: int, blocks: int) -> str:
        """Zeros of codes for each block, in the middle of their range."""
        name = f"middle_of_{bits}_bits_{n}_{blocks}"
        if name not in self._held:
            count = -(-n * blocks * bits // 8)
            raw = bytes([MIDDLE[bits] | MIDDLE[bits] << 4 if bits == 4 else MIDDLE[bits]]) * count
            self._hold(helper.make_tensor(name, TYPES[bits], (n, blocks), raw, raw=True))
        return name

    def _attention(self, node: NodeProto, given: Mapping[str, Any]) -> str | None:
        if len(node.input) != 3:
            return None
        heads = self._constant(node, np.array([0, 0, int(given["num_heads"]), -1], np.int64))
        q, k, v = (self._add(node, "Reshape", each, heads) for each in node.input)
        q, v = (self._add(node, "Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        scores = self._add(node, "MatMul", q, self._add(node, "Transpose", k, perm=[0, 2, 3, 1]))
        scores = self._add(node, "Mul", scores, self._constant(node, np.float32(given["scale"])))
        mixed = self._add(node, "MatMul", self._add(node, "Softmax", scores, axis=-1), v)
        rows = self._add(node, "Transpose", mixed, perm=[0, 2, 1, 3])
        return self._add(node, "Reshape", rows, self._constant(node, np.array([0, 0, -1], np.int64)))
