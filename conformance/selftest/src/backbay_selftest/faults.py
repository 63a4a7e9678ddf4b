"""Planted faults, and their register."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import getdoc, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbay import OPS, KernelBackend, Op, backends

from .fused import attention

Array = NDArray[Any]
Kind = str

KINDS: tuple[Kind, ...] = (
    "strides or layout ignored",
    "view offset ignored",
    "broadcast along the wrong axis",
    "in-place, aliasing, input overwritten",
    "32-bit index or grid overflow",
    "low-precision accumulation, overflow",
    "-inf, NaN, fully masked rows",
    "order of ties, sort sizes",
    "zero-size dimensions",
    "odd sizes, vector tails, head sizes",
    "out of bounds, uninitialised, padding",
    "RoPE variants",
    "quantization block edges, repack",
    "races, missing synchronisation",
    "scalar parameters ignored or swapped",
    "only in a fused or larger graph",
    "capability lies",
    "right on small, garbage on long inputs",
)
"""The classes of real backends' bugs."""

FAULTS: dict[str, PlantedFault] = {}
"""Every fault by its name, in order of declaration."""


class BoundCall:
    """A call of a kernel, or of a backend's method, with its arguments as attributes: `call.x`, `call.eps`.

    `name` is that of the op or method; `backend` is there for methods.
    """

    def __init__(
        self, name: str, arguments: dict[str, Any], run: Callable[..., Any], backend: Any = None
    ) -> None:
        self.name, self.backend = name, backend
        self._arguments, self._run = arguments, run

    def __getattr__(self, name: str) -> Any:
        return self._arguments[name]

    def right(self, **changed: Any) -> Any:
        """The result of the right kernel or method, with some arguments changed."""
        return self._run(**{**self._arguments, **changed})


@dataclass(frozen=True)
class PlantedFault:
    """A small, named override that makes a correct backend wrong in one way."""

    name: str
    kind: Kind
    like: str  # a real bug of the kind: L llama.cpp, O onnxruntime, T pytorch
    text: str  # a sentence of what is wrong
    of: tuple[Op[Any, Any] | str, ...]  # the kernels or methods that it replaces; nothing: the class itself
    wrong: Callable[..., Any]

    def plant(self, right: type[KernelBackend]) -> type[KernelBackend]:
        """A subclass of a correct backend with this fault in it."""
        if not self.of:
            made: type[KernelBackend] = self.wrong(right)
            made.name = self.name
            return made
        namespace: dict[str, Any] = {"name": self.name, "__doc__": self.text, "__module__": __name__}
        kernels = {op: self._kernel(right, op) for op in self.of if isinstance(op, Op)}
        if kernels:
            namespace["kernels"] = {**right.kernels, **kernels}
        for method in self.of:
            if isinstance(method, str):
                namespace[method] = self._method(right, method)
        return type(self.name, (right,), namespace)

    def _kernel(self, right: type[KernelBackend], op: Op[Any, Any]) -> Callable[..., Any]:
        wrong, inherited, own = self.wrong, FUSED.get(op.name, right.kernels[op]), op.signature

        def run(**arguments: Any) -> Any:
            args = [arguments.pop(name) for name in own.parameters]
            return op.spread(partial(inherited, **arguments))(*args)

        def kernel(*args: Any, **keywords: Any) -> Any:
            bound = own.bind(*args, **keywords)
            bound.apply_defaults()  # the shape of `contiguous` may be empty
            return wrong(BoundCall(op.name, bound.arguments, run))

        return kernel

    def _method(self, right: type[KernelBackend], name: str) -> Callable[..., Any]:
        wrong, inherited = self.wrong, getattr(right, name)
        own = signature(inherited)

        def method(backend: KernelBackend, *args: Any, **keywords: Any) -> Any:
            arguments = dict(own.bind(backend, *args, **keywords).arguments)
            del arguments["self"]
            return wrong(BoundCall(name, arguments, partial(inherited, backend), backend))

        return method


# Right kernels with more parameters than their op has, for faults to start from.
FUSED: dict[str, Callable[..., Any]] = {"scaled_dot_product_attention": attention}


def fault(
    kind: Kind, *of: Op[Any, Any] | str, like: str = ""
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a wrong kernel, a wrong method, or a function of the right class that makes a wrong one.

    In place of kernels and methods, a function of a BoundCall gives the wrong result.
    """

    def register(wrong: Callable[[Any], Any]) -> Callable[[Any], Any]:
        name = wrong.__name__
        if kind not in KINDS or name in FAULTS:
            raise ValueError(f"fault {name}: unknown kind {kind!r}, or declared twice")
        FAULTS[name] = PlantedFault(name, kind, like, getdoc(wrong) or "", of, wrong)
        return wrong

    return register


def reference() -> type[KernelBackend]:
    """The correct backend that faults are planted in, reached as any plugin is."""
    found = backends()["cpu_ref"].load()
    if not issubclass(found, KernelBackend):
        raise TypeError("faults are planted in a KernelBackend")
    return found


def rounded(x: Array, dtype: Any) -> Array:
    """x as a narrower float holds it, in x's own type."""
    with np.errstate(over="ignore"):
        return x.astype(dtype).astype(x.dtype)


def bfloat16(x: Array) -> Array:
    """x cut to the 8 bits of a bfloat16's significand, to nearest."""
    return significand(x, 8)


def significand(x: Array, bits: int) -> Array:
    """x rounded to a number of significant bits."""
    fraction, exponent = np.frexp(x)
    return np.where(np.isfinite(x), np.ldexp(np.round(np.ldexp(fraction, bits)), exponent - bits), x)


def named(*names: str) -> tuple[Op[Any, Any], ...]:
    """Several ops at once."""
    return tuple(OPS[name] for name in names)
