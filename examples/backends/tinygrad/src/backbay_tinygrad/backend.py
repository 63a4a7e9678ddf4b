"""The backend: tinygrad's tensors, and what of the array API standard tinygrad has under another name."""

from collections.abc import Callable, Sequence
from math import prod
from threading import RLock
from types import SimpleNamespace
from typing import Any

import numpy as np
from tinygrad import Tensor, TinyJit, Variable, dtypes
from tinygrad.dtype import _from_np_dtype
from tinygrad.helpers import CACHELEVEL, LRU, PARALLEL

from backbay import ops
from backbay.kernels import array_kernels, count_temporaries
from backbay.plugin import NUMPY, ArrayEngine, ArrayProgram, DType, GraphBackend, GraphFunction, Node

Array = Any  # a Tensor
LOCK = RLock()
"""One thread at a time: tinygrad's settings are those of the whole process."""
BITS = {2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def moveaxis(x: Array, source: Any, target: Any) -> Array:
    order = np.moveaxis(np.empty((0, *range(1, x.ndim))), source, target).shape  # each extent names its axis
    return x.permute(*order)


def tensordot(x: Array, y: Array, axes: tuple[list[int], list[int]]) -> Array:
    own, others = ([n for n in range(each.ndim) if n not in axes[i]] for i, each in enumerate((x, y)))
    shared = prod(x.shape[n] for n in axes[0])
    a, b = x.permute(*own, *axes[0]).reshape(-1, shared), y.permute(*axes[1], *others).reshape(shared, -1)
    return (a @ b).reshape(*(x.shape[n] for n in own), *(y.shape[n] for n in others))


def concat(arrays: Sequence[Array], axis: int = 0) -> Array:
    """tinygrad's adds padded arrays, so -0 becomes 0; bits do not change."""
    kind = arrays[0].dtype
    first, *others = (each.bitcast(BITS[kind.itemsize]) if dtypes.is_float(kind) else each for each in arrays)
    return first.cat(*others, dim=axis).bitcast(kind)


def logaddexp(x: Array, y: Array) -> Array:
    """tinygrad's is NaN for infinity."""
    return x.maximum(y) + (1 + (-(x - y).abs()).exp()).log()


def tanh(x: Array) -> Array:
    """tinygrad's subtracts 1 from a sigmoid, which leaves little of small numbers."""
    square = x * x
    small = x * (1 - square * (1 / 3 - square * (2 / 15 - square * 17 / 315)))
    return (x.abs() < 0.2).where(small, x.tanh())


def argsort(x: Array, axis: int, stable: bool) -> Array:
    """By NumPy: tinygrad's network of comparisons compiles for seconds, and loses the indices of NaN."""
    return Tensor(np.argsort(x.numpy(), axis=axis, kind="stable"))


SAME = ("sqrt", "exp", "sin", "abs", "where", "eye", "arange", "zeros_like", "full_like")
xp = SimpleNamespace(
    **{name: getattr(Tensor, name) for name in SAME},
    bool=dtypes.bool, int64=dtypes.int64, float32=dtypes.float32,
    moveaxis=moveaxis, tensordot=tensordot, concat=concat, concatenate=concat, tanh=tanh, logaddexp=logaddexp, argsort=argsort,
    cos=lambda x: 1 - 2 * (x * 0.5).sin().square(),  # tinygrad's adds pi / 2 to x, which is coarse beyond a period
    asarray=lambda x: Tensor(np.ascontiguousarray(x)),
    astype=lambda x, dtype: x.cast(dtype),
    isdtype=lambda dtype, kind: dtypes.is_int(dtype),
    zeros=lambda shape, dtype: Tensor.zeros(*shape, dtype=dtype),
    tile=lambda x, times: x.repeat(*times),
    repeat=lambda x, times, axis: x.repeat_interleave(times, dim=axis),
    stack=lambda xs, axis: Tensor.stack(*xs, dim=axis),
    take=lambda x, index, axis: x[(slice(None),) * axis + (index,)],
    # Computed at once: the sum of a row of one element is the element itself, and tinygrad folds x - x to 0.
    sum=lambda x, axis, keepdims=False: x.sum(axis=axis, keepdim=keepdims).realize(),
    max=lambda x, axis, keepdims: x.max(axis=axis, keepdim=keepdims).realize(),
    cumulative_sum=lambda x, axis: x.cumsum(axis),
    broadcast_to=lambda x, shape: x.expand(*shape),
    permute_dims=lambda x, axes: x.permute(*axes),
    matrix_transpose=lambda x: x.transpose(-1, -2),
)  # fmt: skip


class TinygradEngine(ArrayEngine):
    """Tensors of tinygrad's default device. Floats are stored as their bits: an index may turn -0 into 0."""

    xp = xp

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
            with LOCK:
                outputs, values = program(read, written)
                for each in (*outputs, *values):
                    each.realize()
                return outputs, values

        return run

    def to_engine(self, data: np.ndarray, dtype: DType) -> Array:
        with LOCK:
            return Tensor(data.view(f"u{data.itemsize}") if data.dtype.kind == "f" else data).realize()

    def to_host(self, storage: Array) -> np.ndarray:
        with LOCK:
            return storage.numpy().reshape(-1)

    def numbers(self, stored: Array, dtype: DType) -> Array:
        if dtype is DType.BF16:  # which not every device has
            return (stored.cast(dtypes.uint32) << 16).bitcast(dtypes.float32)
        return stored.bitcast(_from_np_dtype(NUMPY[dtype])).cast(dtypes.float32)

    def stored(self, numbers: Array, dtype: DType) -> Array:
        """Computed at once: tinygrad folds away a cast to f16 and back."""
        if dtype.is_integer:
            return numbers.cast(_from_np_dtype(NUMPY[dtype])).realize()
        if dtype is not DType.BF16:
            kind = NUMPY[dtype]
            return numbers.cast(_from_np_dtype(kind)).realize().bitcast(BITS[kind.itemsize])
        bits = numbers.cast(dtypes.float32).bitcast(dtypes.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        return (is_nan.where(bits | 0x400000, rounded) >> 16).cast(dtypes.uint16).realize()


def run_loop(body: Callable[[Any], Array], order: Sequence[int]) -> list[np.ndarray]:
    """The results of a loop's body for each number; tinygrad compiles the body once, and replays it from the third on."""
    n, compiled = Variable("n", 0, len(order)), TinyJit(body)
    return [compiled(n.bind(number)).numpy() for number in order]


def solve_triangular(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    """a^-1 b, row by row."""
    count = a.shape[-1]
    row, column = Tensor.arange(count)[:, None], Tensor.arange(count)[None]
    known = (column < row if lower else column > row).where(a, 0).realize()
    diagonal = Tensor.ones(count, 1) if unit_diagonal else (row == column).where(a, 0).sum(-1, keepdim=True)
    diagonal, x = diagonal.realize(), Tensor.zeros(*b.shape).clone().realize()

    def solve_row(n: Any) -> Array:
        return x.assign((row == n).where((b - known @ x) / diagonal, x)).realize()

    run_loop(solve_row, range(count) if lower else range(count)[::-1])
    return x


def scan(
    step: Callable[..., tuple[Array, Array]], state: Array, sequences: Sequence[Array]
) -> tuple[Array, Array]:
    """As jax.lax.scan."""
    state, sequences = state.clone().realize(), [each.contiguous().realize() for each in sequences]

    def run_step(n: Any) -> Array:
        new, result = step(state, [each[n] for each in sequences])
        Tensor.realize(result, state.assign(new))
        return result

    results = run_loop(run_step, range(sequences[0].shape[0]))
    return state, Tensor(np.stack(results)) if results else sequences[0]


KERNELS = array_kernels(xp, erfc=lambda x: 1 - x.erf(), solve_triangular=solve_triangular, scan=scan)


def set_rows(x: Array, src: Array, ids: Array) -> Array:
    """By an index that the host finds: tinygrad's scatter nests a choice for each row."""
    x, rows = (each.reshape((1,) * (4 - each.ndim) + each.shape[-4:]) for each in (x, src))
    wanted = ids.numpy().reshape((1,) * (3 - ids.ndim) + ids.shape[-3:])
    if not wanted.size or not rows.numel():
        return x
    wanted = np.tile(wanted, (rows.shape[0] // wanted.shape[0], rows.shape[1] // wanted.shape[1], 1))
    origin = np.full(x.shape[:3], -1)
    np.put_along_axis(origin, wanted, np.broadcast_to(np.arange(wanted.shape[2]), wanted.shape), axis=2)
    new = KERNELS[ops.rows](rows, Tensor(np.maximum(origin, 0)))
    return Tensor(origin[..., None] >= 0).where(new, x)


def scale(x: Array, s: float) -> Array:
    return x * Tensor([s]).realize()  # tinygrad folds x * 0 to 0, also for infinity


def apart(kernel: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    """A kernel whose second operand is a copy: tinygrad folds x - x to 0 and x / x to 1, also for infinity."""
    return lambda x, t2: kernel(x, t2.clone().realize())


class TinygradBackend(GraphBackend):
    """tinygrad on its default device."""

    contract_version = "1.2"
    kernels = {
        **KERNELS,
        ops.set_rows: set_rows,
        ops.scale: scale,
        ops.sub: apart(KERNELS[ops.sub]),
        ops.div: apart(KERNELS[ops.div]),
    }
    engine = TinygradEngine()

    def start(self) -> None:
        LRU.value = 0  # else it keeps the memory of tensors that are gone
        CACHELEVEL.value = 0  # its cache on the disk serves one thread only
        PARALLEL.value = 0  # no processes that compile: they take more time than small programs
        super().start()

    def working_memory(self, node: Node) -> int:
        return super().working_memory(node) + 4 * count_temporaries(node)
