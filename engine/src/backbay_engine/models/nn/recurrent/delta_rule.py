"""The delta rule: a linear attention whose state forgets, and replaces what it knows of a key."""

from __future__ import annotations

from backbay import Context, Tensor


def delta_rule(
    ctx: Context,
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    share: Tensor,
    removed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens, and the states after them: the parts of the op's result, in the shapes of v and state."""
    both = state.delta_rule(ctx, q, k, v, decay, share, removed)
    return both.view(ctx, 0, v.shape), both.view(ctx, v.size * both.stride(0), state.shape)
