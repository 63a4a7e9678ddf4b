"""PyTorch, where it is installed, computes the same in float64."""

import numpy as np
import pytest
from exact import assert_rounds_to, leaf, numbers, value

from backbay import DType

torch = pytest.importorskip("torch")
F = torch.nn.functional
SLACK = 1e-12  # PyTorch's own functions and sums in float64


def theirs(x):
    """An array with dimension 0 first, as a float64 tensor with it last."""
    return torch.from_numpy(np.ascontiguousarray(x.T))


UNARY = {
    "silu": F.silu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "relu": F.relu,
    "softplus": lambda x: F.softplus(x, threshold=1e9),
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: F.softmax(x, -1),
    "cumsum": lambda x: x.cumsum(-1),
    "variance": lambda x: x.var(-1, correction=0, keepdim=True),
    "stddev": lambda x: x.std(-1, correction=0, keepdim=True),
    "l2_norm": lambda x: F.normalize(x, dim=-1),
    "mean": lambda x: x.mean(-1, keepdim=True),
}


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=str)
def test_pytorch_agrees(ctx, op, dtype):
    x = numbers(np.random.default_rng(1), (65, 3, 2), dtype)
    assert_rounds_to(
        value(ctx, getattr(leaf(ctx, x, dtype), op)(ctx)), UNARY[op](theirs(x)).numpy().T, dtype, SLACK
    )


@pytest.mark.parametrize("eps", [1e-5, 0.25])
def test_pytorch_normalizes_alike(ctx, eps):
    random = np.random.default_rng(2)
    x, w, b = (numbers(random, shape) for shape in ((65, 3), (65,), (65,)))
    eps32 = float(np.float32(eps))
    ours = leaf(ctx, x).layer_norm(ctx, leaf(ctx, w), leaf(ctx, b), eps)
    expected = F.layer_norm(theirs(x), (65,), theirs(w), theirs(b), eps32)
    assert_rounds_to(value(ctx, ours), expected.numpy().T, DType.F32, SLACK)
    ours = leaf(ctx, x).rms_norm(ctx, leaf(ctx, w), eps)
    assert_rounds_to(
        value(ctx, ours), F.rms_norm(theirs(x), (65,), theirs(w), eps32).numpy().T, DType.F32, SLACK
    )


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("masked", [False, True])
def test_pytorch_attends_alike(ctx, heads, masked):
    random = np.random.default_rng(3)
    q, k, v = (numbers(random, s) for s in ((8, 6, 5, 2), (8, heads, 7, 2), (4, heads, 7, 2)))
    mask = np.where(random.random((7, 5)) < 0.4, -np.inf, numbers(random, (7, 5))) if masked else None
    if masked:
        mask[0] = 0.0
    expected = F.scaled_dot_product_attention(
        *[theirs(x).transpose(1, 2) for x in (q, k, v)],
        attn_mask=theirs(mask) if masked else None,
        scale=0.5,
        enable_gqa=True,
    ).transpose(1, 2)
    others = [leaf(ctx, mask)] if masked else []
    y = leaf(ctx, q).scaled_dot_product_attention(ctx, leaf(ctx, k), leaf(ctx, v), *others, scale=0.5)
    assert_rounds_to(value(ctx, y), expected.numpy().T, DType.F32, SLACK)


def test_pytorch_picks_the_same_largest(ctx):
    x = numbers(np.random.default_rng(4), (33, 4))
    places = value(ctx, leaf(ctx, x).top_k(ctx, 9))
    np.testing.assert_array_equal(np.take_along_axis(x, places, 0), theirs(x).topk(9).values.numpy().T)


def test_pytorch_rounds_to_bf16_alike(ctx):
    x = np.float32(
        np.random.default_rng(5).standard_normal(10000)
        * 10.0 ** np.random.default_rng(6).integers(-44, 38, 10000)
    )
    ours = value(ctx, leaf(ctx, x).cast(ctx, DType.BF16))
    np.testing.assert_array_equal(ours, torch.from_numpy(x).to(torch.bfloat16).float().numpy())
