"""A program that calls a kernel once, with the data of a failed call."""

from __future__ import annotations

from base64 import b85encode
from collections.abc import Callable, Iterator
from math import prod
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
from ..runner.replay import FEW, LONGEST
from ..suite.case import Call
from .one_kernel import OneKernelBackend, as_numpy, named

PACKED = "np.frombuffer(bytearray(zlib.decompress(base64.b85decode({data!r}))), np.{dtype})"


def program(backend: OneKernelBackend, call: Call, expected: Number | Array | None, dtype: DType) -> str:
    """The text of a program that makes a call's operands, calls the kernel, and prints its result of a dtype."""
    imports, kernel = _imported(backend.kernels[call.op], "kernel")
    lines = ["import base64, zlib", "import numpy as np", "from numpy import inf, nan", imports]
    kinds = {type(value) for value in call.args} & {DType, Yarn}
    lines += [f"from {kind.__module__} import {kind.__name__}" for kind in kinds]
    native = ""
    if backend.native not in (None, as_numpy):
        imports, native = _imported(backend.native, "native")
        lines += [imports, "from backbay_conformance import HostArray"]
    with TracedCall(backend, call) as traced:
        for name, operand in _operands(call):
            lines += _made(name, operand, traced, native)
    lines += [f"y = {kernel}({', '.join(_arguments(call))})", f"print({_result(call)})"]
    lines += _expected(expected, dtype)
    text = "\n".join(filter(None, lines)) + "\n"
    if len(text) > LONGEST:
        return "# the program is too large to print\n"
    return text if "zlib." in text else text.partition("\n")[2]


def _expected(expected: Number | Array | None, dtype: DType) -> list[str]:
    if expected is None or prod(expected.shape) > FEW:
        return []
    if not isinstance(expected, Number):
        return [f"print('expected', {expected.tolist()})"]
    within = result_bound(expected, dtype).tolist()
    return [f"print('expected', {expected.value.tolist()}, 'within', {within})"]


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
            yield from (_shown(f"{parameter.name}{i}", one) for i, one in enumerate(value))
        else:
            shown = _shown(parameter.name, value)
            yield f"{parameter.name}={shown}" if parameter.keyword_only else shown


def _shown(name: str, value: object) -> str:
    if isinstance(value, Operand):
        return name
    return f"DType.{value.name}" if isinstance(value, DType) else repr(value)


def _result(call: Call) -> str:
    return "y" if call.op.writes is None else call.op.parameters[call.op.writes].name


def _made(name: str, operand: Operand, traced: TracedCall, native: str) -> list[str]:
    """The lines that make an operand as the kernel gets it."""
    backend, call = traced.backend, traced.call
    assert isinstance(backend, OneKernelBackend)
    stored = backend.native is not None or call.op.moves or operand.dtype.is_integer
    if not stored and NUMPY.get(operand.dtype) != backend.float_dtype:
        return [f"{name} = {_array(operand.decoded.astype(backend.float_dtype))}"]
    whole, view = operand.stored.reshape(-1), name
    if operand.stored.ndim > 1:
        view = f"{name}.reshape{operand.stored.shape}"
    if operand.layout.steps and not any(step.makes for step in operand.layout.steps):
        whole, tensor = operand.layout.embed(operand.stored).reshape(-1), traced.tensors[operand]
        placed = strided(whole.view(np.uint8), tensor)
        view = f"np.ndarray({placed.shape}, {name}.dtype, {name}, {tensor.offset}, {placed.strides})"
    kind = ", True" if operand.dtype is DType.BF16 else ""
    view = f"{native}(HostArray({view}, {name}{kind}))" if native else view
    return [f"{name} = {_array(whole)}", *([] if view == name else [f"{name} = {view}"])]


def _array(array: Array) -> str:
    shape = "" if array.ndim == 1 else f".reshape{array.shape}"
    if array.size <= FEW:
        return f"np.array({array.reshape(-1).tolist()}, np.{array.dtype}){shape}"
    data = b85encode(compress(array.tobytes(), 9)).decode()
    return PACKED.format(data=data, dtype=array.dtype) + shape
