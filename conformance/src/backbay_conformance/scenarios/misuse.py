"""Misuse is refused with the documented error before it reaches a backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from backbay import (
    BackbayError,
    Backend,
    ClosedError,
    Context,
    DType,
    DTypeError,
    GraphSizeError,
    NotComputedError,
    OptionError,
    ShapeError,
    Tensor,
    UnsupportedOpError,
)
from backbay.ops import Yarn

from ..draw.data import READABLE
from ..draw.draw import Draw
from ..fault import Fault, must_raise, require
from ..numbers.comparison import must_equal
from ..numbers.encoding import decode
from ..suite.lab import Lab, scenario

Error = type[BackbayError]
Wrong = Callable[["MisuseOperands"], Any]


class MisuseOperands:
    """Operands for wrong calls, each of which must raise an error of backbay."""

    def __init__(self, ctx: Context) -> None:
        self.ctx: Any = ctx
        self.x: Any = ctx.from_floats(np.arange(12.0), 4, 3)
        self.row: Any = ctx.from_floats(np.arange(4.0), 4)
        self.ids: Any = ctx.from_ints([0, 1, 2])
        self.long_ids: Any = ctx.empty(DType.I64, 3).from_ints([0, 1, 2])
        self.blocks: Any = ctx.zeros(DType.Q8_0, 64, 3)
        self.square: Any = ctx.zeros(DType.F32, 3, 3)
        self.image: Any = ctx.zeros(DType.F32, 5, 5, 2, 1)
        self.kernel: Any = ctx.zeros(DType.F32, 3, 3, 2, 4)
        self.head: Any = ctx.zeros(DType.F32, 8, 2, 3)  # (head_dim, heads, tokens)

    def of(self, *shape: int, dtype: DType = DType.F32) -> Any:
        return self.ctx.zeros(dtype, *shape)


WRONG: dict[Error, dict[str, Wrong]] = {
    ShapeError: {
        # elementwise
        "a gate of another shape": lambda b: b.x.silu(b.ctx, b.row),
        "swiglu with a negative limit": lambda b: b.x.swiglu(b.ctx, b.x, 1.7, -1.0),
        "clamp to nothing": lambda b: b.x.clamp(b.ctx, 2.0, 1.0),
        "fill integers with a fraction": lambda b: b.ids.fill(b.ctx, 0.5),
        "fill i32 beyond its range": lambda b: b.ids.fill(b.ctx, 2.0**31),
        "cast half a block": lambda b: b.x.cast(b.ctx, DType.Q8_0),
        # binary
        "add a vector of another length": lambda b: b.x.add(b.ctx, b.of(3)),
        "add the larger to the smaller": lambda b: b.row.add(b.ctx, b.x),
        # matrix
        "mulmat of other rows": lambda b: b.x.mulmat(b.ctx, b.of(5, 2)),
        "mulmat of groups that do not divide": lambda b: b.of(4, 3, 2).mulmat(b.ctx, b.of(4, 3, 3)),
        "mulmat_id with other tokens": lambda b: b.of(4, 2, 3).mulmat_id(b.ctx, b.of(4, 1, 2), b.ids),
        "mulmat_id beyond the experts": lambda b: b.of(4, 2, 2).mulmat_id(b.ctx, b.of(4, 3, 1), b.ids),
        "add_id of another width": lambda b: b.of(4, 3).add_id(b.ctx, b.of(5, 3), b.ids),
        "add_id beyond the experts": lambda b: b.of(4, 3).add_id(b.ctx, b.of(4, 2), b.ids),
        # norms and order
        "rms_norm with a negative eps": lambda b: b.x.rms_norm(b.ctx, eps=-1.0),
        "rms_norm with a weight of another length": lambda b: b.x.rms_norm(b.ctx, b.of(3), eps=1e-5),
        "layer_norm with a bias of another length": lambda b: b.x.layer_norm(b.ctx, b.row, b.of(5)),
        "l2_norm with a negative eps": lambda b: b.x.l2_norm(b.ctx, eps=-1e-9),
        "top_k of more than there are": lambda b: b.x.top_k(b.ctx, 5),
        "top_k of less than none": lambda b: b.x.top_k(b.ctx, -1),
        # shape
        "reshape to another size": lambda b: b.x.reshape(b.ctx, 5, 2),
        "reshape with two unknowns": lambda b: b.x.reshape(b.ctx, -1, -1),
        "reshape of a permuted view": lambda b: b.x.permute(b.ctx, 1, 0).reshape(b.ctx, 12),
        "reshape that cuts blocks": lambda b: b.blocks.reshape(b.ctx, 16, 12),
        "view behind the end": lambda b: b.x.view(b.ctx, 4, (4, 3), (16,)),
        "view before the start": lambda b: b.x.view(b.ctx, -4, (4,)),
        "view at half an element": lambda b: b.x.view(b.ctx, 2, (4,)),
        "view with half a stride": lambda b: b.x.view(b.ctx, 0, (2, 2), (6,)),
        "view backwards": lambda b: b.x.view(b.ctx, 32, (4, 2), (-16,)),
        "view with too few strides": lambda b: b.x.view(b.ctx, 0, (2, 2, 2), (16,)),
        "permute with a dimension twice": lambda b: b.x.permute(b.ctx, 0, 0),
        "permute with too few dimensions": lambda b: b.x.permute(b.ctx, 0),
        "permute blocks apart": lambda b: b.blocks.permute(b.ctx, 1, 0),
        "slice behind the end": lambda b: b.x.slice(b.ctx, 0, 1, 5),
        "slice backwards": lambda b: b.x.slice(b.ctx, 0, 3, 1),
        "slice with a step of 0": lambda b: b.x.slice(b.ctx, 0, 0, 4, 0),
        "slice a dimension that is not there": lambda b: b.x.slice(b.ctx, 2, 0, 1),
        "slice half a block": lambda b: b.blocks.slice(b.ctx, 0, 0, 16),
        "chunks of nothing": lambda b: b.x.chunk(b.ctx, 0, 0),
        "sections of another sum": lambda b: b.x.chunk_sections(b.ctx, 0, 1, 2),
        "contiguous to another size": lambda b: b.x.contiguous(b.ctx, 7),
        "pad by less than nothing": lambda b: b.x.pad(b.ctx, -1),
        "concat of another width": lambda b: b.x.concat(b.ctx, b.of(5, 3), 1),
        "concat along a fifth dimension": lambda b: b.x.concat(b.ctx, b.x, 4),
        "repeat less than never": lambda b: b.x.repeat(b.ctx, 0, -1),
        "repeat_4d to no multiple": lambda b: b.x.repeat_4d(b.ctx, 4, 4),
        # writes and rows
        "copy of another size": lambda b: b.x.copy(b.ctx, b.row),
        "set behind the end": lambda b: b.x.set(b.ctx, b.x, 16),
        "set at half an element": lambda b: b.x.set(b.ctx, b.row, 2),
        "set_rows of another width": lambda b: b.x.set_rows(b.ctx, b.of(5, 3), b.ids),
        "set_rows with other ids": lambda b: b.x.set_rows(b.ctx, b.of(4, 2), b.ids),
        "set_rows beyond the end": lambda b: b.of(4, 2).set_rows(b.ctx, b.of(4, 3), b.ids),
        "rows beyond the end": lambda b: b.of(4, 2).rows(b.ctx, b.ids),
        "ids that leave their range later": lambda b: (b.x.rows(b.ctx, b.ids), b.ids.from_ints([0, 1, 3])),
        "ids that become negative": lambda b: (b.x.rows(b.ctx, b.ids), b.ids.from_ints([0, -1, 2])),
        # spatial
        "conv2d of other channels": lambda b: b.kernel.conv2d(b.ctx, b.of(5, 5, 3, 1)),
        "conv2d with a stride of 0": lambda b: b.kernel.conv2d(b.ctx, b.image, s0=0),
        "conv2d with a dilation of 0": lambda b: b.kernel.conv2d(b.ctx, b.image, d1=0),
        "conv2d with a negative padding": lambda b: b.kernel.conv2d(b.ctx, b.image, p0=-1),
        "conv2d that does not fit": lambda b: b.kernel.conv2d(b.ctx, b.of(2, 5, 2, 1)),
        "im2col that does not fit": lambda b: b.kernel.im2col(b.ctx, b.of(5, 1, 2, 1)),
        "conv3d of channels that do not divide": lambda b: b.of(1, 1, 1, 3).conv3d(
            b.ctx, b.of(2, 2, 2, 4), 2
        ),
        "conv1d_dw of other channels": lambda b: b.x.conv1d_dw(b.ctx, b.of(2, 1, 4)),
        "avg_pool2d with a window of 0": lambda b: b.image.avg_pool2d(b.ctx, 0, 1),
        "avg_pool2d with a third of padding": lambda b: b.image.avg_pool2d(b.ctx, 2, 1, 0.3),
        "avg_pool2d that does not fit": lambda b: b.image.avg_pool2d(b.ctx, 6, 1),
        "interpolate to fewer dimensions": lambda b: b.image.interpolate(b.ctx, (4, 4)),
        # sequences
        "rope of an odd part": lambda b: b.head.rope(b.ctx, b.ids, 3, 1e4),
        "rope of more than the head": lambda b: b.head.rope(b.ctx, b.ids, 10, 1e4),
        "rope with other positions": lambda b: b.head.rope(b.ctx, b.ctx.from_ints([1, 2]), 8, 1e4),
        "rope with a base of 0": lambda b: b.head.rope(b.ctx, b.ids, 8, 0.0),
        "rope with sections in normal": lambda b: b.head.rope(b.ctx, b.ids, 8, 1e4, sections=(1, 0, 0, 0)),
        "rope with too few factors": lambda b: b.head.rope(b.ctx, b.ids, 8, 1e4, factors=b.of(3)),
        "rope with yarn backwards": lambda b: b.head.rope(b.ctx, b.ids, 8, 1e4, -1.0, yarn=Yarn(128)),
        "ssm_conv of other channels": lambda b: b.of(6, 4, 1).ssm_conv(b.ctx, b.of(4, 3)),
        "ssm_conv with too short a state": lambda b: b.of(2, 4, 1).ssm_conv(b.ctx, b.of(4, 4)),
        "ssm_scan of other states": lambda b: _scan(b, states=5),
        "ssm_scan beyond the slots": lambda b: _scan(b, slots=2),
        "delta_rule of other keys": lambda b: _rule(b, key=5),
        "delta_rule with shares of each key alone": lambda b: _rule(b, share=4),
        # linear algebra
        "diag of a matrix": lambda b: b.x.diag(b.ctx),
        "tri of a matrix that is not square": lambda b: b.x.tri(b.ctx, "lower"),
        "solve_tri of other rows": lambda b: b.square.solve_tri(b.ctx, b.of(2, 4)),
        # attention
        "attention with another head": lambda b: _attend(b, key=(4, 2, 5)),
        "attention with heads that do not group": lambda b: _attend(b, key=(8, 3, 5), value=(8, 3, 5)),
        "attention with values of another history": lambda b: _attend(b, value=(8, 2, 4)),
        "attention with too short a mask": lambda b: _attend(b, mask=b.of(5, 2)),
        "attention with a mask of another history": lambda b: _attend(b, mask=b.of(4, 3)),
        "attention with a negative cap": lambda b: _attend(b, softcap=-1.0),
        "attention with other sinks": lambda b: _attend(b, sinks=b.of(3)),
    },
    DTypeError: {
        # elementwise
        "exp of integers": lambda b: b.ids.exp(b.ctx),
        "sqr of blocks": lambda b: b.blocks.sqr(b.ctx),
        "scale by a text": lambda b: b.x.scale(b.ctx, "2"),
        "cast to a string": lambda b: b.x.cast(b.ctx, "f16"),
        # binary
        "mul by integers": lambda b: b.x.mul(b.ctx, b.of(4, 3, dtype=DType.I32)),
        "add a number": lambda b: b.x.add(b.ctx, 1.0),
        # matrix
        "mulmat with integers": lambda b: b.ids.mulmat(b.ctx, b.of(3)),
        "mulmat by blocks": lambda b: b.of(64, 2).mulmat(b.ctx, b.blocks),
        "mulmat_id with wide ids": lambda b: b.of(4, 2, 3).mulmat_id(b.ctx, b.of(4, 3, 1), b.long_ids),
        # norms and order
        "softmax of integers": lambda b: b.ids.softmax(b.ctx),
        "argsort of integers": lambda b: b.ids.argsort(b.ctx),
        # shape
        "pad integers": lambda b: b.ids.pad(b.ctx, 1),
        "concat of another dtype": lambda b: b.x.concat(b.ctx, b.of(4, 3, dtype=DType.F16), 1),
        "repeat blocks": lambda b: b.blocks.repeat(b.ctx, 0, 2),
        # writes and rows
        "copy into a result": lambda b: b.x.copy(b.ctx, b.x.neg(b.ctx)),
        "copy into ids": lambda b: (b.x.rows(b.ctx, b.ids), b.ids.copy(b.ctx, b.ids)),
        "rows by floats": lambda b: b.x.rows(b.ctx, b.row),
        "rows by computed ids": lambda b: b.x.rows(b.ctx, b.ids.contiguous(b.ctx)),
        "rows by ids of a longer sort": lambda b: b.of(4, 3).rows(b.ctx, b.row.argsort(b.ctx)),
        # spatial
        "interpolate in another mode": lambda b: b.image.interpolate(b.ctx, (4, 4, 2, 1), "cubic"),
        # sequences
        "rope with wide positions": lambda b: b.head.rope(b.ctx, b.long_ids, 8, 1e4),
        "rope in another mode": lambda b: b.head.rope(b.ctx, b.ids, 8, 1e4, 1.0, "glm"),
        # linear algebra
        "tri of another kind": lambda b: b.square.tri(b.ctx, "left"),
    },
}
"""Every misuse, by its documented error."""


def _scan(b: MisuseOperands, states: int = 4, slots: int = 3) -> Any:
    s, x, dt = b.of(states, 2, 1, slots), b.of(2, 1, 1, 3), b.of(1, 1, 3)
    a, inputs = b.of(1, 1), b.of(4, 1, 1, 3)
    return s.ssm_scan(b.ctx, x, dt, a, inputs, inputs, b.ids)


def _rule(b: MisuseOperands, key: int = 4, share: int = 1) -> Any:
    each = (1, 3, 2)
    q, v, control = b.of(4, *each), b.of(2, *each), b.of(1, *each)
    return b.of(key, 2, 1, 2).delta_rule(b.ctx, q, q, v, control, b.of(share, *each))


def _attend(
    b: MisuseOperands, key: tuple[int, ...] = (8, 2, 5), value: tuple[int, ...] = (8, 2, 5), **more: Any
) -> Any:
    mask = more.pop("mask", None)
    return b.head.scaled_dot_product_attention(b.ctx, b.of(*key), b.of(*value), mask, scale=1.0, **more)


@scenario("errors", tiny=1, smoke=1, default=1, nightly=1)
def misuse_is_refused(lab: Lab, draw: Draw) -> None:
    """Each misuse raises its error; no graph reaches the backend, and the message names the op."""
    backend = lab.backend
    compiled: list[Any] = []
    vars(backend)["compile"] = compiled.append
    try:
        for error, misuses in WRONG.items():
            for what, wrong in misuses.items():
                with backend.new_context() as ctx:
                    must_raise(what, error, partial(wrong, MisuseOperands(ctx)))
    finally:
        del vars(backend)["compile"]
    if compiled:
        raise Fault("errors", "a misuse reached the backend")


@scenario("errors", tiny=1, smoke=1, default=2, nightly=10)
def wrong_data_are_refused(lab: Lab, draw: Draw) -> None:
    """Leaves refuse data of another size or type, and keep their data."""
    with lab.backend.new_context() as ctx:
        x, i = ctx.from_floats([1.0, 2.0]), ctx.from_ints([1, 2])
        must_raise("too many numbers", ShapeError, lambda: x.from_floats([1.0, 2.0, 3.0]))
        must_raise("too few bytes", ShapeError, lambda: x.from_bytes(b"1234"))
        must_raise("fractions for integers", DTypeError, lambda: i.from_floats([0.5, 1.0]))
        must_raise("integers out of range", ShapeError, lambda: i.from_ints([0, 2**31]))
        must_raise("floats as integers", DTypeError, lambda: i.from_ints(np.array([0.5, 1.0])))
        must_raise("text", DTypeError, lambda: x.from_floats(["a", "b"]))
        must_raise("a negative extent", ShapeError, lambda: ctx.empty(DType.F32, -1))
        must_raise("five dimensions", ShapeError, lambda: ctx.empty(DType.F32, 1, 1, 1, 1, 2))
        must_raise("half a block", ShapeError, lambda: ctx.empty(DType.Q4_0, 16))
        must_raise("a type that only files may have", DTypeError, lambda: ctx.empty(DType.F64, 4))
        if x.floats().tolist() != [1.0, 2.0] or i.numpy().tolist() != [1, 2]:
            raise Fault("errors", "refused data have changed a leaf")


@scenario("errors", tiny=1, smoke=1, default=2, nightly=10)
def results_are_readable_only_while_they_hold(lab: Lab, draw: Draw) -> None:
    """Only the latest compute's outputs are readable, until a leaf changes or the context closes."""
    backend = lab.backend
    ctx, other = backend.new_context(), backend.new_context()
    x = ctx.from_floats([1.0, 2.0])
    y, z = x.neg(ctx), x.sqr(ctx)
    must_raise("reading a tensor before any compute", NotComputedError, y.floats)
    ctx.compute(y)
    must_raise("reading a tensor that was no output", NotComputedError, z.floats)
    must_raise("a result in another context", DTypeError, lambda: y.neg(other))
    must_raise("data for a result", DTypeError, lambda: y.from_floats([1.0, 2.0]))
    x.from_floats([3.0, 4.0])
    must_raise("reading after new data", NotComputedError, y.floats)
    ctx.compute(z)
    must_raise("reading after another compute", NotComputedError, y.floats)
    ctx.close()
    must_raise("reading after close", ClosedError, z.floats)
    must_raise("a leaf of a closed context", ClosedError, lambda: x.neg(other))
    must_raise("computing after close", ClosedError, lambda: ctx.compute(y))
    other.close()


@scenario("errors", tiny=1, smoke=1, default=2, nightly=10)
def limits_and_ends_are_kept(lab: Lab, draw: Draw) -> None:
    """Too many nodes, wrong parameters, and uses after close are refused."""
    must_raise("an unknown option", OptionError, lambda: lab.fresh(options={"no_such_option_": 1}).close())
    for name in type(lab.backend).options:
        _accepts_or_refuses(lab, name)
    must_raise("no threads", OptionError, lambda: lab.fresh(num_threads=0).close())
    must_raise("an unknown device", OptionError, lambda: lab.fresh(max_memory={"NO:7": 1}).close())
    backend = lab.fresh()
    foreign = lab.backend.new_context()
    with backend.new_context(max_nodes=3) as ctx:
        x = ctx.from_floats([1.0])
        must_raise("a leaf of another backend", DTypeError, lambda: x.neg(foreign))
        y = x.neg(ctx).neg(ctx).neg(ctx)
        must_raise("too many nodes", GraphSizeError, lambda: y.neg(ctx))
    ctx = backend.new_context()
    x = ctx.from_floats([1.0])
    backend.close()
    backend.close()
    must_raise("a context of a closed backend", ClosedError, backend.new_context)
    must_raise("tracing after the backend has closed", ClosedError, lambda: x.neg(ctx))
    must_raise("reading after the backend has closed", ClosedError, x.floats)
    foreign.close()


def _accepts_or_refuses(lab: Lab, name: str) -> None:
    """Raise Fault if an unknown value of an option ends in any error but those that a user can understand."""
    try:
        lab.fresh(options={**lab.opening.options, name: "no such value of this option"}).close()
    except BackbayError as error:
        require(
            name in str(error), f"an unknown value of the option {name}: the error does not name it", error
        )
    except Exception as error:
        raise Fault(
            "errors", f"an unknown value of the option {name}: {type(error).__name__}: {error}"
        ) from error


@scenario("errors", tiny=1, smoke=1, default=1, nightly=1)
def wrong_ids_never_run(lab: Lab, draw: Draw) -> None:
    """A compute that uses ids which were never written is refused."""
    with lab.backend.new_context() as ctx:
        x, ids = ctx.from_floats(np.arange(6.0), 2, 3), ctx.empty(DType.I32, 2)
        y = x.rows(ctx, ids)
        must_raise("ids that were never written", NotComputedError, lambda: ctx.compute(y))
        ids.from_ints([2, 0])
        ctx.compute(y)
        must_equal(y.floats(), np.array([4.0, 5.0, 0.0, 1.0]), "after ids were written", "errors")


MOST_LOST = 0.5
"""The largest share of the numbers' power that encoding them as blocks may lose: one bit for each loses less."""
INTO_BLOCKS: dict[str, Callable[[Context, Tensor, DType], Tensor]] = {
    "cast": lambda ctx, x, dtype: x.cast(ctx, dtype),
    "copy": lambda ctx, x, dtype: x.copy(ctx, ctx.zeros(dtype, *x.shape)),
    "set_rows": lambda ctx, x, dtype: ctx.zeros(dtype, *x.shape).set_rows(ctx, x, ctx.from_ints([1, 0])),
}


@scenario("quant", smoke=1, default=2, nightly=10, structures=0)
def what_makes_blocks_works_or_is_refused_at_once(lab: Lab, draw: Draw) -> None:
    """Every quantized type as a target: encoding works, or raises UnsupportedOpError and leaves nothing behind."""
    with lab.fresh() as backend:
        for dtype in READABLE:
            for what in INTO_BLOCKS:
                draw.note(f"{what} to {dtype}")
                held = backend.memory().total()
                if not _makes_blocks(backend, dtype, what):
                    left = backend.memory().total() - held
                    if left:
                        raise Fault("memory", f"{what} to {dtype} is refused, and {left} bytes stay booked")


def _makes_blocks(backend: Backend, dtype: DType, what: str) -> bool:
    """Whether a backend encodes numbers as blocks, which must decode to about the same numbers; false if it refuses to."""
    told = f"{what} to {dtype}"
    numbers = np.linspace(-1, 1, 2 * dtype.block_size)
    with backend.new_context() as ctx:
        x = ctx.from_floats(numbers, dtype.block_size, 2)
        try:
            y = INTO_BLOCKS[what](ctx, x, dtype)
            ctx.forward(y).reserve()
        except UnsupportedOpError as error:
            if what not in str(error) and str(dtype) not in str(error):
                raise Fault("errors", f"{told}: the error names neither: {error}") from error
            return False
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            raise Fault("errors", f"{told}: expected UnsupportedOpError, got {raised}") from error
        ctx.compute(y)
        made = np.frombuffer(y.bytes(), np.uint8)
    if made.size != 2 * dtype.type_size:
        raise Fault("errors", f"{told} made {made.size} bytes of two blocks")
    found = decode(made.reshape(2, -1), dtype).reshape(-1)
    if what == "set_rows":  # with the rows exchanged
        found = np.roll(found, dtype.block_size)
    lost = np.square(found - numbers).sum() / np.square(numbers).sum()
    if not lost < MOST_LOST:
        raise Fault("errors", f"{told} made blocks of other numbers: {lost:.0%} of their power is lost")
    return True
