"""Rotary embeddings: partial rotation, pairings, shifts, and large positions."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...faults import BoundCall, Kind, Result, fault


@fault(Kind.ROPE, ops.rope)
def partial_rope_clears_the_rest(call: BoundCall) -> Result:
    """Elements from dim on become 0 instead of being copied."""
    y = np.array(call.right())
    if call.mode != "vision":
        y[..., call.dim :] = 0
    return y


@fault(Kind.ROPE, ops.rope)
def partial_neox_pairs_across_the_whole_head(call: BoundCall) -> Result:
    """Element i is paired with i + head_dim/2, also where only dim elements turn."""
    dim = call.dim
    half = call.x.shape[-1] // 2
    if call.mode != "neox" or dim == call.x.shape[-1]:
        return call.right()
    order = np.argsort(np.arange(2 * half) % half >= dim // 2, kind="stable")  # turned elements first
    return call.right(x=call.x[..., order])[..., np.argsort(order)]


@fault(Kind.ROPE, ops.rope)
def frequencies_of_partial_rope_come_from_the_head(call: BoundCall) -> Result:
    """The powers of base divide by head_dim instead of dim."""
    exponent = call.dim / call.x.shape[-1] if call.mode in ("normal", "neox") else 1
    return call.right(base=call.base**exponent)


@fault(Kind.ROPE, ops.rope)
def negative_positions_count_as_zero(call: BoundCall) -> Result:
    return call.right(positions=np.maximum(call.positions, 0))


@fault(Kind.ROPE, ops.rope)
def positions_are_kept_in_half_precision(call: BoundCall) -> Result:
    return call.right(positions=call.positions.astype(np.float16).astype(np.float64))


@fault(Kind.ROPE, ops.rope)
def neox_ignores_frequency_factors(call: BoundCall) -> Result:
    return call.right(factors=None if call.mode == "neox" else call.factors)


@fault(Kind.ROPE, ops.rope)
def frequency_factors_multiply(call: BoundCall) -> Result:
    return call.right(factors=None if call.factors is None else 1 / call.factors)


@fault(Kind.ROPE, ops.rope)
def sections_do_not_repeat(call: BoundCall) -> Result:
    """In multi-section mode, pairs beyond all sections take the first component."""
    total = sum(call.sections)
    if call.mode == "multi-section" and 0 < total < call.dim // 2:
        beyond = call.dim // 2 - total
        parts = call.positions.reshape(4, -1)
        first = call.right(positions=np.tile(parts[0], 4))
        y = np.array(call.right())
        for start in (total, call.dim // 2 + total):
            y[..., start : start + beyond] = first[..., start : start + beyond]
        return y
    return call.right()


@fault(Kind.ROPE, ops.rope)
def yarn_stretches_by_the_head(call: BoundCall) -> Result:
    """The factor of yarn also multiplies the elements that are only copied."""
    y = np.array(call.right())
    if call.yarn is not None and call.mode != "vision":
        y[..., call.dim :] *= call.yarn.attn_factor
    return y


@fault(Kind.ROPE, ops.rope)
def vision_powers_run_on(call: BoundCall) -> Result:
    """The second section of vision does not restart its powers of base."""
    if call.mode != "vision" or not call.sections[0] or call.factors is not None:
        return call.right()
    first, dim = call.sections[0], call.dim
    return call.right(factors=np.where(np.arange(dim) >= first, call.base ** (2 * first / dim), 1.0))


@fault(Kind.ROPE, ops.rope)
def turning_back_turns_forth(call: BoundCall) -> Result:
    """The sign of scale is dropped."""
    return call.right(scale=abs(call.scale))


@fault(Kind.ROPE, ops.rope)
def all_tokens_beyond_the_first_batch_reuse_its_table(call: BoundCall) -> Result:
    """Sines are kept for 16 tokens, and token 16 takes the sines of token 0."""
    positions = call.positions
    if positions.size == (call.x.shape[-3] if call.x.ndim > 2 else 1) > 16:
        positions = positions.reshape(-1)[np.arange(positions.size) % 16].reshape(positions.shape)
    return call.right(positions=positions)
