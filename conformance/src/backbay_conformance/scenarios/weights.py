"""Weights of a model file, which backends may store unlike leaves: rearranged, decoded or in other memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbay import Backend, DType, Level, Op, ops

from ..cases.index import rows_call
from ..cases.matrix import expert_call, product
from ..checks.judgement import cost_of, judge
from ..checks.traced_call import TracedCall, make
from ..draw.data import READABLE, Numbers
from ..draw.draw import FLOATS, Draw
from ..draw.layout import plain
from ..draw.model_file import write_model
from ..draw.operand import Operand
from ..numbers.rounding import Array
from ..suite.case import Call
from ..suite.lab import Lab
from ..suite.scenario import scenario

VARIANTS = (0, 1)
"""The file has two weights for each call, which differ only in their data."""


@dataclass
class Use:
    """A call whose first operand comes from the file."""

    call: Call
    name: str
    traced: TracedCall

    @property
    def weight(self) -> Operand:
        operand: Operand = self.call.args[0]
        return operand

    def names(self) -> list[str]:
        return [self.name.format(variant) for variant in VARIANTS]


@scenario("quant", tiny=1, smoke=3, default=30, nightly=300)
def weights_of_a_file(lab: Lab, draw: Draw) -> None:
    """Products with weights of a file, and rows of weights, are right for each type.

    With weights=copied, they are right although the file is emptied once it is loaded.
    """
    copied = draw.turn % 2 == 1
    uses = [use for use in (drawn(lab, draw, n) for n in range(3)) if use is not None]
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(Path(folder) / "weights.gguf", len(VARIANTS), weights(draw, uses))
            backend = lab.fresh(path, **({"options": {"weights": "copied"}} if copied else {}))
            try:
                backend.load()
                if copied:
                    draw.note("weights=copied, and the file is emptied")
                    path.write_bytes(b"")
                for use in uses:
                    for variant in VARIANTS:
                        check(backend, draw, use, variant)
            finally:
                backend.close()
    finally:
        for use in uses:
            use.traced.close()


def drawn(lab: Lab, draw: Draw, n: int) -> Use | None:
    """A drawn call, or None if the backend does not support it."""
    dtype = (*READABLE, *FLOATS)[(3 * draw.turn + n) % (len(READABLE) + len(FLOATS))]
    kind: Op[..., Any] = draw.pick(ops.mulmat, ops.mulmat, ops.rows, ops.mulmat_id)
    call = {ops.mulmat: product_call, ops.rows: rows_call, ops.mulmat_id: expert_call}[kind](draw, dtype)
    call.op = kind
    weight: Operand = call.args[0]
    weight.layout = plain(dtype, weight.shape)
    traced = TracedCall(lab.backend, call)
    if traced.level is Level.NONE or 0 in weight.shape:
        traced.close()
        return None
    part = {ops.mulmat: "attn_{}", ops.rows: "table_{}", ops.mulmat_id: "ffn_{}_exps"}[kind].format("qkv"[n])
    return Use(call, f"blk.{{}}.{part}.weight", traced)


def product_call(draw: Draw, dtype: DType) -> Call:
    """A product, now and then with a large matrix, which backends may compute in another way."""
    unit = dtype.block_size
    k, n, m = unit * draw.pick(1, 2, 3), draw.pick(8, 1, 16, 33, 64), draw.pick(1, 2, 4, 5, 17, 33)
    if draw.flag(6):
        k, n, m = 2048, draw.pick(520, 1024), draw.pick(1, 2, 5)
    w = draw.operand(dtype, (k, n), Numbers(terms=k, most=7), layout=False)
    x = draw.floats((k, m), Numbers(terms=k, partner=w), dtype=DType.F32, activated=True)
    return Call((w, x), product)


def weights(draw: Draw, uses: list[Use]) -> Iterator[tuple[str, DType, Array]]:
    """Name, type and stored elements of each weight, made one at a time."""
    for use in uses:
        for variant, name in enumerate(use.names()):
            make(use.call, draw.mode, use.traced.precision, variant)
            yield name, use.weight.dtype, use.weight.stored


def check(backend: Backend, draw: Draw, use: Use, variant: int) -> None:
    draw.note(f"{use.call}, the first from a file, number {variant}")
    make(use.call, draw.mode, use.traced.precision, variant)
    traced = TracedCall(backend, use.call, weights={use.weight: use.names()[variant]})
    try:
        traced.write()
        cost = cost_of(use.call, traced.level, traced.precision)
        judge(use.call, traced, traced.run(), cost, draw.mode)
    finally:
        traced.close()
