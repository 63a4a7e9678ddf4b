"""State-space models against loops, their formulas, and PyTorch."""

import math
from functools import partial

import numpy as np
import pytest
from exact import ROUNDED, normal

from backbay import ShapeError

rng = np.random.default_rng(13)
NAN = math.nan


numbers = partial(normal, rng)


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
