"""The kernels: a function for each op, with the op's parameters, over the engine's arrays of the reversed shape.

Graphs are pure functions: the kernel of a write returns the new value of its destination.

These kernels are a beginning: `backbay conform mybackend --next` shows which one to write next,
with its specification.
"""

from backbay import ops
from backbay.plugin import KernelTable

from .engine import Array, xp

kernel = KernelTable()


def four(x: Array) -> Array:
    """An array with leading extents of 1, so that operands of all ranks match."""
    return x[(None,) * (4 - x.ndim)]


def repeated(t2: Array, x: Array) -> Array:
    """The second operand of arithmetic, repeated to the shape of the first."""
    return xp.tile(t2, [have // max(want, 1) for have, want in zip(x.shape, t2.shape, strict=True)])


@kernel(ops.mulmat)
def mulmat(w: Array, x: Array) -> Array:
    w, x = four(w), four(x)
    (wb, wa, n, k), (xb, xa, m, _) = w.shape, x.shape
    # Consecutive slices share a slice of w.
    groups = x.reshape(wb, xb // max(wb, 1), wa, xa // max(wa, 1), m, k)
    products = groups @ xp.swapaxes(w[:, None, :, None], -1, -2)  # w is not copied
    y: Array = products.reshape(xb, xa, m, n)
    return y


@kernel(ops.add)
def add(x: Array, t2: Array) -> Array:
    x, t2 = four(x), four(t2)
    return x + repeated(t2, x)


@kernel(ops.mul)
def mul(x: Array, t2: Array) -> Array:
    x, t2 = four(x), four(t2)
    return x * repeated(t2, x)


@kernel(ops.sigmoid)
def sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + xp.exp(-x))
    return y


@kernel(ops.rms_norm)
def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-5) -> Array:
    y: Array = x / xp.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * weight


@kernel(ops.contiguous)
def contiguous(x: Array, *shape: int) -> Array:
    return x  # an op that only moves elements gets them as they are stored; the program reshapes the result


@kernel(ops.copy)
def copy(x: Array, dst: Array) -> Array:
    return x.reshape(dst.shape)
