"""The expected result of a call and the allowed error of each element, for other harnesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import backbay
from backbay import BackbayError, CacheConfig, DType, Level
from backbay.gguf import nearest
from backbay.internals import REQUIRED
from backbay.plugin import KernelBackend, Op, Precision

from ..checks.judgement import cost_of, expect, flushed, left_open
from ..checks.traced_call import TracedCall
from ..draw.data import Numbers
from ..draw.layout import Layout
from ..draw.operand import Operand
from ..numbers.comparison import result_bound
from ..numbers.encoding import NUMPY, Array
from ..numbers.number import Number
from ..suite.case import call_of
from .one_kernel import dtype_of, op_of, precision_of


class Bound(NamedTuple):
    """The expected elements in float64, or as stored where bits must match, and the allowed error of each."""

    expected: Array
    error: Array


class NoKernelBackend(KernelBackend):
    """A backend that checks calls, and computes none."""

    contract_version = "1.2"


def bound(op: str | Op[Any, Any], inputs: Mapping[str, Any], precision: Precision | str = "f32") -> Bound:
    """The expected result of an op on NumPy arrays of reversed shapes, and the allowed error of each element.

    inputs      arrays and options by the names of the op's parameters. An array of stored elements whose dtype NumPy
                lacks comes with its dtype, as in ("bf16", array)
    precision   the dtype of sums, or "f16/f32": activations are rounded to f16, and sums are in f32

    An error is infinite where the op's documentation leaves the element open.
    """
    op, cost_precision = op_of(op), precision_of(precision)
    call = call_of(op, arguments(op, inputs), CacheConfig())
    if call is None or call.formula is None:
        raise BackbayError(f"{op.name} has no bounds: more than one result is right")
    with backbay.open(None, backend=NoKernelBackend) as backend, TracedCall(backend, call) as traced:
        dtype = traced.results[0].dtype
    cost = cost_of(call, Level.KERNEL, cost_precision)
    expected = expect(call, cost)[0]
    if not isinstance(expected, Number):
        return Bound(expected, np.zeros(expected.shape))
    error = result_bound(expected, dtype)
    if (other := flushed(call) if cost.flushes else None) is not None:
        second = expect(other, cost)[0]
        error = np.maximum(error, np.abs(second.value - expected.value) + result_bound(second, dtype))
    free = left_open(call, other)
    return Bound(expected.value, error if free is None else np.where(free, np.inf, error))


def arguments(op: Op[Any, Any], inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The complete arguments in the op's order."""
    names = [parameter.name for parameter in op.parameters]
    for name in inputs:
        if name not in names:
            raise BackbayError(
                f"{op.name} has no parameter {name!r}{nearest(name, names)}; it has {op.signature}"
            )
    given = [inputs.get(parameter.name, parameter.default) for parameter in op.parameters]
    missing = [name for name, value in zip(names, given, strict=True) if value is REQUIRED]
    if missing:
        raise BackbayError(f"{op.name} needs {', '.join(missing)}")
    operands = [op.parameters[i].name for i in op.operands]
    return tuple(
        _operand(value) if name in operands else value for name, value in zip(names, given, strict=True)
    )


def _operand(given: Any) -> Any:
    if given is None:
        return None
    if isinstance(given, tuple) and isinstance(given[0], (str, DType)):
        dtype, array = dtype_of(given[0]), np.asarray(given[1])
    elif isinstance(given, tuple):
        return tuple(map(_operand, given))
    else:
        array = np.asarray(given)
        known = {kind: dtype for dtype, kind in NUMPY.items() if dtype is not DType.BF16}
        if array.dtype not in known:
            raise BackbayError(
                f"no tensor has elements of {array.dtype}; there are {', '.join(map(str, known))}"
            )
        dtype = known[array.dtype]
    return Operand(dtype, (), Numbers(), Layout(), 0).of(array)
