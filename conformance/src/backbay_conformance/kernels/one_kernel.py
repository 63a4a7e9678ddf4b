"""The backend of one kernel: its options name the function, so that another process opens the same one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from backbay import OPS, BackbayError, BackendParams, DType, DTypeError
from backbay.discovery import entry
from backbay.gguf import ModelFile, nearest
from backbay.internals import same_shape
from backbay.plugin import KernelBackend, Node, Op, Option, Precision, Spec, Support, unsupported

from ..fault import Fault
from ..numbers.encoding import SIGNIFICAND, Array
from ..runner.selection import SelectionError
from .host_array import HostArray, on_host

Kernel = Callable[..., Any]


def imported(function: Kernel | str) -> Kernel:
    """The function that is given, or named as `module:function`."""
    if callable(function):
        return function
    name, _, attribute = function.partition(":")
    if not (name and attribute):
        raise BackbayError(f"a function must be given as module:function, got {function!r}")
    entry(function)  # from now on, a module that is not found elsewhere may lie in the current folder
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:
        raise BackbayError(f"{function} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        found = attrgetter(attribute)(module)
    except AttributeError:
        told = f"module {name!r} has no {attribute!r}{nearest(attribute, vars(module))}"
        raise BackbayError(told) from None
    if not callable(found):
        raise BackbayError(f"{function} is no function, but {found!r}")
    return found  # type: ignore[no-any-return]


def named(function: Kernel) -> str:
    """The name of a function, as `module:function`; BackbayError if another process cannot import it."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function))
    text = f"{module}:{name}"
    if module == "__main__" or "<" in name or imported(text) is not function:
        raise BackbayError(f"{text} cannot be imported by another process: put it into a module of its own")
    return text


def op_of(name: str | Op[Any, Any]) -> Op[Any, Any]:
    op = name if isinstance(name, Op) else OPS.get(name)
    if op is None:
        raise SelectionError(f"no op {name!r}{nearest(str(name), OPS)}")
    if op.view or op.inline:
        why = "a view, which core resolves" if op.view else "traced as other ops"
        raise SelectionError(f"{op.name} has no kernel: it is {why}")
    return op


def precision_of(given: Precision | str | Sequence[str]) -> Precision:
    """The precision that is given, as such, by its fields' texts, or as the dtype of sums or `activations/sums`."""
    if isinstance(given, Precision):
        return given
    if not isinstance(given, str):
        activation, sums, flushes, weight = given
        return Precision(dtype_of(activation), dtype_of(sums), flushes == "True", dtype_of(weight))
    activation, _, sums = given.rpartition("/")
    accumulate = dtype_of(sums)
    if accumulate not in SIGNIFICAND:
        raise BackbayError(f"sums are in one of {', '.join(map(str, SIGNIFICAND))}, not {sums}")
    return Precision(dtype_of(activation or "f32"), accumulate)


def dtype_of(given: DType | str) -> DType:
    names = {str(dtype): dtype for dtype in DType}
    if str(given) not in names:
        raise BackbayError(f"no dtype {given!r}{nearest(str(given), names)}")
    return names[str(given)]


def dtypes_of(given: Iterable[DType | str] | str) -> tuple[DType, ...]:
    given = given.split(",") if isinstance(given, str) else given
    return tuple(dtype_of(dtype) for dtype in given if dtype != "")


def native_of(given: Kernel | str | bool) -> Kernel | None:
    """The function that makes operands of HostArrays, for a kernel that gets them as they are stored."""
    if given is True or given == "True":
        return as_numpy
    return imported(given) if given else None


def as_numpy(operand: HostArray) -> Array:
    return operand.array


def add_folders(text: str) -> str:
    """Import from these folders, too."""
    sys.path += [folder for folder in text.split(os.pathsep) if folder not in sys.path]
    return text


class OneKernelBackend(KernelBackend):
    """A backend that has one kernel, the function under test."""

    contract_version = "1.2"
    options: ClassVar[Mapping[str, Option]] = {
        "folders": Option("", add_folders, "where modules are imported from"),
        "kernel": Option(None, imported, "a function, or module:function"),
        "op": Option(None, op_of, "the op that the kernel computes"),
        "native": Option(None, native_of, "True, or a function that makes operands of HostArrays"),
        "precision": Option(precision_of("f32"), precision_of, "the types of activations and sums"),
        "dtypes": Option((), dtypes_of, "the dtypes that the kernel takes"),
    }

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        super().__init__(model, params)
        given = self.option_values
        op, kernel, self.native = given["op"], given["kernel"], given["native"]
        op.check_takes(kernel)
        wide = given["precision"].accumulate is DType.F64
        vars(self).update(kernels={op: kernel}, float_dtype=np.float64 if wide else np.float32)
        self._calls = {op: op.spread(kernel)}

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        return self.option_values["precision"]  # type: ignore[no-any-return]

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        gap = self._gap(specs)
        return unsupported(gap) if gap else super().supports(op, specs)

    def _gap(self, specs: Sequence[object]) -> str:
        """The reason if the kernel is not to be called with these operands; else empty."""
        dtypes = self.option_values["dtypes"]
        others = [s.dtype for s in specs if isinstance(s, Spec) and not s.dtype.is_integer]
        return next(
            (f"{dtype} is none of the dtypes" for dtype in others if dtypes and dtype not in dtypes), ""
        )

    def run_node(self, node: Node, arrays: Sequence[Array]) -> None:
        if gap := self._gap(list(node.operands)):
            raise DTypeError(gap)
        if self.native is None:
            return super().run_node(node, arrays)
        op = node.op
        assert op is not None
        target = node.args[op.writes] if op.writes is not None else None
        args = [self._operand(arg, arrays) if isinstance(arg, Node) else arg for arg in node.args]
        result = self._calls[op](*args)
        if op.writes is None:
            return self._store(node, on_host(result), arrays[node.index])
        assert isinstance(target, Node)
        arrays[target.index][...] = on_host(args[op.writes]).reshape(arrays[target.index].shape)
        return None

    def _operand(self, operand: Node, arrays: Sequence[Array]) -> Any:
        assert self.native is not None
        array, whole = np.atleast_1d(arrays[operand.index]), arrays[operand.storage.index].reshape(-1)
        return self.native(HostArray(array, whole, operand.dtype is DType.BF16))

    def _store(self, node: Node, result: Array, out: Array) -> None:
        """Store a result that must have the node's dtype and shape."""
        if result.dtype != out.dtype:
            raise Fault("dtype", f"the kernel returned {result.dtype}, not {node.dtype}")
        assert node.op is not None
        held = result.size == out.size if node.op.moves else same_shape(result.shape[::-1], out.shape[::-1])
        if not held:
            raise Fault("shape", f"the kernel returned the shape {result.shape}, not {out.shape}")
        out[...] = result.reshape(out.shape)
