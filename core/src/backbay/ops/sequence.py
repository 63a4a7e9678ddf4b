"""Ops along a sequence: rotary position embedding, state-space models and the delta rule."""

from collections.abc import Sequence
from math import isfinite
from typing import Literal, NamedTuple

from ..errors import ShapeError
from ..types.dtype import DType
from ..types.spec import (
    Spec,
    divides,
    require,
    require_dtype,
    require_float,
    require_rank,
    result_spec,
    same_shape,
)
from .op_declaration import op


class Yarn(NamedTuple):
    """YaRN's parameters for rope, with ggml's names; with an ext_factor of 0 only attn_factor has an effect."""

    n_ctx_orig: int  # the context that the model was trained with
    ext_factor: float = 1.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@op
def rope(
    x: Spec,
    positions: Spec,
    dim: int,
    base: float,
    scale: float = 1.0,
    mode: Literal["normal", "neox", "multi-section", "vision"] = "normal",
    factors: Spec | None = None,
    sections: Sequence[int] = (0, 0, 0, 0),
    yarn: Yarn | None = None,
) -> Spec:
    """Rotary position embedding: pairs of elements in dimension 0 are rotated by angles that grow with the position.

    x is float (head_dim, heads, tokens, batch) with an even head_dim; y has x's dtype and shape. At
    token t, pair i of a head, with elements a and b, becomes

        (x[a]*cos(angle) - x[b]*sin(angle)) * m  and  (x[a]*sin(angle) + x[b]*cos(angle)) * m

        theta = P * base^(-2*e / dim) / factors[i]      (without factors: not divided)
        angle = scale * theta,  m = 1                   (without yarn)

    | mode | pairs i | a, b | P | e |
    |---|---|---|---|---|
    | normal | [0, dim/2) | 2i, 2i + 1 | positions[t] | i |
    | neox | [0, dim/2) | i, i + dim/2 | positions[t] | i |
    | multi-section | [0, dim/2) | i, i + dim/2 | positions[t + tokens*c] | i |
    | vision | [0, dim) | i, i + dim | positions[t + tokens*c] | i if c = 0, else i - sections[0] |

    - dim is even, at least 2 and at most head_dim; in vision it is head_dim / 2. In the other modes the
      elements from dim on are copied.
    - scale is 1 / factor for a context stretched by factor. A scale of -1 rotates back.
    - positions are i32, (tokens,), any values; in multi-section and vision (4*tokens,): the first components
      of all tokens, then the second components of all tokens, and so on.
    - sections are four numbers >= 0, with a sum of at most head_dim; in normal and neox all are 0.
      multi-section: with S the sum of sections, c is the section that contains i mod S: 0 for the first
      sections[0] numbers, 1 for the next sections[1] numbers, and so on; one of the first three sections must
      be above 0. vision: c = 0 for i < sections[0], else 1; sections[0] + sections[1] must be dim, and the
      other two have no effect.
    - factors are f32, one dimension, at least as many as there are pairs; a factor of 0 gives NaN.
    - base is above 0; base and scale are finite.

    yarn = (n_ctx_orig, ext_factor, attn_factor, beta_fast, beta_slow) mixes scaled and unscaled angles, depending
    on the frequency:

        m = attn_factor; but if ext_factor is not 0:
        m = attn_factor * (1 + 0.1 * ln(1 / scale))
        edge(beta) = dim * ln(n_ctx_orig / (2*pi*beta)) / (2 * ln(base))
        low = max(0, floor(edge(beta_fast)));  high = min(dim - 1, ceil(edge(beta_slow)))
        r = ext_factor * (1 - clamp((i - low) / max(0.001, high - low), 0, 1))
        angle = scale*theta*(1 - r) + theta*r

    If ext_factor is not 0, n_ctx_orig >= 1, the betas and scale are above 0, and base is not 1. Copied elements
    are not multiplied by m.

    By IEEE arithmetic, an element that is not finite makes both elements of its pair NaN or infinite, and no others.
    Angles are exact in this specification; a backend that computes them in f32 adds theta's rounding error, which
    grows with the position.
    """
    require_float(x)
    require_dtype(positions, (DType.I32,), "positions")
    _rotation(x.dim(0), dim, mode)
    require_rank(positions, 1, "positions")
    per_token = 4 if mode in ("multi-section", "vision") else 1
    rule = "positions must be {} for each of the {} tokens of dimension 2, got {}"
    require(positions.dim(0) == per_token * x.dim(2), rule, per_token, x.dim(2), positions.dim(0))
    _sections(x.dim(0), dim, mode, sections)
    if factors is not None:
        _factors(factors, dim if mode == "vision" else dim // 2)
    require(base > 0 and isfinite(base), "base must be above 0 and finite, got {}", base)
    require(isfinite(scale), "scale must be finite, got {}", scale)
    _yarn(base, scale, yarn)
    return x


def _rotation(head: int, dim: int, mode: str) -> None:
    require(head % 2 == 0, "dimension 0, the head, must be even, got {}", head)
    require(dim % 2 == 0 and 2 <= dim <= head, "dim must be even and in [2, {}], got {}", head, dim)
    rule = "dim must be half of dimension 0 in vision, {} != {} / 2"
    require(mode != "vision" or 2 * dim == head, rule, dim, head)


def _sections(head: int, dim: int, mode: str, sections: Sequence[int]) -> None:
    require(len(sections) == 4 and min(sections) >= 0, "sections must be four numbers >= 0, got {}", sections)
    require(sum(sections) <= head, "sections must add up to at most {}, dimension 0, got {}", head, sections)
    if mode == "multi-section":
        require(any(sections[:3]), "one of the first three sections must be above 0, got {}", sections)
    elif mode == "vision":
        rule = "the first two sections must add up to dim, {}, got {}"
        require(sections[0] + sections[1] == dim, rule, dim, sections)
    else:
        rule = "sections are for the modes multi-section and vision, not {}, got {}"
        require(not any(sections), rule, mode, sections)


def _factors(factors: Spec, pairs: int) -> None:
    require_dtype(factors, (DType.F32,), "factors")
    require_rank(factors, 1, "factors")
    rule = "there must be at least {} factors, one per pair, got {}"
    require(factors.dim(0) >= pairs, rule, pairs, factors.dim(0))


def _yarn(base: float, scale: float, yarn: Yarn | None) -> None:
    if yarn is None:
        return
    require(all(map(isfinite, yarn)), "yarn must be finite, got {}", yarn)
    if yarn.ext_factor == 0:
        return
    require(1 <= yarn.n_ctx_orig < 1 << 31, "n_ctx_orig must be in [1, 2^31), got {}", yarn.n_ctx_orig)
    require(min(yarn.beta_fast, yarn.beta_slow) > 0, "beta_fast and beta_slow must be above 0, got {}", yarn)
    require(scale > 0, "scale must be above 0 with yarn, got {}", scale)
    require(base != 1, "base must not be 1 with yarn")


@op
def ssm_conv(x: Spec, weight: Spec) -> Spec:
    """The causal depthwise convolution of a state-space model, over the state followed by the new tokens.

    y[c,t,q] = sum over i of x[t + i, c, q] * weight[i, c].

    x is float (K-1 + tokens, channels, sequences): for each channel the last K-1 inputs, then the new inputs;
    weight is float (K, channels) with K >= 1; y is f32 (channels, tokens, sequences), always of three
    dimensions. Channels become dimension 0. tokens = 0 gives an empty result. A value that is not finite follows
    IEEE arithmetic in every window that contains it.
    """
    require_float(x)
    require_float(weight, "the weight")
    require_rank(x, 3)
    require_rank(weight, 2, "the weight")
    taps = weight.dim(0)
    rule = "dimension 1, the channels, must match, {} != {}"
    require(weight.dim(1) == x.dim(1), rule, x.dim(1), weight.dim(1))
    require(taps >= 1, "dimension 0 of the weight must be at least 1, got {}", taps)
    require(x.dim(0) >= taps - 1, "dimension 0 must hold a state of {} at least, got {}", taps - 1, x.dim(0))
    return result_spec(DType.F32, (x.dim(1), x.dim(0) - taps + 1, x.dim(2)))


@op(ids="ids", among=("s", 3))
def ssm_scan(s: Spec, x: Spec, dt: Spec, A: Spec, B: Spec, C: Spec, ids: Spec) -> Spec:
    """The selective scan of Mamba-1 and Mamba-2: each sequence has a state that every token updates.

    For sequence q the state h starts as s[:,:,:,ids[q]]. For each token t in order:

        d = ln(1 + exp(dt[k,t,q]));  g = k // (heads / groups)
        h[n,p,k] = h[n,p,k] * exp(d * A[n,k]) + B[n,g,t,q] * x[p,k,t,q] * d
        y[p,k,t,q] = sum over n of h[n,p,k] * C[n,g,t,q]

    s is (states, head_dim, heads, slots), x is (head_dim, heads, tokens, sequences), dt is (heads, tokens,
    sequences). A is (states, heads) in Mamba-1, or (1, heads) in Mamba-2: one decay for all states of a head. B
    and C are (states, groups, tokens, sequences), where groups divides heads. All of these are float. ids is i32
    (sequences,); each id is in [0, slots), and ids may repeat. s is only read.

    The result is f32 and has one dimension: all of y in x's layout, then each sequence's state after its last
    token, as (states, head_dim, heads, sequences). Without tokens this is the state at the start. NaN stays in
    its head. exp(dt) must not overflow: for large dt, d is dt.
    """
    for operand, name in ((s, "the receiver"), (x, "x"), (dt, "dt"), (A, "A"), (B, "B"), (C, "C")):
        require_float(operand, name)
    require_dtype(ids, (DType.I32,), "ids")
    states, (head_dim, heads, tokens, sequences) = s.dim(0), map(x.dim, range(4))
    _shape(s, "the receiver", (states, head_dim, heads, s.dim(3)))
    _shape(dt, "dt", (heads, tokens, sequences))
    _shape(A, "A", (A.dim(0), heads))
    require(A.dim(0) in (1, states), "dimension 0 of A must be 1 or the {} states, got {}", states, A.dim(0))
    _shape(B, "B", (states, B.dim(1), tokens, sequences))
    _shape(C, "C", (states, B.dim(1), tokens, sequences))
    require(divides(B.dim(1), heads), "the {} groups of B must divide the {} heads", B.dim(1), heads)
    _shape(ids, "ids", (sequences,))
    return result_spec(DType.F32, (x.size + states * head_dim * heads * sequences,))


@op
def delta_rule(
    s: Spec, q: Spec, k: Spec, v: Spec, decay: Spec, share: Spec, removed: Spec | None = None
) -> Spec:
    """The delta rule of linear attention: each sequence has a state, in which every token replaces values.

    For each head and sequence, the state S starts as s. For each token in order, with e = exp(decay):

        without `removed`, the gated delta rule:
        known[j] = sum over i of S[i,j] * e[i] * k[i]
        S[i,j] = S[i,j] * e[i] + k[i] * share * (v[j] - known[j])

        with `removed`, the rule of RWKV 7:
        known[j] = sum over i of S[i,j] * removed[i]
        S[i,j] = S[i,j] * e[i] + k[i] * v[j] - share[i] * removed[i] * known[j]

        y[j] = sum over i of S[i,j] * q[i]        (S after the token)

    s is (key, value, heads, sequences); q, k and removed are (key, heads, tokens, sequences); v is (value, heads,
    tokens, sequences). decay is (key, heads, tokens, sequences), or (1, heads, tokens, sequences): one decay for all of
    a head. share is (1, heads, tokens, sequences); with `removed` it may have `key` elements, too. All are float; s is
    only read.

    The result is f32 and has one dimension: all of y in v's layout, then each sequence's state after its last token, in
    s's layout. Without tokens this is s. Without keys, y is 0. A state grows without limit if share * |k|^2 or share *
    |removed|^2 exceeds 2, or if decays are above 0. If an operand of a head has an element that is not finite, or an e
    overflows, then the results of this head in this sequence are open; others are not affected.
    """
    named = {"the receiver": s, "q": q, "k": k, "v": v, "decay": decay, "share": share, "removed": removed}
    for name, operand in named.items():
        if operand is not None:
            require_float(operand, name)
    key, (value, heads, tokens, sequences) = s.dim(0), map(v.dim, range(4))
    each = (heads, tokens, sequences)
    _shape(s, "the receiver", (key, value, heads, sequences))
    _shape(q, "q", (key, *each))
    _shape(k, "k", (key, *each))
    _shape(decay, "decay", (1 if decay.dim(0) == 1 else key, *each))
    _shape(share, "share", (1 if removed is None or share.dim(0) == 1 else key, *each))
    if removed is not None:
        _shape(removed, "removed", (key, *each))
    return result_spec(DType.F32, (v.size + s.size,))


def _shape(operand: Spec, name: str, expected: tuple[int, ...]) -> None:
    if not same_shape(operand.shape, expected):
        raise ShapeError(f"{name} must be {list(expected)}, got {list(operand.shape)}")
