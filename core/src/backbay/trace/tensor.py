"""Tensors: nodes of a recorded graph, with the ops as methods, with methods that read and write data, and as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import ops
from ..data.encoding import Array, Bytes, flat_numbers
from ..data.leaf import Leaf, from_buffer, from_floats, from_ints
from ..errors import DTypeError, ShapeError
from ..ops.op_declaration import REQUIRED, Op, Parameter
from ..types.gpu_layers import Placement
from ..types.spec import Spec, span

if TYPE_CHECKING:
    from .context import Context
    from .traced_graph import TracedGraph

P = ParamSpec("P")
T = TypeVar("T")


@overload
def method(op: Op[Concatenate[Spec, P], Spec]) -> Callable[Concatenate[Tensor, Context, P], Tensor]: ...
@overload
def method(
    op: Op[Concatenate[Spec, P], list[Spec]],
) -> Callable[Concatenate[Tensor, Context, P], list[Tensor]]: ...
def method(op: Op[Any, Any]) -> Callable[..., Any]:
    """The method of Tensor that traces an op.

    Its source is generated from the op's parameters, as dataclasses generate __init__: a generic method, which binds
    and checks arguments in loops, takes three to seven times as long.
    """
    names: dict[str, Any] = {f"parse_{p.name}": p.parse for p in op.parameters}
    names |= {f"default_{p.name}": p.default for p in op.parameters}
    helpers = {"op": op, "rule": op.declared, "prepare": op.prepared, "checked_storage": _checked_storage}
    helpers |= {"absent": REQUIRED, "explain": _explain}
    scope: dict[str, Any] = {**names, **helpers, "errors": (ShapeError, DTypeError, AttributeError)}
    exec(compile(_source(op), f"<the method {op.name}>", "exec"), scope)  # noqa: S102  (made of declared names only)
    traced: Callable[..., Any] = scope[op.name]
    traced.__doc__ = op.doc
    return traced


def _source(op: Op[Any, Any]) -> str:
    first, *others = op.parameters
    bound = "".join(f"{p.name}, " for p in op.parameters)
    body = ["recording = ctx.recording", *[line for p in others for line in _check(p)]]
    if op.prepared is not None:
        body.append(f"{bound}= prepare(ctx, ({bound}))")
    if op.inline:
        body += [f"rule({_call(op)})", f"return op.open(ctx, ({bound}))"]
    else:
        body += [f"spec = rule({_call(op)})", *_admission(op), *_recording(op, bound)]
    keywords = [_declaration(p) for p in others if p.keyword_only]
    positional = [_declaration(p) for p in others if not p.keyword_only]
    signature = ", ".join([first.name, "ctx=absent", *positional, *(["*", *keywords] if keywords else [])])
    lines = "".join(f"        {line}\n" for line in body)
    failed = f"    except errors as error:\n        raise explain(op, ctx, ({bound}), error) from None\n"
    return f"def {op.name}({signature}):\n    try:\n{lines}{failed}"


def _declaration(p: Parameter) -> str:
    return f"*{p.name}" if p.variadic else f"{p.name}=default_{p.name}"


def _explain(op: Op[Any, Any], ctx: object, args: Sequence[Any], error: Any) -> Exception:
    """The error of a call: it shows the parameters if the context or an argument is missing, else the operands."""
    first, *others = op.parameters
    shown = [f"{p.name}=..." if p.keyword_only else p.name for p in others]
    call = f"{first.name}.{op.name}({', '.join(['ctx', *shown])})"
    if not hasattr(ctx, "recording"):
        return DTypeError(f"{op.name}: the first argument is the context: {call}")
    missing = [p.name for p, value in zip(op.parameters, args, strict=True) if value is REQUIRED]
    if missing:
        return DTypeError(f"{op.name}: {', '.join(missing)} must be given: {call}")
    return error if isinstance(error, AttributeError) else op.explain(error, args)


def _call(op: Op[Any, Any]) -> str:
    prefixes = {p.name: "*" if p.variadic else f"{p.name}=" if p.keyword_only else "" for p in op.parameters}
    return ", ".join(prefix + name for name, prefix in prefixes.items())


def _check(p: Parameter) -> list[str]:
    """Lines that check and convert an argument; an argument of the right class costs one comparison."""
    if p.quick_class is None:
        return [f"{p.name} = parse_{p.name}({p.name})"]
    absent = f" and {p.name} is not None" if p.is_optional else ""
    return [f"if {p.name}.__class__ is not {p.quick_class}{absent}: {p.name} = parse_{p.name}({p.name})"]


def _admission(op: Op[Any, Any]) -> list[str]:
    """Lines that admit or refuse operands of other contexts, and ids."""
    lines = []
    for p in (op.parameters[i] for i in op.operands):
        absent = f"{p.name} is not None and " if p.is_optional else ""
        lines.append(f"if {absent}{p.name}.home is not recording: recording.admit({p.name})")
    if op.ids is not None:
        (among, dim), ids = op.among, op.parameters[op.ids].name
        lines.append(f"recording.admit_ids({ids}, {op.parameters[among].name}.dim({dim}))")
    return lines


def _recording(op: Op[Any, Any], bound: str) -> list[str]:
    """Lines that record the node: a view of the receiver, an alias of the destination, or a new result."""
    if op.view:
        base = op.parameters[0].name
        storage = f"checked_storage({base}, spec)" if op.strays else f"{base}.storage or {base}"
        where, lines = f"spec.strides, spec.offset, {storage}", []
    elif op.writes is not None:
        target = op.parameters[op.writes].name
        where = f"{target}.strides, {target}.offset, storage"
        lines = [f"storage = {target}.storage or {target}", "recording.admit_write(storage)"]
    else:
        where, lines = "None, 0, None", []
    return [*lines, f"return recording.record(ctx.placement, op, ({bound}), spec.dtype, spec.shape, {where})"]


def _checked_storage(base: Tensor, spec: Spec) -> Tensor:
    """The storage of a view; ShapeError if the view reaches beyond it."""
    storage = base.storage or base
    end = spec.offset + span(spec)
    if spec.offset < 0 or end > storage.nbytes:
        where = f"outside of the {storage.nbytes} bytes of {storage}"
        raise ShapeError(f"bytes {spec.offset} to {end} are {where}")
    return storage


class Tensor(Spec):
    """A weight, a leaf, or the result of an op. Tensors compare and hash by identity.

    Leaves can always be read, results if the latest `compute` of their context named them.
    """

    __slots__ = ("__weakref__", "args", "home", "leaf", "op", "placement", "storage")

    op: Op[Any, Any] | None  # None for a leaf or weight
    args: tuple[Any, ...]  # complete, in the op's declared order
    home: TracedGraph | None  # the recording it belongs to; None for a weight
    placement: Placement
    storage: Tensor | None  # of a view or alias: the tensor that holds its bytes; None otherwise
    leaf: Leaf | None

    # elementwise
    neg = method(ops.neg)
    sqr = method(ops.sqr)
    sqrt = method(ops.sqrt)
    exp = method(ops.exp)
    sin = method(ops.sin)
    cos = method(ops.cos)
    tanh = method(ops.tanh)
    sigmoid = method(ops.sigmoid)
    relu = method(ops.relu)
    silu = method(ops.silu)
    gelu = method(ops.gelu)
    gelu_erf = method(ops.gelu_erf)
    quick_gelu = method(ops.quick_gelu)
    swiglu = method(ops.swiglu)
    softplus = method(ops.softplus)
    clamp = method(ops.clamp)
    scale = method(ops.scale)
    fill = method(ops.fill)
    cast = method(ops.cast)

    # binary
    add = method(ops.add)
    sub = method(ops.sub)
    mul = method(ops.mul)
    div = method(ops.div)

    # matrix
    mulmat = method(ops.mulmat)
    mulmat_full_prec = method(ops.mulmat_full_prec)
    mulmat_id = method(ops.mulmat_id)
    add_id = method(ops.add_id)

    # norm, reduce
    softmax = method(ops.softmax)
    layer_norm = method(ops.layer_norm)
    rms_norm = method(ops.rms_norm)
    l2_norm = method(ops.l2_norm)
    sum_rows = method(ops.sum_rows)
    mean = method(ops.mean)
    variance = method(ops.variance)
    stddev = method(ops.stddev)
    cumsum = method(ops.cumsum)

    # order
    top_k = method(ops.top_k)
    argsort = method(ops.argsort)

    # shape
    reshape = method(ops.reshape)
    view = method(ops.view)
    permute = method(ops.permute)
    contiguous = method(ops.contiguous)
    slice = method(ops.slice)
    chunk = method(ops.chunk)
    chunk_sections = method(ops.chunk_sections)
    pad = method(ops.pad)
    pad_ext = method(ops.pad_ext)
    stack = method(ops.stack)
    repeat = method(ops.repeat)
    repeat_4d = method(ops.repeat_4d)
    concat = method(ops.concat)
    duplicate = method(ops.duplicate)

    # write
    copy = method(ops.copy)
    set = method(ops.set)
    set_rows = method(ops.set_rows)

    # index
    rows = method(ops.rows)

    # spatial
    conv2d = method(ops.conv2d)
    conv3d = method(ops.conv3d)
    conv1d_dw = method(ops.conv1d_dw)
    im2col = method(ops.im2col)
    avg_pool2d = method(ops.avg_pool2d)
    interpolate = method(ops.interpolate)

    # sequence
    rope = method(ops.rope)
    ssm_conv = method(ops.ssm_conv)
    ssm_scan = method(ops.ssm_scan)
    delta_rule = method(ops.delta_rule)

    # linear algebra
    diag = method(ops.diag)
    tri = method(ops.tri)
    solve_tri = method(ops.solve_tri)

    # attention
    scaled_dot_product_attention = method(ops.scaled_dot_product_attention)

    def floats(self) -> NDArray[np.float32]:
        """All elements, flat in logical order, as float32."""
        return self._copied(lambda raw: flat_numbers(raw, self.dtype).astype(np.float32).reshape(-1))

    def numpy(self, out: Array | None = None) -> Array:
        """All elements as an array of the reversed shape, in C order; BF16 and quantized types as float32.

        They are written to `out`, if it is given: an array of this shape.
        """
        shape = self.shape[::-1]
        if out is None:
            return self._copied(lambda raw: np.array(flat_numbers(raw, self.dtype)).reshape(shape))
        if out.shape != shape:
            raise ShapeError(f"numpy: out must have the shape {list(shape)}, got {list(out.shape)}")
        self._copied(lambda raw: np.copyto(out, flat_numbers(raw, self.dtype).reshape(shape)))
        return out

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def bytes(self) -> bytes:
        """All elements as bytes in GGUF's layout, in logical order."""
        return self._copied(lambda raw: raw.tobytes())

    def from_floats(self, data: object) -> Tensor:
        """Replace a leaf's data with these numbers, converted to its dtype."""
        return self._write(data, from_floats)

    def from_ints(self, data: object) -> Tensor:
        """Replace a leaf's data with these integers, converted to its dtype."""
        return self._write(data, from_ints, converts=not self.dtype.is_integer)

    def from_bytes(self, data: object) -> Tensor:
        """Replace a leaf's data with bytes in GGUF's layout."""
        return self._write(data, from_buffer)

    def __repr__(self) -> str:
        what = self.op.name if self.op else (self.leaf and self.leaf.name) or "leaf"
        return f"Tensor({what} {self})"

    def _copied(self, copy: Callable[[Bytes], T]) -> T:
        """The copy that a function makes of the data, which no thread frees meanwhile."""
        if self.leaf is not None and self.leaf.home is None:
            return copy(self.leaf.read())  # of a weight
        assert self.home is not None
        with self.home.data_lock:
            return copy(self.home.read(self) if self.leaf is None else self.leaf.read())

    def _write(
        self, data: object, encode: Callable[[object, Spec], Bytes], *, converts: bool = False
    ) -> Tensor:
        leaf = self.leaf
        raw = None if leaf is None or converts else leaf.as_stored(data)
        if raw is None:
            raw = encode(data, self)
        if leaf is None:
            raise DTypeError(f"{self!r} is not a leaf: its data come from {self.op and self.op.name}")
        leaf.write(raw)
        return self


def trace_op(ctx: Context, op: Op[Any, Any], args: Sequence[Any]) -> Any:
    """Call the op's method of Tensor with complete arguments in the op's declared order; returns a tensor or a list."""
    traced = getattr(Tensor, op.name)
    return op.spread(lambda x, *others, **named: traced(x, ctx, *others, **named))(*args)


def dump(tensor: Tensor, precision: int = 4, threshold: int = 1000, edge_items: int = 3) -> str:
    """A tensor's elements in nested brackets, the last dimension outermost; floats with `precision` decimals.

    If there are more than `threshold` elements, only `edge_items` at both ends of each dimension are shown. Half and
    quantized types are shown as floats. A tensor without a result is computed, with its ancestors; if one of them
    writes, NotComputedError is raised instead.
    """
    if tensor.home is None or tensor.leaf is not None or tensor.home.has_result(tensor):
        values = tensor.numpy()
    else:
        values = flat_numbers(tensor.home.evaluate(tensor), tensor.dtype).reshape(tensor.shape[::-1])
    edge = edge_items if tensor.size > threshold else tensor.size
    return _brackets(np.atleast_1d(values), edge, precision, depth=1)


def _brackets(values: Any, edge: int, precision: int, *, depth: int) -> str:
    """The text of an array, or of an element."""
    if not values.ndim:
        text = f"{values:.{precision}f}" if isinstance(values, np.floating) else str(values)
        return text if text.startswith("-") else f" {text}"
    line = "\n" * (values.ndim - 1) + " " * depth if values.ndim > 1 else " "
    elided = len(values) > 2 * edge
    ends = [values[:edge], values[len(values) - edge :]] if elided else [values]
    texts = [
        f",{line}".join(_brackets(each, edge, precision, depth=depth + 1) for each in end) for end in ends
    ]
    dots = f",{line}..., {line if values.ndim > 1 else ''}"
    return f"[{dots.join(texts)}]"
