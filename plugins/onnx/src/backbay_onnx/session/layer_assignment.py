"""The layers of a model on a GPU and on the CPU, and so the place of each leaf and each op."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import final

from backbay import GPULayers, Graph, Node, Placement, Spec
from backbay.gguf import ModelFile

from .device import HOST, Device

EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"


@final
@dataclass(frozen=True)
class LayerAssignment:
    """All layers on one device, or some of them on the CPU. One session runs them all, and copies values between the two.

    Each weight lies on one device. With all layers on a GPU, weights of no layer lie there, too: an embedding on the host
    would be copied in each step. Else they lie on the host; an embedding that is the output's weight as well lies with
    the output.
    """

    device: Device
    on_cpu: frozenset[int] = frozenset()  # layers that are not on the device
    output: int = 0
    tied: bool = False  # whether the embedding is the output's weight

    @property
    def splits(self) -> bool:
        return bool(self.on_cpu)

    def is_on_cpu(self, placement: Placement) -> bool:
        """Whether a leaf lies on the host. What has no place goes with the output."""
        layer = self.output if placement.layer is None else placement.layer
        return placement.host or self.device.is_host or layer in self.on_cpu

    def lies_on_device(self, spec: Spec, placement: Placement) -> bool:
        """Whether a leaf is memory of a device that has its own: floats are, the host reads integers and quantized leaves."""
        return self.device.has_memory and spec.dtype.is_float and not self.is_on_cpu(placement)

    def place_of_weight(self, name: str, placement: Placement) -> Placement:
        """The layer with which a weight lies, by the placement that core gave it."""
        if self.device.is_host or placement.layer is not None:
            return placement
        if name == EMBEDDINGS and self.tied:
            return Placement(layer=self.output)
        return placement if self.splits else Placement(layer=0)

    def is_resident(self, weight: Node) -> bool:
        """Whether a weight lies in memory of a device that has its own."""
        return self.device.has_memory and not self.runs_on_cpu(weight)

    def runs_on_cpu(self, node: Node) -> bool:
        """Whether the CPU runs an op. For a leaf, whether it runs the ops that write it, or that read it as a weight."""
        if self.device.is_host or not self.splits:
            return self.device.is_host
        if node.op is not None and node.op.writes is not None:
            node = node.storage
        weights = [each.storage for each in (node, *node.operands) if each.storage.kind == "parameter"]
        if node.placement.host and weights and weights[0].leaf is not None:
            return self.is_on_cpu(self.place_of_weight(weights[0].leaf.name, weights[0].placement))
        return self.is_on_cpu(node.placement)

    def key(self, graph: Graph) -> Hashable:
        """All that the model of a graph depends on beside its structure."""
        if self.device.is_host:
            return ()
        on_host = tuple(
            node.index for node in graph.of_kind("state") if not self.lies_on_device(node, node.placement)
        )
        return on_host, tuple(node.index for node in graph.nodes if self.splits and self.runs_on_cpu(node))


ON_HOST = LayerAssignment(HOST)


def assign_layers_of_model(
    device: Device, given: Sequence[GPULayers] | None, model: ModelFile | None, blocks: int
) -> LayerAssignment:
    """The layers in `given` on the device, the others on the CPU; without `given` or a model, all on the device."""
    if device.is_host or model is None:
        return LayerAssignment(device)
    layers = {layer for gpu in given or () for layer in gpu.layers}
    on_cpu = frozenset(range(blocks + 1)) - layers if layers else frozenset[int]()
    tied = EMBEDDINGS in model.tensors and OUTPUT not in model.tensors
    return LayerAssignment(device, on_cpu, blocks, tied)
