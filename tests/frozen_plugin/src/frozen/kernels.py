"""Kernels over NumPy arrays of the reversed shape: what a Llama needs, and a few more."""

import numpy as np
from backbay import ops
from backbay.plugin import KernelTable

kernel = KernelTable()


def four(x):
    """With leading extents of 1, so that operands of any rank fit each other."""
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def repeated(x, t2):
    """The second operand of a binary op, repeated to the first one's shape."""
    x, t2 = four(x), four(t2)
    return x, np.tile(t2, [have // max(want, 1) for have, want in zip(x.shape, t2.shape, strict=True)])


@kernel(ops.add)
def add(x, t2):
    x, t2 = repeated(x, t2)
    return x + t2


@kernel(ops.sub)
def sub(x, t2):
    x, t2 = repeated(x, t2)
    return x - t2


@kernel(ops.mul)
def mul(x, t2):
    x, t2 = repeated(x, t2)
    return x * t2


@kernel(ops.div)
def div(x, t2):
    x, t2 = repeated(x, t2)
    return x / t2


@kernel(ops.neg)
def neg(x):
    return -x


@kernel(ops.sqrt)
def sqrt(x):
    return np.sqrt(x)


@kernel(ops.exp)
def exp(x):
    return np.exp(x)


@kernel(ops.tanh)
def tanh(x):
    return np.tanh(x)


@kernel(ops.sigmoid)
def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@kernel(ops.scale)
def scale(x, s):
    return x * x.dtype.type(s)


@kernel(ops.fill)
def fill(x, value):
    return np.full_like(x, value)


@kernel(ops.mean)
def mean(x):
    return x.sum(-1, keepdims=True) / x.shape[-1]


@kernel(ops.softmax)
def softmax(x):
    if not x.size:
        return x
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def product(w, x):
    w, x = four(w), four(x)
    for axis in (0, 1):  # consecutive groups of x share a slice of w
        w = np.repeat(w, x.shape[axis] // max(w.shape[axis], 1), axis)
    return x @ np.swapaxes(w, -1, -2)


@kernel(ops.mulmat)
def mulmat(w, x):
    return product(w, x)


@kernel(ops.mulmat_full_prec)
def mulmat_full_prec(w, x):
    return product(w, x)


@kernel(ops.contiguous)
def contiguous(x, *shape):
    return x


@kernel(ops.concat)
def concat(x, t2, dim):
    x, t2 = four(x), four(t2)
    return np.concatenate([x, t2], axis=3 - dim)


@kernel(ops.rows)
def rows(x, ids):
    x, ids = four(x), four(ids)[0]
    outer, group = (np.arange(n) % x.shape[i] for i, n in enumerate(ids.shape[:2]))
    return x[outer[:, None, None], group[:, None], ids]


@kernel(ops.copy)
def copy(x, dst):
    dst[...] = x.reshape(dst.shape)


@kernel(ops.set_rows)
def set_rows(x, src, ids):
    target, src, ids = x[(None,) * (4 - x.ndim)], four(src), four(ids)[0]
    outer, group = (np.arange(n) for n in src.shape[:2])
    where = ids[outer[:, None] % ids.shape[0], group % ids.shape[1]]
    target[outer[:, None, None], group[:, None], where] = src
