"""Which device runs which op: the device of its weights, else of its data, else the CPU, which runs every op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Protocol, final

import numpy as np

from backbay import DType, Graph, Node, Op, Placement, UnsupportedOpError, ops
from backbay.internals import Array

from ..library.abi import NULL, Ptr, dtype_of, tensor_address, view_owner
from ..library.library import Library
from .device import Device

PRODUCTS: tuple[Op[Any, Any], ...] = (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
WORTH_MOVING = 32  # tokens: for such a batch, weights in host memory are copied to a GPU
MOST_INPUTS = 20  # of a run of ops on one device: ggml's scheduler aborts at 30, and one op brings up to 10


class GgmlGraph(Protocol):
    """A graph of ggml ops to which more may be added."""

    order: list[Ptr]

    def pool(self) -> Ptr: ...

    def constant(self, array: Array, dtype: DType) -> Ptr: ...

    def view(self, base: Ptr, dtype: DType, ne: Sequence[int], nb: Sequence[int], offset: int) -> Ptr: ...


@final
class OpPlacer:
    """Follows the lowering of one graph node by node; at its end, it fixes the device of each op.

    `device_of` tells the device of a placement. `product_home` tells the device with a copy of a weight that lies on
    the host, for products with it.
    """

    def __init__(
        self,
        library: Library,
        devices: Sequence[Device],
        graph: Graph,
        device_of: Callable[[Placement], Device],
        product_home: Callable[[str], Device | None],
    ) -> None:
        self._library, self._lib = library, library.lib
        self._device_of_placement, self._product_home = device_of, product_home
        *self._others, self._cpu = devices
        self.current = self._cpu
        self._moves_weights = (graph.batch_size or 0) >= WORTH_MOVING
        self._of_node: dict[int, Device] = {}
        self._of_tensor: dict[int, Device] = {}

    def add_leaf(self, node: Node, tensor: Ptr, device: Device) -> None:
        self._of_node[node.index] = device
        self.add_copy(tensor, device)

    def add_copy(self, tensor: Ptr, device: Device) -> None:
        self._of_tensor[tensor_address(tensor)] = device

    def start_node(self, node: Node) -> None:
        self.current = self._of_node[node.index] = self._device_for(node)

    def add_op(self, tensor: Ptr) -> None:
        """An op of the current node, or a tensor that shares the data of one on its device."""
        self._of_tensor[tensor_address(tensor)] = self.current

    # -- the device of a node ----------------------------------------------------------------------------

    def _device_for(self, node: Node) -> Device:
        """A write runs where its leaf lies; another op where it was placed, or where its operands lie."""
        assert node.op is not None
        if node.op.writes is not None:
            return self._of_node[node.storage.index]
        if node.placement.host or node.placement.layer is not None:
            return self._device_of_placement(node.placement)
        roots = [operand.storage for operand in node.operands]
        of_weights = self._device_of_weights(node, roots)
        if of_weights is not None:
            return of_weights
        computed = [root for root in roots if root.op is not None]
        if computed:
            return self._of_node[max(computed, key=lambda root: root.index).index]
        elsewhere = [self._of_node[root.index] for root in roots if not self._of_node[root.index].is_cpu]
        return elsewhere[0] if elsewhere else self._cpu

    def _device_of_weights(self, node: Node, roots: Sequence[Node]) -> Device | None:
        weights = [root for root in roots if root.kind == "parameter"]
        if node.op in PRODUCTS and weights and weights[0] is roots[0]:
            copied = self._product_home(weights[0].leaf.name if weights[0].leaf else "")
            if copied is not None:
                return copied
        for weight in weights:
            # A weight of no layer, such as rope's factors, decides only if it is larger than the other operands.
            if weight.placement.layer is not None or 2 * weight.nbytes > sum(root.nbytes for root in roots):
                device = self._of_node[weight.index]
                if not device.is_cpu or not self._moves_weights or node.op not in PRODUCTS:
                    return device
                # A GPU in place of the CPU, as the batch is worth copying the weights; never over a network.
                return next((other for other in self._others if other.server is None), device)
        return None

    # -- the device of an op -----------------------------------------------------------------------------

    def placed_ops(self, graph: GgmlGraph) -> list[tuple[Ptr, Device]]:
        """Every op but views with its device, and the ops that ggml's scheduler needs between them."""
        self._graph = graph
        found: list[tuple[Ptr, Device]] = []
        brought: set[tuple[str, int]] = set()  # operands that a device has got from elsewhere
        here, inputs = self._cpu, 0
        lowered = [tensor for tensor in graph.order if tensor.op not in self._library.view_ops]
        for tensor in chain.from_iterable(map(self._ops_to_run, lowered)):
            device = self._supporting_device(tensor)
            inputs = inputs if device is here else 0
            here = device
            found += self._copies_of_overlapping(tensor, device)
            for index, source in self._misread(tensor, device):
                tensor.src[index] = self._copied(source, device)
                found.append((tensor.src[index], device))
            elsewhere = self._operands_elsewhere(tensor, device)
            new = {(device.id, tensor_address(source)) for _, source in elsewhere} - brought
            if inputs + len(new) > MOST_INPUTS:
                found.append(self._divider(device))
                inputs = 0
            inputs += len(new)
            brought |= new
            found.append((tensor, device))
        return found

    def _copied(self, source: Ptr, device: Device) -> Ptr:
        copy = self._lib.ggml_cont(self._graph.pool(), source)
        self._of_tensor[tensor_address(copy)] = device
        return copy

    # -- writes into leaves that lie on a device without the op ------------------------------------------

    def _ops_to_run(self, tensor: Ptr) -> Sequence[Ptr]:
        """The op itself; in place of a write that its leaf's device does not run, what writes through the CPU."""
        home = self._device_of(tensor)
        if tensor.view_src == NULL or home.is_cpu or self._runs(tensor, home, is_write=True):
            return [tensor]
        return self._through_the_cpu(tensor, home)

    def _through_the_cpu(self, tensor: Ptr, home: Device) -> Sequence[Ptr]:
        """A copy of the whole leaf on the CPU, the write into it, and the copy back."""
        leaf = view_owner(tensor)
        words = self._words(leaf)
        copy = self._copied(words, self._cpu)
        write = self._same_view(copy, tensor)
        write.op, write.op_params = tensor.op, tensor.op_params
        for index, source in enumerate(tensor.src):
            if source != NULL:
                write.src[index] = self._same_view(copy, source) if view_owner(source) == leaf else source
        back = self._lib.ggml_cpy(self._graph.pool(), copy, words)
        if not home.supports(back) or not self._cpu.supports(write):
            raise UnsupportedOpError(
                f"{home.id} does not run {self._library.describe(tensor)}, and its result lies there"
            )
        tensor.op, tensor.src = self._library.none_op, [NULL] * len(tensor.src)  # now a view of the leaf
        return [copy, write, back]

    def _words(self, leaf: Ptr) -> Ptr:
        """All of a leaf's memory as integers, which every device copies bit by bit; or as f16, if it does not divide."""
        nbytes = self._lib.ggml_nbytes(leaf)
        dtype = DType.F16 if nbytes % DType.I32.type_size else DType.I32
        if nbytes % dtype.type_size:
            raise UnsupportedOpError(
                f"{self._device_of(leaf).id} copies only even numbers of bytes, not {nbytes}"
            )
        strides = (dtype.type_size, nbytes, nbytes, nbytes)
        return self._graph.view(leaf, dtype, (nbytes // dtype.type_size, 1, 1, 1), strides, 0)

    # -- operands that do not lie as the device reads them -----------------------------------------------

    def _copies_of_overlapping(self, tensor: Ptr, device: Device) -> list[tuple[Ptr, Device]]:
        """Copies of operands from elsewhere whose elements overlap, or whose strides the device would misread.

        ggml's scheduler moves no view that is larger than the tensor that it looks into, and moves others with their strides.
        """
        made: list[tuple[Ptr, Device]] = []
        for index, source in self._operands_elsewhere(tensor, device):
            if not self._overlaps(source) and not device.misreads(tensor, source):
                continue
            home = self._device_of(source)
            operand = copy = self._copied(source, home)
            if not home.supports(copy):  # move all that the view looks into
                home, copy = device, self._copied(view_owner(source), device)
                operand = self._same_view(copy, source)
            if not home.supports(copy):
                raise UnsupportedOpError(f"{home.id} does not run {self._library.describe(copy)}")
            tensor.src[index] = operand
            made.append((copy, home))
        return made

    def _same_view(self, tensor: Ptr, view: Ptr) -> Ptr:
        """A view that looks into a tensor as another view looks into its own."""
        return self._graph.view(tensor, dtype_of(view), view.ne, view.nb, view.view_offs)

    def _misread(self, tensor: Ptr, device: Device) -> Iterable[tuple[int, Ptr]]:
        """The operands on a device that it would read in the wrong place, with their positions."""
        for index, source in enumerate(tensor.src):
            if source == NULL or self._device_of(source) is not device or device.reads(tensor, source):
                continue
            # Else it is what a write writes into.
            if tensor.view_src == NULL or view_owner(source) != view_owner(tensor):
                yield index, source

    def _overlaps(self, source: Ptr) -> bool:
        if source.view_src == NULL:
            return False
        rows = source.ne[1] * source.ne[2] * source.ne[3]
        size = self._lib.ggml_row_size(source.type, source.ne[0]) * rows
        return bool(size + source.view_offs > self._lib.ggml_nbytes(source.view_src))

    def _divider(self, device: Device) -> tuple[Ptr, Device]:
        """An unused op on another device: it ends a run of ops whose inputs are too many for ggml's scheduler."""
        one = self._graph.constant(np.zeros(1, np.float32), DType.F32)
        other = self._others[0] if device.is_cpu else self._cpu
        return self._copied(one, other), other

    def _operands_elsewhere(self, tensor: Ptr, device: Device) -> Iterable[tuple[int, Ptr]]:
        for index, source in enumerate(tensor.src):
            if source != NULL and self._device_of(source) is not device:
                yield index, source

    def _supporting_device(self, tensor: Ptr) -> Device:
        """The chosen device if it runs the op, else the CPU; for a write the device of its leaf."""
        key = tensor_address(tensor)
        is_write = tensor.view_src != NULL
        candidates = [self._device_of(tensor)] if is_write else [self._of_tensor[key], self._cpu]
        for device in candidates:
            if self._runs(tensor, device, is_write=is_write):
                self._of_tensor[key] = device
                return device
        raise UnsupportedOpError(
            f"{candidates[0].id} does not run {self._library.describe(tensor)}, and neither does the CPU"
        )

    def _runs(self, tensor: Ptr, device: Device, *, is_write: bool) -> bool:
        """Whether a device runs an op, and copies all operands that it would read in the wrong place."""
        if not device.supports(tensor) or (is_write and not device.writes(tensor)):
            return False
        for _, source in self._misread(tensor, device):
            copy = self._lib.ggml_cont(self._graph.pool(), source)
            if not (device.supports(copy) and device.reads(copy, source)):
                return False
        return True

    def _device_of(self, tensor: Ptr) -> Device:
        """The device that holds a tensor's data; constants lie on the host."""
        return self._of_tensor.get(tensor_address(view_owner(tensor)), self._cpu)
