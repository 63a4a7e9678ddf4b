"""Which device runs what of a graph: where the weights are, where the data comes from, or the CPU, which runs all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from backbay import DType, Graph, Node, Op, Placement, UnsupportedOpError, ops

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library
from .device import Device

if TYPE_CHECKING:
    from ..ops.builder import Builder

PRODUCTS: tuple[Op[Any, Any], ...] = (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
WORTH_MOVING = 32  # tokens in a batch: from then on, weights in host memory are copied to a GPU for a product
INPUTS = 20  # of what the scheduler runs in one go: it ends the process at 30, and one op brings up to 10


@final
class Steer:
    """Follows the lowering of one graph from node to node, and settles in the end what runs where.

    `home` tells where a leaf or weight lies, and `product_home` where a copy of a weight does that serves products.
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
        self._device_of, self._product_home = device_of, product_home
        *self._others, self._cpu = devices
        self.current = self._cpu
        self._moves_weights = (graph.batch_size or 0) >= WORTH_MOVING
        self._of_node: dict[int, Device] = {}
        self._of_tensor: dict[int, Device] = {}

    def settle_leaf(self, node: Node, tensor: Ptr, device: Device) -> None:
        """Tell where a leaf or weight is."""
        self._of_node[node.index] = device
        self._of_tensor[_key(tensor)] = device

    def settle_copy(self, tensor: Ptr, device: Device) -> None:
        """Tell where a copy of a weight is."""
        self._of_tensor[_key(tensor)] = device

    def turn_to(self, node: Node) -> None:
        """What is added from now on belongs to this node."""
        self.current = self._of_node[node.index] = self._choose(node)

    def take(self, tensor: Ptr) -> None:
        """Take an op in, for the device of the current node."""
        self._of_tensor[_key(tensor)] = self.current

    # -- where a node belongs ----------------------------------------------------------------------------

    def _choose(self, node: Node) -> Device:
        """A write happens where the leaf is; other ops go where they are told to, or where their operands are."""
        assert node.op is not None
        if node.op.writes is not None:
            return self._of_node[node.storage.index]
        if node.placement.host or node.placement.layer is not None:
            return self._device_of(node.placement)
        roots = [operand.storage for operand in node.operands]
        weight = self._weight_device(node, roots)
        if weight is not None:
            return weight
        computed = [root for root in roots if root.op is not None]
        if computed:
            return self._of_node[max(computed, key=lambda root: root.index).index]
        elsewhere = [self._of_node[root.index] for root in roots if not self._of_node[root.index].is_cpu]
        return elsewhere[0] if elsewhere else self._cpu

    def _weight_device(self, node: Node, roots: Sequence[Node]) -> Device | None:
        weights = [root for root in roots if root.kind == "parameter"]
        if node.op in PRODUCTS and weights and weights[0] is roots[0]:
            copied = self._product_home(weights[0].leaf.name if weights[0].leaf else "")
            if copied is not None:
                return copied
        for weight in weights:
            # What belongs to no layer, such as rope's factors, attracts only if moving it would cost the most.
            if weight.placement.layer is not None or 2 * weight.nbytes > sum(root.nbytes for root in roots):
                return self._or_moved(node, self._of_node[weight.index])
        return None

    def _or_moved(self, node: Node, device: Device) -> Device:
        """A large batch is worth copying its weights to a GPU, but not over a network."""
        if device.is_cpu and self._moves_weights and node.op in PRODUCTS:
            return next((other for other in self._others if other.server is None), device)
        return device

    # -- what runs where ---------------------------------------------------------------------------------

    def settled(self, g: Builder) -> list[tuple[Ptr, Device]]:
        """Every op with its device, views left out, and what the scheduler needs between them."""
        found: list[tuple[Ptr, Device]] = []
        brought: set[tuple[str, int]] = set()
        here, inputs = self._cpu, 0
        for tensor in list(g.order):
            if tensor.op in self._library.view_ops:
                continue
            device = self._settled(tensor)
            inputs = inputs if device is here else 0
            here = device
            found += self._untangled(g, tensor, device)
            new = {(device.id, _key(source)) for source in self._elsewhere(tensor, device)} - brought
            if inputs + len(new) > INPUTS:
                found.append(self._pause(g, device))
                inputs = 0
            inputs += len(new)
            brought |= new
            found.append((tensor, device))
        return found

    def _untangled(self, g: Builder, tensor: Ptr, device: Device) -> list[tuple[Ptr, Device]]:
        """Copies for operands from elsewhere whose elements overlap: the scheduler takes none that are larger than
        what they look into.
        """
        made: list[tuple[Ptr, Device]] = []
        for index, source in enumerate(tensor.src):
            if source == NULL or self._where(source) is device or not self._is_tangled(source):
                continue
            copy, home = self._lib.ggml_cont(g.pool(), source), self._where(source)
            if not home.supports(copy):
                raise UnsupportedOpError(f"{home.id} does not run {self._library.describe(copy)}")
            tensor.src[index] = copy
            self._of_tensor[_key(copy)] = home
            made.append((copy, home))
        return made

    def _is_tangled(self, source: Ptr) -> bool:
        if source.view_src == NULL:
            return False
        rows = source.ne[1] * source.ne[2] * source.ne[3]
        size = self._lib.ggml_row_size(source.type, source.ne[0]) * rows
        return bool(size + source.view_offs > self._lib.ggml_nbytes(source.view_src))

    def _pause(self, g: Builder, device: Device) -> tuple[Ptr, Device]:
        """An op that nothing waits for, on another device: it divides a run of ops that takes more inputs from
        elsewhere than the scheduler can count.
        """
        one = g.constant(np.zeros(1, np.float32), DType.F32)
        return self._lib.ggml_cont(g.pool(), one), self._others[0] if device.is_cpu else self._cpu

    def _elsewhere(self, tensor: Ptr, device: Device) -> list[Ptr]:
        """The operands that do not lie on a device."""
        return [source for source in tensor.src if source != NULL and self._where(source) is not device]

    def _settled(self, tensor: Ptr) -> Device:
        """The device that was thought of, if it runs an op; else the CPU, unless the data must stay where it is."""
        key = _key(tensor)
        if tensor.view_src != NULL:
            device = self._where(tensor)
            candidates = [device]
        else:
            candidates = [self._of_tensor[key], self._cpu]
        for device in candidates:
            if device.supports(tensor):
                self._of_tensor[key] = device
                return device
        raise UnsupportedOpError(
            f"{candidates[0].id} does not run {self._library.describe(tensor)}"
            + (", and its result lies there" if tensor.view_src != NULL else ", and neither does the CPU")
        )

    def _where(self, tensor: Ptr) -> Device:
        """Where data lies; constants lie on the host."""
        root = tensor if tensor.view_src == NULL else tensor.view_src
        return self._of_tensor.get(_key(root), self._cpu)


def _key(tensor: Ptr) -> int:
    return int(ffi.cast("uintptr_t", tensor))
