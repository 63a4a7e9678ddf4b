"""Weights drawn for a model file, the file opened on a backend, and the comparison of each weight with its data."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from backbay import Backend, Context, DType, Precision, Tensor, ops

from ...draw.data import FillContext, Numbers
from ...draw.draw import Draw
from ...draw.layout import Layout
from ...draw.model_file import write_model
from ...draw.operand import Operand
from ...fault import Fault
from ...numbers.comparison import first_bits, must_equal
from ...numbers.encoding import Array, from_bytes
from ...suite.lab import Lab

LAYERS = 3
ALIGNMENTS = (32, 4096, 8, 128)  # of the weights within a file
EXACT = Precision(DType.F32, DType.F32)
STORED = (DType.F32, DType.F16, DType.Q8_0, DType.BF16, DType.Q4_0, DType.Q4_K, DType.Q6_K)
"""The types of weights, among them those that backends rearrange when they load."""


def drawn_weights(draw: Draw, layers: int = LAYERS) -> dict[str, Operand]:
    found = {}
    for layer in range(layers):
        for part in ("attn_q", "ffn_down"):
            dtype = draw.pick(*STORED)
            shape = (256 * draw.pick(1, 2), draw.pick(4, 1, 33, 64))
            found[f"blk.{layer}.{part}.weight"] = drawn_weight(draw, dtype, shape)
    found["token_embd.weight"] = drawn_weight(draw, draw.pick(*STORED), (256, 7))
    found["output.weight"] = drawn_weight(draw, draw.pick(*STORED), (256, 5))
    return found


def drawn_weight(draw: Draw, dtype: DType, shape: tuple[int, ...]) -> Operand:
    operand = Operand(dtype, shape, Numbers(most=7), Layout(), draw.below(1 << 16))
    rng = np.random.default_rng(operand.seed)
    operand.hold(operand.fill(FillContext(rng, "exact", EXACT, 0), operand))
    return operand


@contextmanager
def open_drawn_weights(
    lab: Lab, draw: Draw, layers: int = LAYERS
) -> Iterator[tuple[Backend, dict[str, Operand]]]:
    """A backend with the drawn weights of a file, which are not loaded yet."""
    weights = drawn_weights(draw, layers)
    with open_weights(lab, weights, layers, draw.by_turn(*ALIGNMENTS)) as backend:
        yield backend, weights


@contextmanager
def open_weights(
    lab: Lab, weights: dict[str, Operand], layers: int, alignment: int = ALIGNMENTS[0], **params: Any
) -> Iterator[Backend]:
    """A backend with the weights of a file, which are not loaded yet."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_weights(Path(folder) / "weights.gguf", weights, layers, alignment)
        with lab.fresh(path, **params) as backend:
            yield backend


def write_weights(
    path: Path, weights: dict[str, Operand], layers: int = LAYERS, alignment: int = ALIGNMENTS[0]
) -> Path:
    stored = ((name, weight.dtype, weight.stored) for name, weight in weights.items())
    return write_model(path, layers, stored, 256, alignment)


def load_and_compare(backend: Backend, weights: dict[str, Operand]) -> None:
    backend.load()
    for name, weight in weights.items():
        compare_weight(backend, name, weight)
    product_of_each(backend, weights)


def compare_weight(backend: Backend, name: str, weight: Operand) -> None:
    tensor = backend.get(name)
    if tensor is None:
        raise Fault("weights", f"get({name!r}) gives nothing")
    got = from_bytes(tensor.bytes(), weight.dtype, weight.shape)
    if got.tobytes() != weight.stored.tobytes():
        differ = first_bits(weight.stored, got, weight.dtype)
        raise Fault("weights", f"{name} of {weight.spec} does not hold the file's data: {differ}")


def product_of_each(backend: Backend, weights: dict[str, Operand]) -> None:
    """Compare the first element of each row, as a product with a unit vector gives it."""
    with backend.new_context() as ctx:
        unit = ctx.from_floats(np.eye(1, 512)[:, :256]), ctx.from_floats(np.eye(1, 512))
        results: dict[str, tuple[Tensor, Array]] = {}
        for name, weight in weights.items():
            tensor, rows = backend.get(name), weight.shape[1]
            assert tensor is not None
            if backend.supports(ops.mulmat, [tensor, unit[0]]):
                x, low = unit[weight.shape[0] > 256], rows // 2
                results[name] = tensor.mulmat(ctx, x), weight.decoded[:, 0]
                if rows > 1:
                    y = tensor.slice(ctx, 1, low, rows).mulmat(ctx, x)
                    results[f"rows {low} to {rows} of {name}"] = y, weight.decoded[low:, 0]
            some = [min(1, rows - 1), rows // 2]
            ids = ctx.from_ints(some)
            if backend.supports(ops.rows, [tensor, ids]):  # of a weight that a product may have rearranged
                results[f"rows of {name}"] = tensor.rows(ctx, ids), weight.decoded[some]
        compare_results(ctx, results, close=CLOSE)


CLOSE = 0.02
"""The most that a product may be off, relative to the largest: activations may be rounded to blocks."""


def compare_results(ctx: Context, results: dict[str, tuple[Tensor, Array]], close: float = 0.0) -> None:
    """Compute results of weights, and compare them with what they must be."""
    ctx.compute(*[y for y, _ in results.values()])
    for told, (y, want) in results.items():
        limit = close * np.abs(want).max(initial=0)
        if close and not np.allclose(y.numpy(), want, rtol=close, atol=limit):
            raise Fault("weights", f"a product with or a read of {told} is not that of the file's data")
        if not close:
            must_equal(y.numpy(), want, told, "weights")
