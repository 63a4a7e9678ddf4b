"""State-space models against PyTorch, and at their edges."""

import math
from functools import partial

import numpy as np
import pytest
from exact import ROUNDED, normal

rng = np.random.default_rng(13)
NAN = math.nan


numbers = partial(normal, rng)


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


def rule_operands(share: float, removed=None):
    """One token of one head with two keys and one value; the state is halved."""

    def row(*values: float) -> np.ndarray:
        return np.array(values, np.float32).reshape(1, 1, 1, -1)

    given = [row(1, 2), row(1, 1), row(1, 0), row(3), np.log(row(0.5)), row(share)]
    return [*given, None if removed is None else row(*removed)]


def test_a_delta_rule_replaces_what_a_halved_state_holds_of_a_key(call):
    np.testing.assert_allclose(call("delta_rule", *rule_operands(1.0)), [4, 3, 1], rtol=1e-6)
    np.testing.assert_allclose(call("delta_rule", *rule_operands(0.2)), [2, 1, 1], rtol=1e-6)


def test_a_delta_rule_removes_what_the_state_held_before_it_was_halved(call):
    np.testing.assert_allclose(call("delta_rule", *rule_operands(0.5, (0, 1))), [3.5, 3.5, 0], atol=1e-6)


def test_a_delta_rule_without_tokens_gives_the_states(call):
    s, *others = rule_operands(1.0)
    np.testing.assert_array_equal(call("delta_rule", s, *(x[:, :0] for x in others[:5]), None), [1, 2])
