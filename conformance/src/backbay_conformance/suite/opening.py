"""How a run opens its backend: with which options, and where it places everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backbay import BackendParams, DeviceInfo, GPULayers, GPULayersList, OptionError
from backbay.gguf import nearest


@dataclass(frozen=True)
class Opening:
    """What every backend of a run is opened with, unless a scenario asks for something else.

    options   options of the backend, as BackendParams has them
    device    the device on which everything is placed; empty: the backend chooses
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Opening:
        """An opening from what `as_dict` gave."""
        return cls(dict(data.get("options", {})), str(data.get("device", "")))

    def as_dict(self) -> dict[str, Any]:
        """The opening for JSON, without what is not set."""
        return {
            key: value for key, value in (("options", dict(self.options)), ("device", self.device)) if value
        }

    def params(self, given: BackendParams, blocks: int, devices: Sequence[DeviceInfo]) -> BackendParams:
        """`given`, with the options and the device; `blocks` are the model's, `devices` the backend's."""
        params = replace(given, options={**self.options, **given.options}) if self.options else given
        if not self.device or given.gpu_layers is not None:
            return params
        return replace(params, gpu_layers=self.layers(blocks, devices))

    def layers(self, blocks: int, devices: Sequence[DeviceInfo]) -> GPULayersList:
        """All layers on the device; OptionError if the backend does not have it."""
        known = {device.id: device for device in devices}
        if self.device not in known:
            raise OptionError(
                f"no device {self.device!r}{nearest(self.device, known)}; the backend's are {', '.join(known)}"
            )
        if not known[self.device].is_gpu:
            return GPULayersList()
        return GPULayersList([GPULayers(self.device, range(blocks + 1))])


PLAIN = Opening()
"""No options, and the backend places everything."""
