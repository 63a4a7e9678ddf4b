"""A private device of torch, written in Python, for tests: its tensors hold tensors of the CPU.

As on a real device, operands must lie on it, and only copies cross. As some do, it lacks bfloat16 and float64.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME, ID = "pydevice", "PYDEVICE:0"
LACKS = torch.bfloat16, torch.float64
CROSSING = "aten::copy_", "aten::_to_copy"
FACTORIES = (
    "arange arange.start arange.start_step empty.memory_format empty_strided eye eye.m full ones zeros"
)


class DeviceTensor(torch.Tensor):
    """A tensor of the device."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Self:
        if held.dtype in LACKS:
            raise TypeError(f"{NAME} has no {held.dtype}")
        strides, offset, device = held.stride(), held.storage_offset(), torch.device(NAME, 0)
        with torch.inference_mode(False):  # a view of an ordinary tensor must be one
            made = torch.Tensor._make_wrapper_subclass(
                cls, held.shape, strides=strides, storage_offset=offset, dtype=held.dtype, device=device
            )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, leaves = op._schema.name, tree_leaves((args, kwargs))
        wrappers = {id(leaf.held): leaf for leaf in leaves if isinstance(leaf, cls)}
        for leaf in leaves:
            foreign = isinstance(leaf, torch.Tensor) and leaf.ndim and not isinstance(leaf, cls)
            if foreign and name not in CROSSING:
                raise RuntimeError(f"{name}: an operand lies on {leaf.device}")
        args, kwargs = tree_map_only(cls, lambda tensor: tensor.held, (args, dict(kwargs or {})))
        device = kwargs.pop("device", None)
        results = op(*args, **kwargs, **({} if device is None else {"device": "cpu"}))
        if device is not None and torch.device(device).type == "cpu":
            return results

        def wrapped(held: torch.Tensor) -> DeviceTensor:
            return wrappers[id(held)] if id(held) in wrappers else cls(held)

        return tree_map_only(torch.Tensor, wrapped, results)


def made(op: Any, *args: Any, **kwargs: Any) -> DeviceTensor:
    return DeviceTensor(op(*args, **{**kwargs, "device": "cpu", "pin_memory": False}))


class Module(_DummyBackendModule):
    """What torch asks about the device."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 3 << 30, 4 << 30


_setup_privateuseone_for_python_backend(NAME, Module())
for name in FACTORIES.split():
    op, _, overload = name.partition(".")
    factory = getattr(getattr(torch.ops.aten, op), overload or "default")
    torch.library.impl(f"aten::{name}", "PrivateUse1")(partial(made, factory))
