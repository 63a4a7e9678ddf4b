"""A program that calls a kernel once, with the data of a failed call."""

from __future__ import annotations

from base64 import b85encode
from collections.abc import Callable, Iterator
from typing import Any
from zlib import compress

import numpy as np

from backbay import BackbayError, DType
from backbay.ops import Yarn
from backbay.plugin import strided

from ..checks.traced_call import TracedCall
from ..draw.operand import Operand
from ..numbers.comparison import result_bound
from ..numbers.encoding import NUMPY, Array
from ..numbers.number import Number
from ..report.report import Outcome
from ..runner.item_run import drawn_again
from ..runner.replay import FEW, LONGEST
from ..runner.selection import Item
from ..suite.case import Call
from ..suite.lab import Lab
from .one_kernel import OneKernel, as_numpy, named

PACKED = "np.frombuffer(bytearray(zlib.decompress(base64.b85decode({data!r}))), np.{dtype})"


def program(lab: Lab, item: Item, outcome: Outcome) -> str:
    """The text of the program for a failed call."""
    call, expected, _, dtypes = drawn_again(lab, item, outcome)
    backend = lab.backend
    assert isinstance(backend, OneKernel)
    imports, function = _imported(backend.kernels[call.op], "kernel")
    lines = ["import base64, zlib", "import numpy as np", "from numpy import inf, nan", imports]
    kinds = {type(value) for value in call.args} & {DType, Yarn}
    lines += [f"from {kind.__module__} import {kind.__name__}" for kind in kinds]
    way = ""
    if backend.native not in (None, as_numpy):
        imports, way = _imported(backend.native, "native")
        lines += [imports, "from backbay_conformance import HostArray"]
    with TracedCall(backend, call) as traced:
        for name, operand in _operands(call):
            lines += _made(name, operand, traced, way)
    lines += [f"y = {function}({', '.join(_arguments(call))})", f"print({_result(call)})"]
    for want, dtype in zip(expected[:1], dtypes, strict=False):
        value, bounded = (want.value, True) if isinstance(want, Number) else (want, False)
        if value.size <= FEW:
            within = f", 'within', {result_bound(want, dtype).tolist()}" if bounded else ""
            lines.append(f"print('expected', {value.tolist()}{within})")
    text = "\n".join(filter(None, lines)) + "\n"
    if len(text) > LONGEST:
        return "# the program is too large to print\n"
    return text if "zlib." in text else text.partition("\n")[2]


def _imported(function: Callable[..., Any] | None, instead: str) -> tuple[str, str]:
    """The line that imports a function, and its name; a function of the main program needs no import."""
    name = getattr(function, "__qualname__", "")
    if getattr(function, "__module__", "") == "__main__" and name.isidentifier():
        return "", name
    try:
        module, _, name = named(function).partition(":") if function is not None else ("", "", "")
    except BackbayError:
        return f"{instead} = ...  # {function!r}", instead
    return f"from {module} import {name.partition('.')[0]}", name


def _operands(call: Call) -> Iterator[tuple[str, Operand]]:
    for parameter, value in zip(call.op.parameters, call.args, strict=True):
        several = value if isinstance(value, tuple) else (value,)
        for i, operand in enumerate(several):
            if isinstance(operand, Operand):
                yield (f"{parameter.name}{i}" if parameter.variadic else parameter.name), operand


def _arguments(call: Call) -> Iterator[str]:
    """The arguments of the call, as core gives them to the kernel."""
    for parameter, value in zip(call.op.parameters, call.args, strict=True):
        if parameter.variadic:
            yield from (
                f"{parameter.name}{i}" if isinstance(v, Operand) else repr(v) for i, v in enumerate(value)
            )
        else:
            shown = parameter.name if isinstance(value, Operand) else repr(value)
            yield f"{parameter.name}={shown}" if parameter.keyword_only else shown


def _result(call: Call) -> str:
    return "y" if call.op.writes is None else call.op.parameters[call.op.writes].name


def _made(name: str, operand: Operand, traced: TracedCall, way: str) -> list[str]:
    """The lines that make an operand as the kernel gets it."""
    backend, call = traced.backend, traced.call
    assert isinstance(backend, OneKernel)
    kept = backend.native is not None or call.op.moves or operand.dtype.is_integer
    if not kept and NUMPY.get(operand.dtype) != backend.float_dtype:
        return [f"{name} = {_array(operand.decoded.astype(backend.float_dtype))}"]
    if any(step.makes for step in operand.layout.steps) or not operand.layout.steps:
        storage, view, placed = operand.stored, np.atleast_1d(operand.stored), ""
    else:
        storage = operand.layout.embed(operand.stored).reshape(-1)
        tensor = traced.tensors[operand]
        view = np.atleast_1d(strided(storage.view(np.uint8), tensor))
        placed = f"np.ndarray({view.shape}, {name}.dtype, {name}, {tensor.offset}, {view.strides})"
    if not way:
        return [
            f"{name} = {_array(storage if placed else view)}",
            *([f"{name} = {placed}"] if placed else []),
        ]
    brain = ", True" if operand.dtype is DType.BF16 else ""
    return [
        f"{name} = {_array(storage.reshape(-1))}",
        f"{name} = {way}(HostArray({placed or f'{name}.reshape{view.shape}'}, {name}{brain}))",
    ]


def _array(array: Array) -> str:
    shape = "" if array.ndim == 1 else f".reshape{array.shape}"
    if array.size <= FEW:
        return f"np.array({array.reshape(-1).tolist()}, np.{array.dtype}){shape}"
    data = b85encode(compress(array.tobytes(), 9)).decode()
    return PACKED.format(data=data, dtype=array.dtype) + shape
