"""Rotary embeddings against loops and the formulas of model authors."""

import math
from functools import partial

import numpy as np
import pytest
from exact import ROUNDED, normal

from backbay import DType
from backbay.ops import Yarn

rng = np.random.default_rng(13)
NAN, INF = math.nan, math.inf


numbers = partial(normal, rng)


def places(*shape):
    return rng.integers(0, 3000, shape).astype(np.int32)


# -- rope ------------------------------------------------------------------------------------------------


def loop_rope(x, positions, dim, base, scale, mode, factors=None, sections=(0, 0, 0, 0), yarn=None):
    """One head after the other, angles advanced from pair to pair by multiplication, as ggml does it."""
    y = x.copy()
    vision, sectioned = mode == "vision", mode in ("vision", "multi-section")
    step, pairs = base ** (-2 / dim), dim if vision else dim // 2
    for batch, token, head in np.ndindex(*x.shape[:3]):
        position = [
            float(p) for p in (positions.reshape(4, -1)[:, token] if sectioned else positions[[token] * 4])
        ]
        theta = position.copy()
        for i in range(pairs):
            c = 0
            if sectioned:
                sector, starts = i % sum(sections), np.cumsum([0, *sections[:3]])
                c = max(k for k in range(4) if sections[k] and sector >= starts[k])
                if vision and sector == starts[c]:
                    theta[c] = position[c]
            angle = theta[c] / (1 if factors is None else factors[i])
            cos, sin = turn(angle, i, dim, base, scale, yarn)
            theta = [t * step for t in theta]
            a, b = (2 * i, 2 * i + 1) if mode == "normal" else (i, i + pairs)
            p, q = x[batch, token, head, [a, b]]
            y[batch, token, head, [a, b]] = p * cos - q * sin, p * sin + q * cos
    return y


def turn(theta, i, dim, base, scale, yarn):
    angle, m = scale * theta, 1.0
    if yarn:
        n_ctx, ext, m, fast, slow = yarn
        if ext:
            low = max(0, math.floor(dim * math.log(n_ctx / (fast * 2 * math.pi)) / (2 * math.log(base))))
            high = min(
                dim - 1, math.ceil(dim * math.log(n_ctx / (slow * 2 * math.pi)) / (2 * math.log(base)))
            )
            mix = (1 - min(1, max(0, (i - low) / max(0.001, high - low)))) * ext
            angle = angle * (1 - mix) + theta * mix
            m *= 1 + 0.1 * math.log(1 / scale)
    return math.cos(angle) * m, math.sin(angle) * m


ROPES = [  # mode, head_dim, dim, sections
    ("normal", 8, 8, (0, 0, 0, 0)),
    ("normal", 10, 4, (0, 0, 0, 0)),
    ("neox", 8, 8, (0, 0, 0, 0)),
    ("neox", 12, 10, (0, 0, 0, 0)),
    ("neox", 2, 2, (0, 0, 0, 0)),
    ("multi-section", 16, 16, (4, 2, 2, 0)),
    ("multi-section", 18, 16, (1, 1, 1, 2)),
    ("multi-section", 16, 12, (0, 3, 2, 0)),
    ("multi-section", 12, 8, (2, 2, 2, 2)),
    ("multi-section", 12, 12, (5, 0, 7, 0)),
    ("vision", 16, 8, (4, 4, 4, 4)),
    ("vision", 16, 8, (4, 4, 0, 0)),
    ("vision", 12, 6, (1, 5, 0, 0)),
    ("vision", 8, 4, (4, 0, 0, 0)),
    ("vision", 8, 4, (0, 4, 0, 0)),
]
STRETCHES = {
    "plain": (1.0, None),
    "linear": (0.25, None),
    "yarn": (0.125, Yarn(64)),
    "half yarn": (0.5, Yarn(300, 0.5, 1.5, 16.0, 2.0)),
    "yarn where nothing is low": (0.5, Yarn(1)),
    "yarn that ends late": (0.5, Yarn(1 << 20, beta_fast=1e5)),
    "magnitude only": (0.5, Yarn(0, 0.0, 1.25, 0.0, 0.0)),
}


@pytest.mark.parametrize("stretch", STRETCHES)
@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize(("mode", "head", "dim", "sections"), ROPES)
def test_rope_is_a_loop_over_pairs(call, mode, head, dim, sections, factored, stretch):
    (scale, yarn), tokens = STRETCHES[stretch], 3
    x, positions = numbers(2, tokens, 2, head), places(tokens * (4 if any(sections) else 1))
    factors = np.abs(numbers(dim)) + 1 if factored else None
    factors = factors if factors is None else factors.astype(np.float32).astype(np.float64)
    expected = loop_rope(x, positions, dim, 100.0, scale, mode, factors, sections, yarn)
    y = call("rope", x, positions, dim, 100.0, scale, mode, factors=factors, sections=sections, yarn=yarn)
    np.testing.assert_allclose(y, expected, **ROUNDED)


def rotate_half(x):
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def frequencies(dim, base):
    return 1 / base ** (np.arange(0, dim, 2) / dim)


def test_normal_is_a_complex_product(call):
    x, positions = numbers(5, 3, 8), places(5)
    turned = x.view(complex) * np.exp(1j * positions[:, None] * frequencies(8, 5e5))[:, None]
    np.testing.assert_allclose(call("rope", x, positions, 8, 5e5), turned.view(float), **ROUNDED)


def test_neox_is_rotate_half(call):
    x, positions = numbers(5, 3, 8), places(5)
    angles = np.tile(positions[:, None] * frequencies(8, 1e4), 2)[:, None]
    expected = x * np.cos(angles) + rotate_half(x) * np.sin(angles)
    np.testing.assert_allclose(call("rope", x, positions, 8, 1e4, mode="neox"), expected, **ROUNDED)


def test_multi_section_is_qwen2_vls(call):
    """Cosines and sines of all three components, cut into sections twice over, and picked in turn."""
    x, positions, sections = numbers(6, 2, 16), places(4, 6), [2, 3, 3]
    angles = np.tile(positions[:3, :, None] * frequencies(16, 1e4), 2)  # (3, tokens, 16)
    cuts = np.split(angles, np.cumsum(sections * 2)[:-1], axis=-1)
    angles = np.concatenate([cut[i % 3] for i, cut in enumerate(cuts)], axis=-1)[:, None]
    expected = x * np.cos(angles) + rotate_half(x) * np.sin(angles)
    y = call("rope", x, positions.reshape(-1), 16, 1e4, mode="multi-section", sections=(*sections, 0))
    np.testing.assert_allclose(y, expected, **ROUNDED)


def test_vision_is_qwen2_vls(call):
    """Rows and columns of patches each with the frequencies of half a head."""
    x, rows, columns = numbers(6, 2, 16), places(6), places(6)
    angles = np.concatenate([p[:, None] * frequencies(8, 1e4) for p in (rows, columns)], axis=-1)
    angles = np.tile(angles, 2)[:, None]
    expected = x * np.cos(angles) + rotate_half(x) * np.sin(angles)
    positions = np.concatenate([rows, columns, rows, columns])
    y = call("rope", x, positions, 8, 1e4, mode="vision", sections=(4, 4, 4, 4))
    np.testing.assert_allclose(y, expected, **ROUNDED)


def test_yarn_is_its_authors(call):
    """Frequencies mixed by a ramp, and the magnitude, as the paper's code computes them for a factor of 4."""
    dim, base, factor, context = 32, 1e4, 4.0, 256

    def correction(rotations):
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(correction(32)), 0), min(math.ceil(correction(1)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    inverse = frequencies(dim, base) / factor * ramp + frequencies(dim, base) * (1 - ramp)
    assert 0 < low + 1 < high < dim // 2
    x, positions = numbers(5, 2, dim), places(5)
    angles = np.tile(positions[:, None] * inverse, 2)[:, None]
    expected = (x * np.cos(angles) + rotate_half(x) * np.sin(angles)) * (0.1 * math.log(factor) + 1)
    y = call("rope", x, positions, dim, base, 1 / factor, "neox", yarn=Yarn(context))
    np.testing.assert_allclose(y, expected, **ROUNDED)
    np.testing.assert_array_equal(
        call("rope", x, positions, dim, base, 1 / factor, "neox", yarn=(256, 1, 1, 32, 1)), y
    )


@pytest.mark.parametrize(
    "yarn", [Yarn(64, beta_fast=1e308), Yarn(64, beta_slow=1e-320), Yarn(1, 1.0, 1.0, 1e-320, 1e308)]
)
def test_yarn_bears_extremes(call, yarn):
    x = numbers(2, 1, 8)
    y = call("rope", x, np.zeros(2, np.int32), 8, 1e4, 0.5, yarn=yarn)
    np.testing.assert_allclose(y, x * (1 + 0.1 * math.log(2)), **ROUNDED)


def test_rope_turns_back_and_copies_the_rest(call):
    x, positions = numbers(4, 2, 12), places(4)
    for mode in ("normal", "neox"):
        there = call("rope", x, positions, 8, 1e4, 1.0, mode)
        np.testing.assert_array_equal(there[..., 8:], x[..., 8:])
        assert np.all(there[positions > 0, :, :8] != x[positions > 0, :, :8])
        back = call("rope", there, positions, 8, 1e4, -1.0, mode)
        np.testing.assert_allclose(back, x, rtol=0, atol=1e-6)  # both ways rounded to f32
        np.testing.assert_array_equal(call("rope", there, -positions, 8, 1e4, 1.0, mode), back)


def test_rope_depends_on_distance_alone(call):
    query, key = numbers(1, 1, 16), numbers(1, 1, 16)
    products = [
        np.vdot(*(call("rope", x, np.array([p], np.int32), 16, 1e4) for x, p in ((query, a), (key, b))))
        for a, b in ((3, 1), (1002, 1000))
    ]
    assert products[0] == pytest.approx(products[1], abs=1e-5)


def test_rope_of_position_0_and_of_fewer_dimensions(call):
    x = numbers(3, 6)
    np.testing.assert_array_equal(call("rope", x, np.zeros(1, np.int32), 6, 1e4), x)
    expected = call("rope", x[None], np.array([7], np.int32), 6, 1e4)
    np.testing.assert_array_equal(call("rope", x, np.array([7], np.int32), 6, 1e4), expected[0])


def test_rope_keeps_nan_and_infinities_in_their_pair(call):
    x = np.ones((1, 1, 8))
    x[..., 2] = NAN
    one = np.ones(1, np.int32)
    np.testing.assert_array_equal(np.isnan(call("rope", x, one, 8, 10.0))[0, 0], [0, 0, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(
        np.isnan(call("rope", x, one, 8, 10.0, 1.0, "neox"))[0, 0], [0, 0, 1, 0, 0, 0, 1, 0]
    )
    x[..., 2] = INF
    assert np.isinf(call("rope", x, one, 8, 10.0)[0, 0, 2:4]).all()
    y = call("rope", np.ones((1, 1, 4)), one, 4, 10.0, factors=np.array([0.0, 1.0]))
    np.testing.assert_array_equal(np.isnan(y[0, 0]), [1, 1, 0, 0])


@pytest.mark.parametrize("mode", ["normal", "neox", "multi-section", "vision"])
@pytest.mark.parametrize("shape", [(0, 2, 8), (3, 0, 8), (0, 3, 2, 8)])
def test_rope_of_nothing(call, mode, shape):
    sections = (2, 2, 0, 0) if mode in ("multi-section", "vision") else (0, 0, 0, 0)
    positions = np.zeros(shape[-3] * (4 if any(sections) else 1), np.int32)
    assert call("rope", np.zeros(shape), positions, 4, 1e4, 1.0, mode, sections=sections).shape == shape


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_rope_keeps_its_dtype(backend, dtype):
    with backend.new_context() as ctx:
        x = ctx.empty(dtype, 4, 1, 2).from_floats(np.ones((2, 1, 4)))
        y = x.rope(ctx, ctx.from_ints([0, 1]), 4, 1e4)
        ctx.compute(y)
        assert y.dtype is dtype
        np.testing.assert_allclose(
            y.numpy()[1, 0, :2], [math.cos(1) - math.sin(1), math.cos(1) + math.sin(1)], rtol=2**-8
        )
