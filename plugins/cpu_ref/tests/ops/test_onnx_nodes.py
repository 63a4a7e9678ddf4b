"""ONNX's own test data for the ops that it shares with backbay, each brought over by an adapter."""

from collections import defaultdict
from math import sqrt

import numpy as np
import pytest
from onnx_cases import cases_of

from backbay import DType

onnx = pytest.importorskip("onnx")

ADAPTERS = {}
"""By ONNX's op: a function of context, attributes and inputs that gives a tensor, or None where no op of ours fits."""


@pytest.fixture(scope="module")
def cases():
    """By op, (name, attributes, names of inputs, inputs, outputs) of the tests of one node."""
    found = defaultdict(list)
    for case in cases_of("TopK", *ADAPTERS):
        nodes = case.model.graph.node
        if len(nodes) == 1:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in nodes[0].attribute}
            data = [[array(x) for x in given] for given in case.data_sets[0]]
            found[nodes[0].op_type].append((case.name, attributes, list(nodes[0].input), *data))
    return found


def array(x):
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x


def adapter(*names):
    def register(function):
        ADAPTERS.update(dict.fromkeys(names, function))
        return function

    return register


def simple(name, **fixed):
    return lambda ctx, attributes, x: None if attributes else getattr(ctx.from_floats(x), name)(ctx, **fixed)


for theirs in ("Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Neg", "Sin", "Cos", "Softplus"):
    ADAPTERS[theirs] = simple(theirs.lower())


@adapter("Gelu")
def gelu(ctx, attributes, x):
    name = "gelu" if attributes.get("approximate") == b"tanh" else "gelu_erf"
    return getattr(ctx.from_floats(x), name)(ctx)


@adapter("Clip")
def clip(ctx, attributes, x, low=None, high=None):
    if low is None or high is None or x.dtype.kind != "f" or low > high:
        return None
    return ctx.from_floats(x).clamp(ctx, float(low), float(high))


def binary(name):
    return lambda ctx, attributes, a, b: (
        getattr(ctx.from_floats(a), name)(ctx, ctx.from_floats(b)) if a.dtype == np.float32 else None
    )


for theirs in ("Add", "Sub", "Mul", "Div"):
    ADAPTERS[theirs] = binary(theirs.lower())


@adapter("MatMul")
def matmul(ctx, attributes, a, b):
    if min(a.ndim, b.ndim) < 2 or a.shape[:-2] != b.shape[:-2]:
        return None
    order = (1, 0, *range(2, b.ndim))
    return ctx.from_floats(b).permute(ctx, *order).mulmat(ctx, ctx.from_floats(a))


def along(ctx, x, axis, act):
    """An op over dimension 0, done over another axis of an array."""
    dim = x.ndim - 1 - axis % x.ndim
    there = [i + 1 if i < dim else 0 if i == dim else i for i in range(x.ndim)]
    back = [dim if i == 0 else i - 1 if i <= dim else i for i in range(x.ndim)]
    y = act(ctx.from_floats(x).permute(ctx, *there))
    return y.permute(ctx, *back).contiguous(ctx)


@adapter("Softmax")
def softmax(ctx, attributes, x):
    return along(ctx, x, attributes.get("axis", -1), lambda t: t.softmax(ctx))


@adapter("LayerNormalization")
def layer_norm(ctx, attributes, x, weight, bias):
    if attributes.get("axis", -1) not in (-1, x.ndim - 1):
        return None
    w, b, eps = ctx.from_floats(weight), ctx.from_floats(bias), attributes.get("epsilon", 1e-5)
    return ctx.from_floats(x).layer_norm(ctx, w, b, eps)


@adapter("RMSNormalization")
def rms_norm(ctx, attributes, x, weight):
    if attributes.get("axis", -1) not in (-1, x.ndim - 1):
        return None
    return ctx.from_floats(x).rms_norm(ctx, ctx.from_floats(weight), attributes.get("epsilon", 1e-5))


def reduction(act):
    def reduce(ctx, attributes, x, axes=()):
        if len(axes) != 1 or not x.size:
            return None
        return along(ctx, x, int(axes[0]), lambda t: act(ctx, t))

    return reduce


ADAPTERS["ReduceMean"] = reduction(lambda ctx, t: t.mean(ctx))
ADAPTERS["ReduceSum"] = reduction(lambda ctx, t: t.sum_rows(ctx))
ADAPTERS["ReduceSumSquare"] = reduction(lambda ctx, t: t.sqr(ctx).sum_rows(ctx))


@adapter("CumSum")
def cumsum(ctx, attributes, x, axis):
    if attributes or x.dtype.kind != "f":
        return None
    return along(ctx, x, int(axis), lambda t: t.cumsum(ctx))


@adapter("LpNormalization")
def l2_norm(ctx, attributes, x):
    if attributes.get("p", 2) != 2:
        return None
    return along(ctx, x, attributes.get("axis", -1), lambda t: t.l2_norm(ctx))


@adapter("Gather")
def gather(ctx, attributes, data, indices):
    if attributes.get("axis", 0) or (indices < 0).any() or data.dtype != np.float32:
        return None
    table = ctx.from_floats(data.reshape(data.shape[0], -1))
    return table.rows(ctx, ctx.from_ints(indices.ravel().astype(np.int32)))


@adapter("ScatterND")
def scatter(ctx, attributes, data, indices, updates):
    if attributes:
        return None
    table = ctx.from_floats(data.reshape(data.shape[0], -1))
    ids = ctx.empty(DType.I64, indices.size).from_ints(indices.ravel())
    return table.set_rows(ctx, ctx.from_floats(updates.reshape(indices.size, -1)), ids)


@adapter("Pad")
def pad(ctx, attributes, x, pads, fill=0.0, axes=None):
    if attributes.get("mode", b"constant") != b"constant" or axes is not None:
        return None
    n, other = x.ndim, ctx.from_floats([float(fill)])
    amounts = [int(pads[i]) for d in range(n) for i in (n - 1 - d, 2 * n - 1 - d)]
    return ctx.from_floats(x).sub(ctx, other).pad_ext(ctx, *amounts).add(ctx, other)


@adapter("Tile")
def tile(ctx, attributes, x, repeats):
    return ctx.from_floats(x).repeat_4d(
        ctx, *[int(n * r) for n, r in zip(x.shape, repeats, strict=True)][::-1]
    )


@adapter("Concat")
def concat(ctx, attributes, a, b):
    return ctx.from_floats(a).concat(ctx, ctx.from_floats(b), a.ndim - 1 - attributes["axis"] % a.ndim)


@adapter("Transpose")
def transpose(ctx, attributes, x):
    order = attributes.get("perm", range(x.ndim)[::-1])  # axis i of the result is order[i] of x
    n = x.ndim
    to = [n - 1 - list(order).index(n - 1 - dim) for dim in range(n)]
    return ctx.from_floats(x).permute(ctx, *to).contiguous(ctx)


@adapter("Slice")
def slices(ctx, attributes, x, starts, ends, axes=None, steps=None):
    y = ctx.from_floats(x)
    for i, (low, high) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else axes[i] % x.ndim
        step = 1 if steps is None else int(steps[i])
        first, end, _ = slice(int(low), int(high), step).indices(x.shape[axis])
        if step < 1:
            return None
        y = y.slice(ctx, x.ndim - 1 - axis, first, max(first, end), step)
    return y


@adapter("Reshape")
def reshape(ctx, attributes, x, shape):
    if 0 in shape:  # which stands for an extent that stays, or for none
        return None
    return ctx.from_floats(x).reshape(ctx, *[int(n) for n in shape][::-1])


KINDS = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16}
TARGETS = {1: DType.F32, 10: DType.F16, 16: DType.BF16}


@adapter("Cast")
def cast(ctx, attributes, x):
    if not isinstance(x, np.ndarray) or x.dtype.name not in KINDS or attributes["to"] not in TARGETS:
        return None
    source = ctx.from_bytes(KINDS[x.dtype.name], x.tobytes(), *x.shape[::-1])
    return source.cast(ctx, TARGETS[attributes["to"]])


@adapter("Attention")
def attention(ctx, attributes, q, k, v, mask=None):
    if q.ndim != 4 or q.dtype != np.float32 or set(attributes) - {"scale", "softcap", "is_causal"}:
        return None
    bias = np.zeros((q.shape[2], k.shape[2])) if mask is None else mask
    bias = np.where(bias, 0.0, -np.inf) if bias.dtype == bool else bias
    if attributes.get("is_causal"):
        bias = bias + np.where(np.tri(q.shape[2], k.shape[2], dtype=bool), 0.0, -np.inf)
    if bias.shape[-1] != k.shape[2] or not np.isfinite(bias).any(-1).all():
        return None  # shorter masks, and rows that nothing is left of, mean something else there
    leaves = [ctx.from_floats(np.ascontiguousarray(x.swapaxes(1, 2))) for x in (q, k, v)]
    scale, softcap = attributes.get("scale", 1 / sqrt(q.shape[3])), attributes.get("softcap", 0.0)
    query, key, value = leaves
    y = query.scaled_dot_product_attention(
        ctx, key, value, ctx.from_floats(bias.astype(np.float32)), scale=scale, softcap=softcap
    )
    return y.permute(ctx, 0, 2, 1, 3).contiguous(ctx)


LEAST = {
    "Add": 2,
    "Sub": 3,
    "Mul": 3,
    "Div": 3,
    "MatMul": 3,
    "Softmax": 7,
    "Gelu": 4,
    "LayerNormalization": 6,
}
LEAST |= {
    "RMSNormalization": 6,
    "ReduceMean": 6,
    "ReduceSum": 6,
    "ReduceSumSquare": 6,
    "CumSum": 4,
    "Concat": 12,
}
LEAST |= {
    "Transpose": 7,
    "Slice": 7,
    "Reshape": 7,
    "Cast": 4,
    "Attention": 15,
    "LpNormalization": 3,
    "Clip": 3,
}
"""How many tests of an op must fit, so that an adapter that refuses too much is seen."""


@pytest.mark.parametrize("op", sorted(ADAPTERS))
@pytest.mark.few(12)
def test_onnx_agrees(ctx, cases, op):
    ran = []
    for name, attributes, names, inputs, outputs in cases[op]:
        if "" in names:  # an optional input is left out
            continue
        try:
            y = ADAPTERS[op](ctx, attributes, *inputs)
        except TypeError as error:
            if "positional argument" in str(error):  # more inputs than the adapter knows
                continue
            raise
        if y is not None:
            ctx.compute(y)
            theirs = outputs[0].astype(np.float64)
            ours = y.numpy().astype(np.float64).reshape(theirs.shape)
            exact = op == "Cast"
            np.testing.assert_allclose(
                ours, theirs, rtol=0 if exact else 2e-6, atol=0 if exact else 1e-6, err_msg=name
            )
            ran.append(name)
    assert len(ran) >= LEAST.get(op, 1), ran


def test_the_largest_of_onnx_are_ours(ctx, cases):
    ran = []
    for name, attributes, _, (x, k), (values, _) in cases["TopK"]:
        if (
            x.dtype.kind == "f"
            and attributes.get("largest", 1)
            and attributes.get("axis", -1) in (-1, x.ndim - 1)
        ):
            y = ctx.from_floats(x).top_k(ctx, int(k[0]))
            ctx.compute(y)
            np.testing.assert_array_equal(
                np.take_along_axis(x, y.numpy().astype(int), -1), values
            )  # ties vary
            ran.append(name)
    assert len(ran) >= 2, ran
