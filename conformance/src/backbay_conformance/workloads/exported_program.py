"""The nodes of a program that torch.export has saved, as calls of the contract.

Its description in JSON is read, without PyTorch: `torch.export.load` would unpickle what the file holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from backbay import DType, ModelFileError, Tensor, ops

from . import lowerings as lower
from .graph_tracer import GraphNode, GraphTracer, GraphValue, Lowering, require

SCHEMA = 8  # the major version of the description
LARGEST = 1 << 28  # bytes of a description
DTYPES: dict[int, DType | str] = {4: DType.I32, 5: DType.I64, 6: DType.F16, 7: DType.F32, 13: DType.BF16}
DTYPES |= {1: "u8", 2: "i8", 3: "i16", 8: "f64", 12: "bool"}
KEYWORD = 2  # the kind of an argument that is given by its name


def trace_program(tracer: GraphTracer, path: Path) -> None:
    """Trace the nodes of the program in a file; a dynamic size is that of the inputs that it was exported with."""
    expected = f"a program of torch.export, with a description of version {SCHEMA}"
    try:
        with ZipFile(path) as archive:
            [entry] = [one for one in archive.infolist() if one.filename.endswith("/models/model.json")]
            if entry.file_size > LARGEST:
                raise ValueError(f"a description of {entry.file_size} bytes")
            described = json.loads(archive.read(entry))
        if (version := described["schema_version"]["major"]) != SCHEMA:
            raise ValueError(f"version {version}")
        nodes = list(_nodes(described["graph_module"]))
    except (BadZipFile, LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise ModelFileError(path, None, expected, f"{type(error).__name__}: {error}") from error
    for node in nodes:
        tracer.trace(node)


def _nodes(module: Mapping[str, Any]) -> Iterator[GraphNode]:
    """The nodes that have results; others are assertions, or compute sizes."""
    graph, signature = module["graph"], module["signature"]
    sizes = {name: _size(size) for name, size in graph["sym_int_values"].items()}
    values = {name: _value(meta) for name, meta in graph["tensor_values"].items()}
    changed = [
        spec["buffer_mutation"]["buffer_name"]
        for spec in signature["output_specs"]
        if "buffer_mutation" in spec
    ]
    for spec in signature["input_specs"]:
        ((kind, content),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant") and content.get("buffer_name") not in changed:
            values[content["arg"]["name"]].constant = True

    def argument(given: Mapping[str, Any]) -> Any:
        ((kind, content),) = given.items()
        if kind == "as_none":
            return None
        if kind == "as_tensor":
            return values[content["name"]]
        if kind == "as_tensors":
            return [values[one["name"]] for one in content]
        if kind in ("as_sym_ints", "as_optional_tensors"):
            return [argument(one) for one in content]
        if kind in ("as_sym_int", "as_optional_tensor"):
            return argument(content)
        if kind == "as_name":
            return sizes.get(content)
        return _dtype(content) if kind == "as_scalar_type" else content

    for node in graph["nodes"]:
        results = [argument(one) for one in node["outputs"]]
        flat = [one for result in results for one in (result if isinstance(result, list) else [result])]
        flat = [one for one in flat if isinstance(one, GraphValue)]
        if flat:
            args = [argument(one["arg"]) for one in node["inputs"] if one.get("kind") != KEYWORD]
            named = {
                one["name"]: argument(one["arg"]) for one in node["inputs"] if one.get("kind") == KEYWORD
            }
            name = node["target"].removeprefix("torch.ops.")
            yield GraphNode(name, _lowering(name), args, named, flat)


def _lowering(name: str) -> Lowering | None:
    namespace, op, *_ = name.split(".")
    own = op.removesuffix("_") if namespace == "aten" else ""  # an op with _ writes in place
    return LOWERINGS.get(own) or lower.SHARED.get(own)


def _value(meta: Mapping[str, Any]) -> GraphValue:
    extents = [_size(size) for size in meta["sizes"]]
    return GraphValue(_dtype(meta["dtype"]), None if None in extents else tuple(map(int, extents)))


def _dtype(number: int) -> DType | str:
    return DTYPES.get(number, f"dtype {number}")


def _size(size: Mapping[str, Any]) -> Any:
    """A size; that of the export for a dynamic one, None for one that depends on data."""
    return size["as_int"] if "as_int" in size else (size["as_expr"].get("hint") or {}).get("as_int")


def _each(size: int | Sequence[int], axes: int) -> list[int]:
    given = [size] if isinstance(size, int) else list(size)
    return given * axes if len(given) == 1 else given


def _conv(
    g: GraphTracer,
    x: GraphValue,
    weight: GraphValue,
    bias: GraphValue | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    *transposition: Any,
) -> Tensor:
    require(not isinstance(padding, str), "padding")
    *transposed, groups = transposition or (1,)
    require(groups == 1 and not any(transposed[:1]), "groups" if groups != 1 else "transposed")
    windows = [_each(one, len(x.extents) - 2) for one in (stride, padding, dilation)]
    return lower.convolution(g, x, weight, bias, *windows)


def _normalized(op: Any) -> Lowering:
    def norm(g: GraphTracer, x: GraphValue, shape: Sequence[int], *rest: Any) -> Tensor:
        require(len(shape) == 1, "axes")
        return g.op(op, x, *rest[: len(op.parameters) - 1])

    return norm


def _exchanged(g: GraphTracer, x: GraphValue, first: int = -1, second: int = -2) -> Tensor:
    order = list(range(len(x.extents)))
    order[first], order[second] = order[second], order[first]
    return lower.transposed(g, x, order)


def _slice(
    g: GraphTracer,
    x: GraphValue,
    axis: int = 0,
    low: int | None = None,
    high: int | None = None,
    step: int = 1,
) -> Tensor:
    return lower.sliced(g, x, x.dim(axis), low, high, step)


def _unbind(g: GraphTracer, x: GraphValue, axis: int = 0) -> list[Tensor]:
    return [lower.selected(g, x, axis, index) for index in range(x.extents[axis])]


def _pooled(g: GraphTracer, x: GraphValue, size: Sequence[int]) -> Tensor:
    require([*size] == [1, 1], "size")
    pooled: Tensor = lower.reduced(ops.mean)(g, x, (-2, -1), keepdims=True)
    return pooled


def _contiguous(g: GraphTracer, x: GraphValue, **_: Any) -> Tensor:
    return g.tensor(x) if g.tensor(x).is_contiguous else g.op(ops.contiguous, x)


LOWERINGS: dict[str, Lowering] = {
    "square": lower.unary(ops.sqr),
    "rsqrt": lambda g, x: lower.reciprocal(g, g.op(ops.sqrt, x)),
    "clamp": lower.clamp,
    "linear": lower.linear,
    "addmm": lambda g, c, a, b: g.op(ops.add, lower.matmul(g, a, b), c),
    **dict.fromkeys(("mm", "bmm"), lower.matmul),
    "scaled_dot_product_attention": lower.attention,
    **dict.fromkeys(("conv1d", "conv2d", "convolution"), _conv),
    "layer_norm": _normalized(ops.layer_norm),
    "rms_norm": _normalized(ops.rms_norm),
    "batch_norm": lambda g, x, weight, *_: lower.batch_norm(g, x, weight),
    "mean": lower.reduced(ops.mean),
    "adaptive_avg_pool2d": _pooled,
    "sum": lower.reduced(ops.sum_rows),
    "embedding": lambda g, table, ids, *_: lower.rows(g, table, ids),
    "index_select": lambda g, x, axis, ids: lower.rows(g, x, ids, axis),
    "cat": lower.concat,
    **dict.fromkeys(("split_with_sizes", "chunk"), lower.split),
    "unbind": _unbind,
    "slice": _slice,
    "select": lower.selected,
    "permute": lower.transposed,
    **dict.fromkeys(("transpose", "t"), _exchanged),
    "clone": lambda g, x, **_: g.op(ops.contiguous, x),
    "contiguous": _contiguous,
    "repeat": lower.expand,
    **dict.fromkeys(("view", "_unsafe_view", "unflatten"), lower.reshape),
    **dict.fromkeys(("to", "_to_copy", "type_as", "detach", "alias"), lower.same),
}
