"""Rotary embeddings and state-space models against loops, the formulas of model authors, and PyTorch."""

import math

import numpy as np
import pytest

from backbay import BackendParams, DType, DTypeError, ShapeError, Spec
from backbay.ops.sequence import Yarn
from backbay_cpu_ref import CpuRef

rng = np.random.default_rng(13)
NAN, INF = math.nan, math.inf
ROUNDED = {
    "rtol": 2**-24,
    "atol": 1e-12,
}  # one rounding to f32; 1e-12 for angles of some thousands in float64


@pytest.fixture(scope="module")
def backend():
    with CpuRef(None, BackendParams()) as backend:
        yield backend


@pytest.fixture
def call(backend):
    """An op on arrays and specs, traced and computed."""

    def call(op, *args, **attributes):
        with backend.new_context() as ctx:
            x, *others = (leaf(ctx, value) for value in args)
            y = getattr(x, op)(ctx, *others, **{name: leaf(ctx, value) for name, value in attributes.items()})
            ctx.compute(y)
            return y.numpy()

    return call


def leaf(ctx, value):
    if isinstance(value, Spec):
        return ctx.empty(value.dtype, *value.shape)
    if isinstance(value, np.ndarray):
        return ctx.from_floats(value) if value.dtype.kind == "f" else ctx.from_ints(value)
    return value


def numbers(*shape):
    """float32 numbers, held as float64 for formulas to be exact in."""
    return rng.standard_normal(shape).astype(np.float32).astype(np.float64)


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


def test_rope_keeps_what_is_not_finite_in_its_pair(call):
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


# -- state-space models ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequences", "channels", "taps", "tokens"), [(2, 3, 4, 5), (1, 5, 1, 3), (3, 2, 3, 1)]
)
def test_ssm_conv_is_its_formula(call, sequences, channels, taps, tokens):
    x, weight = numbers(sequences, channels, taps - 1 + tokens), numbers(channels, taps)
    y = call("ssm_conv", x, weight)
    assert y.shape == (sequences, tokens, channels)
    for q, t, c in np.ndindex(*y.shape):
        expected = sum(x[q, c, t + i] * weight[c, i] for i in range(taps))
        assert y[q, t, c] == pytest.approx(expected, rel=2**-24, abs=1e-14)


def test_ssm_conv_is_torchs(call):
    torch = pytest.importorskip("torch")
    x, weight = numbers(2, 6, 11), numbers(6, 4)
    theirs = torch.conv1d(torch.from_numpy(x), torch.from_numpy(weight)[:, None], groups=6)
    np.testing.assert_allclose(call("ssm_conv", x, weight), theirs.numpy().swapaxes(1, 2), **ROUNDED)


def test_ssm_conv_edges(call):
    assert call("ssm_conv", numbers(2, 3, 3), numbers(3, 4)).shape == (2, 0, 3)  # a state and no token
    assert call("ssm_conv", numbers(2, 0, 5), numbers(0, 4)).shape == (2, 2, 0)
    assert call("ssm_conv", numbers(3, 5), numbers(3, 2)).shape == (1, 4, 3)
    x = np.ones((1, 1, 6))
    x[..., 2] = NAN
    np.testing.assert_array_equal(np.isnan(call("ssm_conv", x, np.ones((1, 2))))[0, :, 0], [0, 1, 1, 0, 0])


def softplus(x):
    return x if x > 30 else math.log1p(math.exp(x))


def loop_scan(s, x, dt, A, B, C, ids):
    """One number after the other: y as x is, and the states of each sequence."""
    sequences, tokens, heads, head_dim = x.shape
    y, last = np.zeros_like(x), s[ids].copy()
    for q, t, k, p in np.ndindex(sequences, tokens, heads, head_dim):
        group, d = k // (heads // B.shape[2]), softplus(dt[q, t, k])
        for n in range(s.shape[-1]):
            decay = math.exp(d * A[k, n if A.shape[1] > 1 else 0])
            last[q, k, p, n] = last[q, k, p, n] * decay + B[q, t, group, n] * x[q, t, k, p] * d
            y[q, t, k, p] += last[q, k, p, n] * C[q, t, group, n]
    return y, last


def scan_operands(states=4, head_dim=3, heads=4, groups=2, tokens=5, sequences=2, slots=3, decays=1):
    return (
        numbers(slots, heads, head_dim, states),
        numbers(sequences, tokens, heads, head_dim),
        numbers(sequences, tokens, heads),
        -np.abs(numbers(heads, decays)),
        numbers(sequences, tokens, groups, states),
        numbers(sequences, tokens, groups, states),
        rng.integers(0, slots, sequences).astype(np.int32),
    )


def split(result, x):
    return result[: x.size].reshape(x.shape), result[x.size :]


SCANS = {
    "mamba-1": {"head_dim": 1, "heads": 6, "groups": 1, "decays": 4},
    "mamba-2": {},
    "one group": {"groups": 1},
    "a group per head": {"groups": 4},
    "decays per state, in groups": {"decays": 4},
    "one token": {"tokens": 1},
    "one state": {"states": 1},
    "one slot": {"slots": 1},
    "odd": {"states": 17, "head_dim": 5, "heads": 3, "groups": 3, "sequences": 3},
}


@pytest.mark.parametrize("case", SCANS)
def test_ssm_scan_is_a_loop(call, case):
    operands = scan_operands(**SCANS[case])
    y, last = split(call("ssm_scan", *operands), operands[1])
    expected, state = loop_scan(*operands)
    np.testing.assert_allclose(y, expected, **ROUNDED)
    np.testing.assert_allclose(last, state.ravel(), **ROUNDED)


def test_ssm_scan_carries_its_state(call):
    s, x, dt, A, B, C, ids = scan_operands(tokens=6)
    whole, end = split(call("ssm_scan", s, x, dt, A, B, C, ids), x)
    first, middle = split(call("ssm_scan", s, x[:, :2], dt[:, :2], A, B[:, :2], C[:, :2], ids), x[:, :2])
    carried = middle.reshape(len(ids), *s.shape[1:])
    order = np.arange(len(ids), dtype=np.int32)
    second, last = split(
        call("ssm_scan", carried, x[:, 2:], dt[:, 2:], A, B[:, 2:], C[:, 2:], order), x[:, 2:]
    )
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, end, rtol=1e-5, atol=1e-6)


def test_ssm_scan_takes_the_states_that_ids_name(call):
    s, x, dt, A, B, C, _ = scan_operands(sequences=3, slots=4)
    nothing = [a[:, :0] for a in (x, dt, B, C)]
    for ids in ([2, 0, 3], [1, 1, 1]):
        y = call("ssm_scan", s, nothing[0], nothing[1], A, *nothing[2:], np.array(ids, np.int32))
        np.testing.assert_array_equal(y, s[ids].ravel())


def test_ssm_scan_does_not_overflow_and_keeps_nan_in_its_head(call):
    s, x, dt, A, B, C, ids = scan_operands()
    dt[0, 0, 0], dt[0, 1, 1] = 1000.0, -1000.0
    assert np.isfinite(call("ssm_scan", s, x, dt, A, B, C, ids)).all()
    dt[0, 2, 1] = NAN
    y, _ = split(call("ssm_scan", s, x, dt, A, B, C, ids), x)
    spoiled = np.zeros(x.shape, bool)
    spoiled[0, 2:, 1] = True
    np.testing.assert_array_equal(np.isnan(y), spoiled)


@pytest.mark.parametrize("empty", ["heads", "head_dim", "states", "sequences"])
def test_ssm_scan_of_nothing(call, empty):
    operands = scan_operands(**{empty: 0})
    y, last = split(call("ssm_scan", *operands), operands[1])
    assert not y.any()
    assert last.size == 0


def test_ssm_scan_of_one_sequence_may_leave_dimensions_out(call):
    s, x, dt, A, B, C, ids = scan_operands(sequences=1, slots=1)
    left_out = call("ssm_scan", s[0], x[0], dt[0], A, B[0], C[0], ids)
    np.testing.assert_array_equal(left_out, call("ssm_scan", s, x, dt, A, B, C, ids))


def test_ssm_scan_refuses_ids_beyond_the_slots(call):
    *operands, ids = scan_operands(slots=2)
    for wrong in (2, -1):
        ids[0] = wrong
        with pytest.raises(ShapeError, match=rf"must be in \[0, 2\), got {wrong}"):
            call("ssm_scan", *operands, ids)


# -- refusals --------------------------------------------------------------------------------------------

F, INT = DType.F32, DType.I32
X, P, P4 = Spec(F, (8, 2, 3)), Spec(INT, (3,)), Spec(INT, (12,))
MS = "multi-section"
SCAN = {
    "s": Spec(F, (4, 3, 6, 5)),
    "x": Spec(F, (3, 6, 7, 2)),
    "dt": Spec(F, (6, 7, 2)),
    "A": Spec(F, (1, 6)),
    "B": Spec(F, (4, 2, 7, 2)),
    "C": Spec(F, (4, 2, 7, 2)),
    "ids": Spec(INT, (2,)),
}


# fmt: off
ROPE_REFUSALS = [  # one on a line
    ((Spec(INT, (8, 2, 3)), P, 8, 1e4), DTypeError, "the receiver must be f32, f16 or bf16, got i32; cast it first"),
    ((X, Spec(F, (3,)), 8, 1e4), DTypeError, "positions must be i32, got f32"),
    ((Spec(F, (7, 2, 3)), P, 6, 1e4), ShapeError, "dimension 0, the head, must be even, got 7"),
    ((X, P, 5, 1e4), ShapeError, "dim must be even and in [2, 8], got 5"),
    ((X, P, 0, 1e4), ShapeError, "dim must be even and in [2, 8], got 0"),
    ((X, P, 10, 1e4), ShapeError, "dim must be even and in [2, 8], got 10"),
    ((X, P4, 8, 1e4, 1.0, "vision"), ShapeError, "dim must be half of dimension 0 in vision, 8 != 8 / 2"),
    ((Spec(F, (6, 2, 3)), P4, 3, 1e4, 1.0, "vision", None, (2, 1, 0, 0)), ShapeError, "dim must be even and in [2, 6], got 3"),
    ((X, Spec(INT, (4,)), 8, 1e4), ShapeError, "positions must be 1 for each of the 3 tokens of dimension 2, got 4"),
    ((X, P, 8, 1e4, 1.0, MS, None, (1, 1, 1, 1)), ShapeError, "positions must be 4 for each of the 3 tokens of dimension 2, got 3"),
    ((X, Spec(INT, (3, 4)), 8, 1e4), ShapeError, "positions must have at most 1 dimensions, got [3, 4]"),
    ((X, P, 8, 1e4, 1.0, "neox", None, (2, 2, 0, 0)), ShapeError, "sections are for the modes multi-section and vision, not neox, got (2, 2, 0, 0)"),
    ((X, P4, 8, 1e4, 1.0, MS), ShapeError, "one of the first three sections must be above 0, got (0, 0, 0, 0)"),
    ((X, P4, 8, 1e4, 1.0, MS, None, (0, 0, 0, 4)), ShapeError, "one of the first three sections must be above 0, got (0, 0, 0, 4)"),
    ((X, P4, 8, 1e4, 1.0, MS, None, (4, 4, 4, 0)), ShapeError, "sections must add up to at most 8, dimension 0, got (4, 4, 4, 0)"),
    ((X, P4, 8, 1e4, 1.0, MS, None, (4, -1, 0, 0)), ShapeError, "sections must be four numbers >= 0, got (4, -1, 0, 0)"),
    ((X, P4, 8, 1e4, 1.0, MS, None, (4, 4)), ShapeError, "sections must be four numbers >= 0, got (4, 4)"),
    ((X, P4, 4, 1e4, 1.0, "vision", None, (2, 1, 1, 0)), ShapeError, "the first two sections must add up to dim, 4, got (2, 1, 1, 0)"),
    ((X, P, 8, 1e4, 1.0, "normal", Spec(F, (3,))), ShapeError, "factors must be at least 4, one per pair, got 3"),
    ((X, P4, 4, 1e4, 1.0, "vision", Spec(F, (2,)), (2, 2, 0, 0)), ShapeError, "factors must be at least 4, one per pair, got 2"),
    ((X, P, 8, 1e4, 1.0, "normal", Spec(DType.F16, (4,))), DTypeError, "factors must be f32, got f16"),
    ((X, P, 8, 1e4, 1.0, "normal", Spec(F, (4, 2))), ShapeError, "factors must have at most 1 dimensions, got [4, 2]"),
    ((X, P, 8, 0.0), ShapeError, "base must be above 0 and finite, got 0.0"),
    ((X, P, 8, NAN), ShapeError, "base must be above 0 and finite, got nan"),
    ((X, P, 8, INF), ShapeError, "base must be above 0 and finite, got inf"),
    ((X, P, 8, 1e4, NAN), ShapeError, "scale must be finite, got nan"),
    ((X, P, 8, 1e4, 1.0, "interleaved"), DTypeError, "mode must be 'normal' or 'neox' or 'multi-section' or 'vision', got 'interleaved'"),
]
# fmt: on


@pytest.mark.parametrize(("args", "error", "message"), ROPE_REFUSALS)
def test_rope_refuses(call, args, error, message):
    with pytest.raises(error) as caught:
        call("rope", *args)
    assert str(caught.value).endswith(f": {message}")


# fmt: off
YARN_REFUSALS = [  # one on a line
    (1e4, 1.0, Yarn(0), ShapeError, "n_ctx_orig must be in [1, 2^31), got 0"),
    (1e4, 1.0, Yarn(1 << 31), ShapeError, "n_ctx_orig must be in [1, 2^31), got 2147483648"),
    (1e4, 0.0, Yarn(64), ShapeError, "scale must be above 0 with yarn, got 0.0"),
    (1.0, 1.0, Yarn(64), ShapeError, "base must not be 1 with yarn"),
    (1e4, 1.0, Yarn(64, beta_slow=0.0), ShapeError, "beta_fast and beta_slow must be above 0, got Yarn(n_ctx_orig=64, ext_factor=1.0, attn_factor=1.0, beta_fast=32.0, beta_slow=0.0)"),
    (1e4, 1.0, Yarn(64, attn_factor=NAN), ShapeError, "yarn must be finite, got Yarn(n_ctx_orig=64, ext_factor=1.0, attn_factor=nan, beta_fast=32.0, beta_slow=1.0)"),
    (1e4, 1.0, (64, 1.0), DTypeError, "yarn must be Yarn(n_ctx_orig, ext_factor, attn_factor, beta_fast, beta_slow), got tuple"),
    (1e4, 1.0, (64.0, 1, 1, 32, 1), DTypeError, "yarn.n_ctx_orig must be an integer, got 64.0"),
]
# fmt: on


@pytest.mark.parametrize(("base", "scale", "yarn", "error", "message"), YARN_REFUSALS)
def test_yarn_refuses(call, base, scale, yarn, error, message):
    with pytest.raises(error) as caught:
        call("rope", X, P, 8, base, scale, yarn=yarn)
    assert str(caught.value).endswith(f": {message}")


# fmt: off
CONV_REFUSALS = [  # one on a line
    (Spec(F, (5, 3)), Spec(F, (4, 2)), ShapeError, "dimension 1, the channels, must match, 3 != 2"),
    (Spec(F, (2, 3)), Spec(F, (4, 3)), ShapeError, "dimension 0 must hold a state of 3 at least, got 2"),
    (Spec(F, (2, 3)), Spec(F, (0, 3)), ShapeError, "dimension 0 of the weight must be at least 1, got 0"),
    (Spec(F, (5, 3)), Spec(F, (4, 3, 2)), ShapeError, "the weight must have at most 2 dimensions, got [4, 3, 2]"),
    (Spec(F, (5, 3, 1, 2)), Spec(F, (4, 3)), ShapeError, "the receiver must have at most 3 dimensions, got [5, 3, 1, 2]"),
    (Spec(F, (5, 3)), Spec(INT, (4, 3)), DTypeError, "the weight must be f32, f16 or bf16, got i32; cast it first"),
]
# fmt: on


@pytest.mark.parametrize(("x", "weight", "error", "message"), CONV_REFUSALS)
def test_ssm_conv_refuses(call, x, weight, error, message):
    with pytest.raises(error) as caught:
        call("ssm_conv", x, weight)
    assert str(caught.value).endswith(f": {message}")


# fmt: off
SCAN_REFUSALS = [  # one on a line
    ({"s": Spec(F, (4, 2, 6, 5))}, ShapeError, "the receiver must be [4, 3, 6, 5], got [4, 2, 6, 5]"),
    ({"dt": Spec(F, (6, 7))}, ShapeError, "dt must be [6, 7, 2], got [6, 7]"),
    ({"A": Spec(F, (2, 6))}, ShapeError, "dimension 0 of A must be 1 or the 4 states, got 2"),
    ({"A": Spec(F, (1, 5))}, ShapeError, "A must be [1, 6], got [1, 5]"),
    ({"B": Spec(F, (4, 2, 7))}, ShapeError, "B must be [4, 2, 7, 2], got [4, 2, 7]"),
    ({"C": Spec(F, (4, 3, 7, 2))}, ShapeError, "C must be [4, 2, 7, 2], got [4, 3, 7, 2]"),
    ({n: Spec(F, (4, 4, 7, 2)) for n in "BC"}, ShapeError, "the 4 groups of B must divide the 6 heads"),
    ({n: Spec(F, (4, 0, 7, 2)) for n in "BC"}, ShapeError, "the 0 groups of B must divide the 6 heads"),
    ({"ids": Spec(INT, (3,))}, ShapeError, "ids must be [2], got [3]"),
    ({"ids": Spec(F, (2,))}, DTypeError, "ids must be i32, got f32"),
    ({"dt": Spec(INT, (6, 7, 2))}, DTypeError, "dt must be f32, f16 or bf16, got i32; cast it first"),
]
# fmt: on


@pytest.mark.parametrize(("changed", "error", "message"), SCAN_REFUSALS)
def test_ssm_scan_refuses(call, changed, error, message):
    with pytest.raises(error) as caught:
        call("ssm_scan", *{**SCAN, **changed}.values())
    assert str(caught.value).endswith(f": {message}")
