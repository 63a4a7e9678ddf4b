"""Rotary embeddings against loops and the formulas of model authors."""

import math
from functools import partial

import numpy as np
import pytest
from exact import ROUNDED, normal

from backbay.ops import Yarn

rng = np.random.default_rng(13)
NAN, INF = math.nan, math.inf


numbers = partial(normal, rng)


def places(*shape):
    return rng.integers(0, 3000, shape).astype(np.int32)


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
