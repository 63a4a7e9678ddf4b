"""The child process of a trial of native code: it runs small models, and compares their results with NumPy.

It exits with 0, and prints what is wrong with one purpose, or as JSON with each; nothing if the results agree.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from backbay import DType
from backbay.internals import Array, TrialCase, random_blocks, recurrence_cases
from backbay.plugin import decode

from .native import (
    ATTENTION,
    DOMAIN,
    EMULATED,
    FORMATS,
    GATES,
    PRODUCTS,
    RECURRENCE,
    TILES,
    formats_of,
    instructions,
)
from .runtime import runtime

CLOSE = 1e-3
ROWS, INNER, COLUMNS = 70, 1280, 9
COUNTS = (*range(16, 33), 41, 64)  # of columns: tiles of each size
TIMED = (16, 64)
LARGE = (2048, 2048)  # rows and inner: the product takes longer than the call
FASTER = 0.95  # of the time without AMX


def products(path: Path) -> bool:
    """Whether products of random weights of each dtype are right, and rows of the weights."""
    return all(_multiplies(path, dtype) for dtype in formats_of(path))


def _multiplies(path: Path, dtype: DType) -> bool:
    rng, format_ = np.random.default_rng(2), FORMATS[dtype]
    data = random_blocks(dtype, ROWS * INNER, rng).reshape(ROWS, -1)
    numbers = decode(data.reshape(ROWS, -1, dtype.type_size), dtype).reshape(ROWS, INNER)
    x = rng.integers(-127, 128, (COLUMNS, INNER)).astype(np.float32)
    x[:, ::32] = 127  # so that codes are exact
    ids = np.array([ROWS - 1, 0, 3], np.int64)
    nodes = [*product_nodes(format_, ROWS), node("Rows", ["w", "ids"], "rows", format=format_)]
    product, rows = run(path, nodes, {"w": data, "x": x, "ids": ids}, ["y", "rows"])
    expected = x @ numbers.T
    return np.array_equal(rows, numbers[ids]) and bool(
        np.allclose(product, expected, rtol=CLOSE, atol=CLOSE * np.abs(expected).max())
    )


def tiles(path: Path) -> str:
    """What keeps products of many columns by AMX from being used: other bits than without it, or more time."""
    ways = [formats_of(path, tiles=tiles) for tiles in (False, True)]
    timed = () if instructions(path, TILES) == EMULATED else TIMED
    for dtype in ways[0]:
        sides = [Multiplication(path, dtype, way[dtype], ROWS, INNER) for way in ways]
        for columns in COUNTS:
            without, found = (side.product(columns) for side in sides)
            if found.tobytes() != without.tobytes():
                return f"other results for {dtype}, {columns} columns"
        sides = [Multiplication(path, dtype, way[dtype], *LARGE) for way in ways]
        for columns in timed:
            usual, took = (min(side.seconds(columns) for _ in range(7)) for side in sides)
            if took > FASTER * usual:
                times = f"{took * 1e3:.2f} ms in place of {usual * 1e3:.2f}"
                return f"no faster for {dtype}, {columns} columns: {times}"
    return ""


class Multiplication:
    """A session that multiplies columns with random weights of a dtype, in a format."""

    def __init__(self, path: Path, dtype: DType, format_: int, rows: int, inner: int) -> None:
        self._inner = inner
        self._weights = random_blocks(dtype, rows * inner, np.random.default_rng(2)).reshape(rows, -1)
        given = {"w": np.uint8, "x": np.float32}
        self._session = opened(path, product_nodes(format_, rows), given, ["y"])

    def product(self, columns: int) -> Array:
        [y] = self._session.run(["y"], {"w": self._weights, "x": self._columns(columns)})
        return np.asarray(y)

    def seconds(self, columns: int) -> float:
        given = {"w": self._weights, "x": self._columns(columns)}
        begun = time.perf_counter()
        self._session.run(["y"], given)
        return time.perf_counter() - begun

    def _columns(self, count: int) -> Array:
        return np.random.default_rng(count).standard_normal((count, self._inner), np.float32)


def attention(path: Path) -> bool:
    """Whether attention of many queries, and of one, to causal histories in f32 and f16 is right."""
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.standard_normal((count, heads, 72), np.float32) for count, heads in ((65, 4), (599, 1), (599, 1))
    )
    hidden = np.arange(599) > np.arange(65)[:, None] + 534
    mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
    scores = np.einsum("qhd,kgd->hqk", q, k) * np.float32(0.1) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hqk,kgd->qhd", weights / weights.sum(-1, keepdims=True), v)
    many, one = _attended(path, q, k, v, mask), _attended(path, q[:1], k, v, mask[:1])
    halves = _attended(path, q, k.astype(np.float16), v.astype(np.float16), mask.astype(np.float16))
    found = (many, expected, CLOSE), (one, expected[:1], CLOSE), (halves, expected, 10 * CLOSE)
    return all(np.allclose(result, right, rtol=most, atol=most) for result, right, most in found)


def _attended(path: Path, q: Array, k: Array, v: Array, mask: Array) -> Array:
    nodes = [
        node("Cells", ["mask"], "table", group=q.shape[1] // k.shape[1]),
        node("Attention", ["q", "k", "v", "", "mask", "table"], "y", scale=0.1, softcap=0.0),
    ]
    given = {"q": q, "k": k, "v": v, "mask": mask}
    [y] = run(path, nodes, given, ["y"])
    return y


def gates(path: Path) -> bool:
    """Whether silu is right, with another factor and without."""
    x, up = np.random.default_rng(3).standard_normal((2, 3, 1000)).astype(np.float32) * np.float32(20)
    nodes = [node("Silu", ["x", ""], "y"), node("Silu", ["x", "up"], "gated")]
    y, gated = run(path, nodes, {"x": x, "up": up}, ["y", "gated"])
    expected = x / (1 + np.exp(-x.astype(np.float64)))
    return bool(np.allclose(y, expected, rtol=CLOSE) and np.allclose(gated, expected * up, rtol=CLOSE))


def recurrence(path: Path) -> bool:
    """Whether both delta rules and the selective scan are right for some tokens and sequences."""
    return all(_recurs(path, case) for case in recurrence_cases())


def _recurs(path: Path, case: TrialCase) -> bool:
    """The custom op of the scan has no ids: its states come in the sequences' order."""
    operands = list(case.operands)
    if case.op == "ssm_scan":
        operands[0] = operands[0][operands.pop()]
    named = {f"x{n}": x for n, x in enumerate(operands)}
    inputs = [*named, *[""] * (7 - len(named))] if case.op == "delta_rule" else list(named)
    [found] = run(path, [node(CUSTOM[case.op], inputs, "y")], named, ["y"])
    return bool(np.allclose(found, case.expected, rtol=CLOSE, atol=CLOSE))


CUSTOM = {"delta_rule": "DeltaRule", "ssm_scan": "SelectiveScan"}
TRIALS: dict[str, Callable[[Path], bool | str]] = {
    ATTENTION: attention,
    GATES: gates,
    PRODUCTS: products,
    RECURRENCE: recurrence,
    TILES: tiles,
}
"""Each tells whether all is right, or what is not."""


def product_nodes(format_: int, rows: int) -> list[NodeProto]:
    """y, the products of weights w and columns x."""
    return [
        node("Columns", ["x"], "codes", format=format_),
        node("Products", ["w", "codes", "w"], "y", format=format_, first=0, rows=rows),
    ]


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    """A custom op of ours."""
    return helper.make_node(op, inputs, [output], domain=DOMAIN, **attributes)


def run(
    path: Path, nodes: Sequence[NodeProto], given: Mapping[str, Array], wanted: Sequence[str]
) -> list[Array]:
    """Values of a model of these nodes."""
    session = opened(path, nodes, {name: array.dtype for name, array in given.items()}, wanted)
    found: list[Array] = session.run(list(wanted), dict(given))
    return found


def opened(path: Path, nodes: Sequence[NodeProto], given: Mapping[str, Any], wanted: Sequence[str]) -> Any:
    """A session of a model of these nodes; `given` are NumPy's types of its inputs."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, dtype in given.items()}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in wanted]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "trial", inputs, outputs)
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    ort = runtime()
    options: Any = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 2
    options.register_custom_ops_library(str(path))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main(path: str, *purposes: str) -> int:
    """Print what is wrong with the code for a purpose, or as JSON for each that this processor has code for."""
    chosen = purposes or [purpose for purpose in TRIALS if instructions(Path(path), purpose)]
    found = {purpose: _wrong(Path(path), purpose) for purpose in chosen}
    sys.stdout.write(found[purposes[0]] if purposes else json.dumps(found))
    return 0


def _wrong(path: Path, purpose: str) -> str:
    found = TRIALS[purpose](path)
    return found if isinstance(found, str) else "" if found else "wrong results"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
