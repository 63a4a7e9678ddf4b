"""Convolutions, pooling and resampling against PyTorch and ONNX's node tests, and at their edges."""

import math
import tracemalloc
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from exact import normal

from backbay import DType
from backbay_cpu_ref import CpuRef

rng = np.random.default_rng(7)
NAN, INF = math.nan, math.inf
ROUNDED = {"rtol": 2**-24, "atol": 1e-14}  # one rounding to f32; 1e-14 for what cancels in float64


numbers = partial(normal, rng)


CONV2D = [  # weight (OC, IC, KH, KW), data (N, IC, H, W), then s0, s1, p0, p1, d0, d1
    ((3, 2, 3, 3), (2, 2, 7, 5), (1, 1, 0, 0, 1, 1)),
    ((2, 3, 2, 4), (1, 3, 9, 11), (2, 3, 1, 2, 1, 1)),
    ((1, 1, 3, 2), (1, 1, 8, 9), (1, 2, 0, 3, 3, 2)),
    ((4, 1, 1, 1), (3, 1, 5, 3), (1, 1, 0, 0, 1, 1)),
    ((2, 2, 5, 5), (1, 2, 5, 5), (7, 7, 0, 0, 1, 1)),
    ((2, 2, 3, 3), (1, 2, 1, 2), (1, 1, 4, 3, 2, 2)),
]


def test_conv2d_of_fewer_dimensions_has_four(call):
    weight, data = numbers(2, 2), numbers(4, 5)
    assert call("conv2d", weight, data).shape == (1, 1, 3, 4)
    assert call("im2col", weight, data).shape == (1, 3, 4, 4)


def fold(x):
    """(N, C, D, H, W) with images and channels sharing an axis."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def test_nearest_is_exact_where_float32_is_not(call):
    # 1 / float32(2 / 14) is below 7, so an index in float32 would be 6
    np.testing.assert_array_equal(call("interpolate", np.arange(14.0), (2,)), [0, 7])


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
    from onnx_cases import cases_of

    made = [(c.name, c.model, *c.data_sets[0]) for c in cases_of("Conv", "AveragePool", "Resize")]
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


def conv2d(ctx):
    return ctx.zeros(DType.F32, 7, 7, 8, 2).conv2d(ctx, ctx.zeros(DType.F32, 64, 64, 8), p0=3, p1=3)


def conv3d(ctx):
    return ctx.zeros(DType.F32, 3, 3, 3, 8).conv3d(ctx, ctx.zeros(DType.F32, 12, 12, 12, 8), 4)


def conv1d_dw(ctx):
    return ctx.zeros(DType.F32, 4000, 8).conv1d_dw(ctx, ctx.zeros(DType.F32, 31, 1, 8), p=15)


def avg_pool2d(ctx):
    return ctx.zeros(DType.F32, 200, 200, 3).avg_pool2d(ctx, 9, 1)


@pytest.mark.parametrize("trace", [conv2d, conv3d, conv1d_dw, avg_pool2d], ids=lambda trace: trace.__name__)
def test_the_overlapping_windows_of_an_image_are_booked(trace):
    with CpuRef() as backend, backend.new_context() as ctx:
        y = trace(ctx)
        before = backend.memory().total()
        tracemalloc.start()
        ctx.compute(y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 1 << 20 < peak <= backend.memory().total() - before + (1 << 18)
