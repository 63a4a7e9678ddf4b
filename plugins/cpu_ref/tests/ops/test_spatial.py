"""Convolutions, pooling and resampling against their formulas, PyTorch and ONNX's node tests."""

import math
import warnings
from collections import defaultdict
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from exact import normal

from backbay import DType

rng = np.random.default_rng(7)
NAN, INF = math.nan, math.inf
ROUNDED = {"rtol": 2**-24, "atol": 1e-14}  # one rounding to f32; 1e-14 for what cancels in float64


numbers = partial(normal, rng)


def out(extent, size, s, p, d):
    return (extent + 2 * p - d * (size - 1) - 1) // s + 1


def at(image, *place):
    """An element, or the 0 of the padding."""
    inside = all(0 <= i < n for i, n in zip(place, image.shape, strict=True))
    return image[place] if inside else 0.0


def naive_conv(weight, data, strides, paddings, dilations):
    """Kernels (OC, IC, ...) over images (N, IC, ...), one tap at a time, as the docstring's formula reads."""
    sizes = weight.shape[2:]
    extents = [out(*a) for a in zip(data.shape[2:], sizes, strides, paddings, dilations, strict=True)]
    y = np.zeros((data.shape[0], weight.shape[0], *extents))
    for n, o, c in product(range(data.shape[0]), range(weight.shape[0]), range(data.shape[1])):
        for place, tap in product(np.ndindex(*extents), np.ndindex(*sizes)):
            source = [
                i * s + j * d - p
                for i, j, s, p, d in zip(place, tap, strides, paddings, dilations, strict=True)
            ]
            y[n, o, *place] += weight[o, c, *tap] * at(data[n, c], *source)
    return y


CONV2D = [  # weight (OC, IC, KH, KW), data (N, IC, H, W), then s0, s1, p0, p1, d0, d1
    ((3, 2, 3, 3), (2, 2, 7, 5), (1, 1, 0, 0, 1, 1)),
    ((2, 3, 2, 4), (1, 3, 9, 11), (2, 3, 1, 2, 1, 1)),
    ((1, 1, 3, 2), (1, 1, 8, 9), (1, 2, 0, 3, 3, 2)),
    ((4, 1, 1, 1), (3, 1, 5, 3), (1, 1, 0, 0, 1, 1)),
    ((2, 2, 5, 5), (1, 2, 5, 5), (7, 7, 0, 0, 1, 1)),
    ((2, 2, 3, 3), (1, 2, 1, 2), (1, 1, 4, 3, 2, 2)),
]


@pytest.mark.parametrize(("weight", "data", "numbers_"), CONV2D)
def test_conv2d_is_its_formula(call, weight, data, numbers_):
    s0, s1, p0, p1, d0, d1 = numbers_
    weight, data = numbers(*weight), numbers(*data)
    y = call("conv2d", weight, data, *numbers_)
    np.testing.assert_allclose(y, naive_conv(weight, data, (s1, s0), (p1, p0), (d1, d0)), **ROUNDED)


@pytest.mark.parametrize(("weight", "data", "numbers_"), CONV2D)
def test_im2col_lays_out_the_windows_of_conv2d(call, weight, data, numbers_):
    weight, data = numbers(*weight), numbers(*data)
    columns = call("im2col", weight, data, *numbers_)  # (N, OH, OW, IC * KH * KW)
    product_ = columns @ weight.reshape(len(weight), -1).T
    np.testing.assert_allclose(
        np.moveaxis(product_, -1, 1), call("conv2d", weight, data, *numbers_), **ROUNDED
    )


def test_im2col_moves_every_value_unchanged(call):
    data = np.array([[[[1.0, NAN], [INF, -0.0]]]])
    columns = call("im2col", np.full((1, 1, 2, 2), NAN), data, 1, 1, 1, 0)
    np.testing.assert_array_equal(columns, [[[[0, 1, 0, INF], [1, NAN, INF, 0], [NAN, 0, 0, 0]]]])


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_dtypes(backend, dtype):
    with backend.new_context() as ctx:
        weight, data = (
            ctx.zeros(DType.F16, 2, 2, 3, 4),
            ctx.empty(dtype, 5, 4, 3, 2).from_floats(np.ones((2, 3, 4, 5))),
        )
        columns, y = weight.im2col(ctx, data), weight.conv2d(ctx, data)
        pooled, resampled = data.avg_pool2d(ctx, 2, 2), data.interpolate(ctx, (2, 2, 3, 2), "bilinear")
        ctx.compute(columns, y, pooled, resampled)
        assert (columns.dtype, y.dtype, pooled.dtype, resampled.dtype) == (dtype, DType.F32, dtype, dtype)
        assert (columns.shape, y.shape) == ((12, 4, 3, 2), (4, 3, 4, 2))
        assert all(np.all(z.numpy() == 1) for z in (columns, pooled, resampled))


def test_conv2d_of_fewer_dimensions_has_four(call):
    weight, data = numbers(2, 2), numbers(4, 5)
    assert call("conv2d", weight, data).shape == (1, 1, 3, 4)
    assert call("im2col", weight, data).shape == (1, 3, 4, 4)


@pytest.mark.parametrize(
    ("weight", "data", "c", "numbers_"),
    [
        ((3, 2, 2, 3, 2), (2, 2, 4, 5, 6), 2, (1, 1, 1, 0, 0, 0, 1, 1, 1)),
        ((2, 3, 2, 2, 3), (1, 3, 5, 6, 7), 3, (2, 1, 3, 1, 2, 0, 1, 2, 1)),
        ((1, 1, 1, 2, 2), (3, 1, 2, 3, 4), 1, (1, 2, 1, 0, 1, 1, 2, 1, 3)),
    ],
)
def test_conv3d_is_its_formula(call, weight, data, c, numbers_):
    s, p, d = (
        numbers_[2::-1],
        numbers_[5:2:-1],
        numbers_[:5:-1],
    )  # ours name width first, arrays have depth first
    weight, data = numbers(*weight), numbers(*data)
    y = call("conv3d", fold(weight), fold(data), c, *numbers_)
    np.testing.assert_allclose(y, fold(naive_conv(weight, data, s, p, d)), **ROUNDED)


def fold(x):
    """(N, C, D, H, W) with images and channels sharing an axis."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


@pytest.mark.parametrize(
    ("x", "taps", "s", "p", "d"),
    [
        ((2, 3, 11), 4, 1, 0, 1),
        ((3, 8), 3, 2, 1, 1),
        ((1, 2, 9), 3, 1, 4, 3),
        ((7,), 2, 3, 1, 2),
        ((4, 5), 1, 1, 0, 1),
    ],
)
def test_conv1d_dw_is_its_formula(call, x, taps, s, p, d):
    x = numbers(*x)
    full = x.reshape((1,) * (3 - x.ndim) + x.shape)
    weight = numbers(full.shape[1], 1, taps)
    y = call("conv1d_dw", x, weight, s, p, d)
    for n, c in np.ndindex(*full.shape[:2]):
        one = naive_conv(weight[c : c + 1], full[n : n + 1, c : c + 1], (s,), (p,), (d,))
        np.testing.assert_allclose(y[n, c], one[0, 0], **ROUNDED)


@pytest.mark.parametrize(
    ("x", "k", "s", "p"),
    [
        ((2, 3, 6, 8), 2, 2, 0),
        ((1, 7, 5), 3, 1, 1),
        ((9, 9), 4, 3, 1.5),
        ((5, 4), 3, 2, 2),
        ((6,), 1, 2, 0),
        ((3, 3), 2, 1, 0.5),
    ],
)
def test_avg_pool2d_is_its_formula(call, x, k, s, p):
    x = numbers(*x)
    y = call("avg_pool2d", x, k, s, p)
    images = x.reshape(-1, *np.atleast_2d(x).shape[-2:])
    for image, pooled in zip(images, y.reshape(-1, *y.shape[-2:]), strict=True):
        assert pooled.shape == tuple(int((n + 2 * p - k) // s) + 1 for n in image.shape)
        for v, u in np.ndindex(*pooled.shape):
            window = [
                at(image, v * s + j - int(p), u * s + i - int(p)) for j, i in product(range(k), repeat=2)
            ]
            assert pooled[v, u] == pytest.approx(sum(window) / k**2, rel=2**-24, abs=1e-14)


def test_avg_pool2d_counts_padding_and_pads_half_elements_behind(call):
    ones = np.ones((2, 2))
    np.testing.assert_array_equal(
        call("avg_pool2d", ones, 2, 1, 1), [[0.25, 0.5, 0.25], [0.5, 1, 0.5], [0.25, 0.5, 0.25]]
    )
    np.testing.assert_array_equal(call("avg_pool2d", ones, 2, 1, 0.5), [[1, 0.5], [0.5, 0.25]])
    np.testing.assert_array_equal(
        call("avg_pool2d", np.ones((1, 1)), 1, 1, 1), [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    )


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 5, 7), (4, 6)])
def test_nearest_takes_the_floor_of_the_exact_place(call, shape):
    x, dims = numbers(*shape), (14, 3, 2, 4)
    y = call("interpolate", x, dims)
    full = x.reshape((1,) * (4 - x.ndim) + x.shape)
    for place in np.ndindex(*y.shape):
        source = tuple(math.floor(i * n / m) for i, n, m in zip(place, full.shape, y.shape, strict=True))
        assert y[place] == full[source]


def test_nearest_is_exact_where_float32_is_not(call):
    # 1 / float32(2 / 14) is below 7, so an index in float32 would be 6
    np.testing.assert_array_equal(call("interpolate", np.arange(14.0), (2,)), [0, 7])


@pytest.mark.parametrize("dims", [(10, 8, 2), (3, 2, 2), (5, 4, 2), (1, 1, 3), (7, 4, 5)])
def test_bilinear_is_its_formula(call, dims):
    x = numbers(2, 4, 5)
    y = call("interpolate", x, dims, mode="bilinear")

    def along(n, m, i):
        t = (i + 0.5) * n / m - 0.5
        j = math.floor(t)
        return min(max(j, 0), n - 1), min(max(j + 1, 0), n - 1), t - j

    for c, v, u in np.ndindex(*y.shape):
        image = x[c * 2 // dims[2]]
        (a, b, f), (e, g, h) = along(4, dims[1], v), along(5, dims[0], u)
        top, bottom = image[a, e] * (1 - h) + image[a, g] * h, image[b, e] * (1 - h) + image[b, g] * h
        assert y[c, v, u] == pytest.approx(top * (1 - f) + bottom * f, rel=2**-24, abs=1e-14)


def test_bilinear_keeps_a_constant_and_the_corners(call):
    y = call("interpolate", np.array([[1.0, 2.0], [3.0, 4.0]]), (6, 6), "bilinear")
    assert (y[0, 0], y[0, -1], y[-1, 0], y[-1, -1]) == (1, 2, 3, 4)
    np.testing.assert_array_equal(
        call("interpolate", np.full((3, 3), 5.0), (7, 2), "bilinear"), np.full((2, 7), 5.0)
    )


def test_empty_dimensions(call):
    assert call("conv2d", numbers(0, 2, 3, 3), numbers(1, 2, 5, 5)).shape == (1, 0, 3, 3)
    assert call("conv2d", numbers(4, 2, 3, 3), numbers(0, 2, 5, 5)).shape == (0, 4, 3, 3)
    np.testing.assert_array_equal(
        call("conv2d", numbers(1, 0, 2, 2), numbers(1, 0, 3, 3)), np.zeros((1, 1, 2, 2))
    )
    np.testing.assert_array_equal(
        call("conv2d", numbers(1, 1, 2, 2), numbers(1, 1, 2, 0), 1, 1, 1), np.zeros((1, 1, 1, 1))
    )
    assert call("im2col", numbers(1, 0, 2, 2), numbers(2, 0, 3, 3)).shape == (2, 2, 2, 0)
    assert call("conv3d", numbers(0, 1, 1, 1), numbers(4, 2, 2, 2), 2).shape == (0, 2, 2, 2)
    assert call("conv1d_dw", numbers(2, 0, 5), numbers(0, 1, 3)).shape == (2, 0, 3)
    assert call("avg_pool2d", numbers(0, 4, 4), 2, 2).shape == (0, 2, 2)
    np.testing.assert_array_equal(call("avg_pool2d", numbers(1, 0), 1, 1, 0.5), np.zeros((2, 1)))
    for mode in ("nearest", "bilinear"):
        assert call("interpolate", numbers(2, 0, 3), (5, 0, 2), mode).shape == (2, 0, 5)
        assert call("interpolate", numbers(2, 4, 3), (5, 7, 0), mode).shape == (0, 7, 5)


def test_huge_paddings_and_strides_take_no_memory(call):
    far = 1 << 30
    y = call("conv2d", np.ones((1, 1, 1, 1)), np.full((1, 1, 1, 1), 3.0), far, far, far, far)
    np.testing.assert_array_equal(y[0, 0], [[0, 0, 0], [0, 3, 0], [0, 0, 0]])
    assert call("avg_pool2d", np.ones((1, 1)), 1, far, far).sum() == 1


def test_nan_and_infinities_stay_in_their_windows(call):
    data = np.ones((1, 1, 1, 6))
    data[..., 2] = NAN
    y = call("conv2d", np.ones((2, 1, 1, 2)), data)
    np.testing.assert_array_equal(np.isnan(y[0, 1, 0]), [False, True, True, False, False])
    y = call("avg_pool2d", np.where(np.isnan(data), INF, data)[0, 0, [0, 0]], 2, 1)
    np.testing.assert_array_equal(y, [[1, INF, INF, 1, 1]])
    y = call("interpolate", data[0, 0], (3, 1), "nearest")
    np.testing.assert_array_equal(y, [[1, NAN, 1]])
    y = call("interpolate", data[0, 0], (12, 1), "bilinear")
    np.testing.assert_array_equal(np.isnan(y[0, [0, 1, 2, 4, 5, 8, 9]]), [0, 0, 0, 1, 1, 0, 0])


@pytest.mark.parametrize(("weight", "data", "numbers_"), CONV2D)
def test_conv2d_is_torchs(call, weight, data, numbers_):
    torch = pytest.importorskip("torch")
    s0, s1, p0, p1, d0, d1 = numbers_
    weight, data = numbers(*weight), numbers(*data)
    theirs = torch.conv2d(*map(torch.from_numpy, (data, weight)), None, (s1, s0), (p1, p0), (d1, d0))
    np.testing.assert_allclose(call("conv2d", weight, data, *numbers_), theirs.numpy(), **ROUNDED)


def test_other_convolutions_are_torchs(call):
    torch = pytest.importorskip("torch")
    weight, data = numbers(3, 2, 2, 3, 2), numbers(2, 2, 4, 5, 6)
    theirs = torch.conv3d(*map(torch.from_numpy, (data, weight)), None, (2, 1, 2), (1, 0, 2), (1, 2, 1))
    ours = call("conv3d", fold(weight), fold(data), 2, 2, 1, 2, 2, 0, 1, 1, 2, 1)
    np.testing.assert_allclose(ours, fold(theirs.numpy()), **ROUNDED)
    weight, data = numbers(5, 1, 3), numbers(2, 5, 9)
    theirs = torch.conv1d(*map(torch.from_numpy, (data, weight)), None, 2, 1, 2, groups=5)
    np.testing.assert_allclose(call("conv1d_dw", data, weight, 2, 1, 2), theirs.numpy(), **ROUNDED)


@pytest.mark.parametrize(("k", "s", "p"), [(2, 2, 0), (3, 2, 1), (4, 1, 2), (5, 3, 2)])
def test_avg_pool2d_is_torchs(call, k, s, p):
    torch = pytest.importorskip("torch")
    x = numbers(2, 3, 9, 11)
    theirs = torch.nn.functional.avg_pool2d(torch.from_numpy(x), k, s, p)
    np.testing.assert_allclose(call("avg_pool2d", x, k, s, p), theirs.numpy(), **ROUNDED)


@pytest.mark.parametrize("size", [(8, 12), (3, 4), (5, 9), (1, 1)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_interpolate_is_torchs(call, mode, size):
    torch = pytest.importorskip("torch")
    x = numbers(2, 3, 4, 6)
    theirs = torch.nn.functional.interpolate(torch.from_numpy(x), size, mode=mode)
    ours = call("interpolate", x, (*size[::-1], 3, 2), mode)
    np.testing.assert_allclose(ours, theirs.numpy(), **ROUNDED)


@pytest.fixture(scope="module")
def onnx_cases():
    """By op type, (name, attributes, inputs, output) of ONNX's node tests, also of its tests from PyTorch."""
    onnx = pytest.importorskip("onnx")
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases of other ops overflows on purpose
        made = [(c.name, c.model, *c.data_sets[0]) for c in collect_testcases(None)]
    stored = Path(onnx.__file__).parent.glob("backend/test/data/pytorch-*/*")
    cases = defaultdict(list)
    for name, model, inputs, outputs in made + [stored_case(onnx, folder) for folder in sorted(stored)]:
        if len(model.graph.node) == 1:
            node = model.graph.node[0]
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            cases[node.op_type].append((name, attributes, inputs, outputs[0]))
    return cases


def stored_case(onnx, folder):
    def read(kind):
        files = sorted(folder.glob(f"test_data_set_0/{kind}_*.pb"))
        return [onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]

    model = onnx.load(folder / "model.onnx")
    weights = [onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer]
    return folder.name, model, read("input") + weights, read("output")


def symmetric(pads, n):
    return pads[:n] == pads[-n:]


def test_convolutions_are_onnxs(call, onnx_cases):
    ran = []
    for name, attributes, (data, weight, *bias), expected in onnx_cases["Conv"]:
        n = data.ndim - 2
        s, d, p = (attributes.get(k, [v] * n) for k, v in (("strides", 1), ("dilations", 1), ("pads", 0)))
        if n == 1 or "auto_pad" in attributes or attributes.get("group", 1) > 1 or not symmetric(p, n):
            continue
        placed = [i for a in (s, p[:n], d) for i in a[::-1]]  # ours name width first
        if n == 2:
            y = call("conv2d", weight, data, *placed)
        else:
            y = call("conv3d", fold(weight), fold(data), data.shape[1], *placed).reshape(expected.shape)
        shift = bias[0].reshape(-1, *[1] * n) if bias else 0
        np.testing.assert_allclose(y + shift, expected, rtol=1e-5, atol=1e-5, err_msg=name)  # f32 sums
        ran.append(name)
    assert len(ran) >= 17, ran


def test_avg_pool2d_is_onnxs(call, onnx_cases):
    ran = []
    for name, attributes, (x,), expected in onnx_cases["AveragePool"]:
        (k, *sides), p = attributes["kernel_shape"], attributes.get("pads", [0, 0, 0, 0])
        (s, *steps) = attributes.get("strides", [1] * (x.ndim - 2))
        padded = any(p) and not attributes.get("count_include_pad")
        odd = {"auto_pad", "dilations"} & set(attributes) or attributes.get("ceil_mode")
        if sides == [k] and steps == [s] and len(set(p)) == 1 and not padded and not odd:
            np.testing.assert_allclose(
                call("avg_pool2d", x, k, s, p[0]), expected, rtol=1e-5, atol=1e-6, err_msg=name
            )
            ran.append(name)
    assert len(ran) >= 6, ran


def test_interpolate_is_onnxs(call, onnx_cases):
    ran = []
    for name, attributes, (x, *_), expected in onnx_cases["Resize"]:
        mode = attributes.get("mode", b"nearest").decode()
        whole = all(m % n == 0 for n, m in zip(x.shape, expected.shape, strict=True))
        # by whole factors, the nearest pixel's centre and the floor of the place are the same pixel
        if (
            mode in ("nearest", "linear")
            and whole
            and set(attributes) <= {"mode", "axes", "keep_aspect_ratio_policy"}
        ):
            y = call("interpolate", x, expected.shape[::-1], "bilinear" if mode == "linear" else "nearest")
            np.testing.assert_allclose(y, expected, rtol=1e-6, err_msg=name)
            ran.append(name)
    assert len(ran) >= 4, ran
