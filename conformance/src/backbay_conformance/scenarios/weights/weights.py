"""Weights of model files, which backends may store unlike leaves: rearranged, decoded or in other memory."""

from __future__ import annotations

import atexit
import gc
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import backbay
from backbay import Backend, BackendParams, DeviceInfo, DType, Level, NoMemoryError, Op, ops
from backbay.internals import return_freed_memory
from backbay.plugin import decode

from ...cases.index import rows_call
from ...cases.matrix import expert_call, product
from ...checks.judgement import cost_of, judge
from ...checks.traced_call import TracedCall, make
from ...draw.data import READABLE, Numbers
from ...draw.draw import FLOATS, Draw
from ...draw.layout import Layout
from ...draw.model_file import write_model
from ...draw.operand import Operand
from ...fault import Fault, require
from ...numbers.encoding import Array
from ...suite.case import Call
from ...suite.lab import Lab, scenario
from ..process.bookings import PEAK, mib, own_pages
from .drawn_weights import (
    drawn_weight,
    drawn_weights,
    load_and_compare,
    open_drawn_weights,
    product_of_each,
    write_weights,
)

VARIANTS = (0, 1)  # the file has two weights for each call, which differ only in their data


@dataclass
class WeightCall:
    """A call whose first operand comes from the file: the weights of these names, one for each variant."""

    call: Call
    weight: Operand
    names: list[str]
    traced: TracedCall


@scenario("quant", tiny=1, smoke=3, default=30, nightly=300)
def weights_of_a_file(lab: Lab, draw: Draw) -> None:
    """Products with weights of a file, and rows of weights, are right for each type.

    With weights=copied, they are right although the file is emptied or overwritten once it is loaded.
    """
    copied = draw.by_turn(False, True)
    uses = [use for use in (drawn(lab, draw, n) for n in range(3)) if use is not None]
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(Path(folder) / "weights.gguf", len(VARIANTS), stored_weights(draw, uses))
            with lab.fresh(path, **({"options": {"weights": "copied"}} if copied else {})) as backend:
                backend.load()
                if copied:
                    spoil(draw, path)
                for use in uses:
                    for variant in VARIANTS:
                        check(backend, draw, use, variant)
    finally:
        for use in uses:
            use.traced.close()


def spoil(draw: Draw, path: Path) -> None:
    """Empty the file, or overwrite all of it, which a map of it shows."""
    emptied = draw.by_turn(True, False, each=2)
    draw.note(f"weights=copied, and the file is {'emptied' if emptied else 'overwritten'}")
    if emptied:
        path.write_bytes(b"")
    else:
        with path.open("r+b") as file:
            file.write(b"\x5a" * path.stat().st_size)


def drawn(lab: Lab, draw: Draw, n: int) -> WeightCall | None:
    dtypes = (*READABLE, *FLOATS)
    dtype = dtypes[draw.below(len(dtypes), (3 * draw.turn + n) % len(dtypes))]
    kind: Op[..., Any] = draw.pick(ops.mulmat, ops.mulmat, ops.rows, ops.mulmat_id)
    call = {ops.mulmat: product_call, ops.rows: rows_call, ops.mulmat_id: expert_call}[kind](draw, dtype)
    call.op = kind
    weight: Operand = call.args[0]
    weight.layout = Layout()
    traced = TracedCall(lab.backend, call)
    if traced.level is Level.NONE or 0 in weight.shape:
        traced.close()
        return None
    part = {ops.mulmat: "attn_{}", ops.rows: "table_{}", ops.mulmat_id: "ffn_{}_exps"}[kind].format("qkv"[n])
    return WeightCall(call, weight, [f"blk.{variant}.{part}.weight" for variant in VARIANTS], traced)


def product_call(draw: Draw, dtype: DType) -> Call:
    """A product, now and then with a large matrix, which backends may compute in another way."""
    unit = dtype.block_size
    k, n, m = unit * draw.pick(1, 2, 3), draw.pick(8, 1, 16, 33, 64), draw.pick(1, 2, 4, 5, 17, 33)
    if draw.flag(6):
        k, n, m = 2048, draw.pick(520, 1024), draw.pick(1, 2, 5)
    w = draw.operand(dtype, (k, n), Numbers(terms=k, most=7), layout=False)
    x = draw.floats((k, m), Numbers(terms=k, partner=w), dtype=DType.F32, activated=True)
    return Call((w, x), product)


def stored_weights(draw: Draw, uses: list[WeightCall]) -> Iterator[tuple[str, DType, Array]]:
    """Name, type and stored elements of each weight, made one at a time."""
    for use in uses:
        for variant, name in enumerate(use.names):
            make(use.call, draw.mode, use.traced.precision, variant)
            yield name, use.weight.dtype, use.weight.stored


def check(backend: Backend, draw: Draw, use: WeightCall, variant: int) -> None:
    draw.note(f"{use.call}, the first from a file, number {variant}")
    make(use.call, draw.mode, use.traced.precision, variant)
    with TracedCall(backend, use.call, weights={use.weight: use.names[variant]}) as traced:
        traced.write()
        cost = cost_of(use.call, traced.level, traced.precision)
        judge(use.call, traced, traced.run(), cost, draw.mode)


# -- files: large ones, and others at the same path -------------------------------------------------------

NAME, WIDTH = "blk.0.ffn_down.weight", 4096
ROWS = {DType.F32: 321, DType.Q4_0: 2333}
"""Rows of a large weight of each dtype, which take somewhat more than 5 MiB: no multiple of any usual piece of a file."""


@scenario("core", smoke=0, default=2, nightly=2)
def a_large_weight_is_read_to_its_end(lab: Lab, draw: Draw) -> None:
    """Weights of more than 5 MiB, which may be read in pieces, hold the file's data, and so do their products."""
    dtype = draw.by_turn(*ROWS)
    stored, at = large_weight(dtype), (0, WIDTH - 1)
    want = np.stack([column(stored, dtype, n) for n in at])
    with lab.fresh(large_model(dtype)) as backend:
        backend.load()
        w = backend.get(NAME)
        assert w is not None
        if w.bytes() != stored.tobytes():
            raise Fault("weights", f"{NAME} of {stored.nbytes} bytes does not hold the file's data")
        with backend.new_context() as ctx:
            x = ctx.from_floats(np.eye(WIDTH)[list(at)])
            if not backend.supports(ops.mulmat, [w, x]):
                return
            y = w.mulmat(ctx, x)
            ctx.compute(y)
            wrong = np.flatnonzero(~np.isclose(y.numpy(), want, rtol=0.02, atol=0.02).all(0))
            if wrong.size:
                told = f"{wrong.size} of {ROWS[dtype]} rows, from row {wrong[0]}"
                raise Fault("weights", f"a product with {NAME} of {stored.nbytes} bytes is wrong in {told}")


@cache
def large_weight(dtype: DType) -> Array:
    rng = np.random.default_rng(5)
    if dtype is DType.F32:
        return rng.integers(-8, 8, (ROWS[dtype], WIDTH)).astype(np.float32)
    blocks = rng.integers(0, 256, (ROWS[dtype], WIDTH // dtype.block_size, dtype.type_size), np.uint8)
    blocks[..., :2] = np.array([1.0], np.float16).view(np.uint8)  # the scale
    return blocks.reshape(ROWS[dtype], -1)


def column(stored: Array, dtype: DType, n: int) -> Array:
    unit = dtype.type_size // stored.itemsize
    block = np.ascontiguousarray(stored[:, n // dtype.block_size * unit :][:, :unit])
    return decode(block, dtype)[:, n % dtype.block_size]


@cache
def large_model(dtype: DType) -> Path:
    """The path of a file of one large weight, which is removed when the process exits."""
    folder = Path(tempfile.mkdtemp(prefix="backbay-conformance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_model(folder / "large.gguf", 1, [(NAME, dtype, large_weight(dtype))], WIDTH)


@scenario("core", smoke=0, default=3, nightly=30)
def a_file_is_read_as_it_is_now(lab: Lab, draw: Draw) -> None:
    """Other weights of the same names, types and sizes, in a file at the same path, replace those of a first opening."""
    first = drawn_weights(draw)
    second = {name: drawn_weight(draw, weight.dtype, weight.shape) for name, weight in first.items()}
    how = draw.by_turn("replaced while it is open", "replaced once it is closed", "written anew")
    draw.note(f"a file that is {how}")
    with tempfile.TemporaryDirectory() as folder:
        path = write_weights(Path(folder) / "weights.gguf", first)
        with lab.fresh(path) as before:
            load_and_compare(before, first)
            if how != "replaced while it is open":
                before.close()
            if how == "written anew":
                write_weights(path, second)
            else:
                write_weights(path.with_suffix(".new"), second).replace(path)
            with lab.fresh(path) as after:
                load_and_compare(after, second)
            if not before.closed:
                product_of_each(before, first)


# -- the memory that weights take ------------------------------------------------------------------------


@scenario("memory", smoke=0, default=4, nightly=40)
def weights_take_nothing_more_when_they_are_used(lab: Lab, draw: Draw) -> None:
    """Once products with weights of a file are reserved, the first compute books nothing more."""
    with open_drawn_weights(lab, draw) as (backend, weights):
        backend.load()
        with backend.new_context() as ctx:
            results = []
            for name, weight in weights.items():
                w, x = backend.get(name), ctx.from_floats(np.ones((2, weight.shape[0])))
                assert w is not None
                if backend.supports(ops.mulmat, [w, x]):
                    results.append(w.mulmat(ctx, x))
            ctx.forward(*results).reserve()
            reserved = backend.memory().total()
            ctx.compute(*results)
            booked = backend.memory().total()
            told = f"{reserved} bytes were reserved, and after a compute {booked} are booked"
            require(booked == reserved, told)


@scenario("memory", smoke=0, default=1, nightly=1)
def a_dry_run_holds_no_weights(lab: Lab, draw: Draw) -> None:
    """The process does not grow with the quantized weights of a backend that allocates nothing."""
    path = large_model(DType.Q4_0)
    grown = opening_growth(lambda: lab.fresh(path, alloc_memory=False))
    size = path.stat().st_size
    require(grown <= size // 2, f"a dry run of a file of {mib(size)} took {mib(grown)}")


@scenario("memory", smoke=0, default=1, nightly=1)
def weights_in_memory_of_their_own_must_fit(lab: Lab, draw: Draw) -> None:
    """A device smaller than the weights is refused, unless they stay in the file."""
    path = large_model(DType.F32)
    size = path.stat().st_size
    kind = type(lab.backend)

    def devices(backend: Backend) -> list[DeviceInfo]:
        return [replace(d, total_memory=size // 2, free_memory=size // 2) for d in kind.devices(backend)]

    small = type(kind.__name__, (kind,), {"devices": devices})
    params = BackendParams(num_threads=2, options=lab.opening.options)

    def opened() -> Backend:
        backend = backbay.open(path, backend=small, params=params)
        try:
            backend.load()
        except BaseException:
            backend.close()
            raise
        return backend

    try:
        grown = opening_growth(opened)
    except NoMemoryError:
        return
    told = f"{mib(size)} of weights were loaded onto devices of {mib(size // 2)} each"
    require(grown <= size // 2, f"{told}, and {mib(grown)} of them lie in memory that no file backs")


def opening_growth(open_backend: Callable[[], Backend]) -> int:
    """The bytes that no file backs, and that a second opening takes; 0 where the system does not tell."""
    open_backend().close()  # libraries and pools stay
    gc.collect()
    return_freed_memory()
    if not PEAK.exists():
        return 0
    before = own_pages()
    with open_backend():
        return_freed_memory()
        return own_pages() - before
