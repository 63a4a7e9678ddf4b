"""A conformer: convolutions make a position of eight frames; blocks attend, with a bias by distance, and convolve over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor

from ..encoders.block import Norm
from ..encoders.contract import EncoderInputs, EncoderNetwork
from ..encoders.convolution import DepthwiseConvolution
from ..encoders.shape import EncoderShape, as_f32
from ..models.nn import Linear, Projection, Weights

REDUCTION = 8  # frames of a position
SIDE = 3  # of the first convolution's kernel


@final
@dataclass(frozen=True, eq=False)
class ConformerPiece:
    """A part of a sound that is encoded by itself.

    mel             (frames, bins)
    skipped         the first positions, which only the convolutions over frames see
    held            the positions behind them, which become rows
    padded          the positions that attention sees: those behind the held ones are zeros
    beside_picture  whether the sound stands in a prompt with pictures
    """

    mel: NDArray[np.float32]
    skipped: int
    held: int
    padded: int
    beside_picture: bool


def positions_of(frames: int) -> int:
    """The positions that the convolutions make of so many frames."""
    return -(-frames // REDUCTION)


class ConformerTower(EncoderNetwork):
    """Blocks a.blk.* over the pieces of sounds, and what comes before them."""

    def __init__(self, weights: Weights, backend: Backend, bins: int) -> None:
        self.shape = EncoderShape.of(backend, prefix="a.")
        self.width, self.blocks = self.shape.width, self.shape.blocks
        a = weights.at("a.")
        self.mean, self.scale = (a.need(f"mel_{name}.weight", bins) for name in ("mean", "scale"))
        self.frames = FrameConvolutions(a, bins, self.width)
        self.distances = a.need("relative_bias.weight", self.shape.heads, None)
        self.layers = [ConformerBlock(a.at(f"blk.{n}."), self.shape) for n in range(self.blocks)]

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        mel = inputs.leaf("mel", lambda pieces: np.stack([piece.mel for piece in pieces]))
        piece = inputs.first
        x = self.frames(ctx, mel.sub(ctx, as_f32(ctx, self.mean)).mul(ctx, as_f32(ctx, self.scale)))
        if piece.held < x.dim(1):
            x = x.slice(ctx, 1, piece.skipped, piece.skipped + piece.held, 1).contiguous(ctx)
        if piece.held < piece.padded:
            x = x.pad_ext(ctx, 0, 0, 0, piece.padded - piece.held)
        return x.reshape(ctx, self.width, piece.padded * inputs.count)

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: EncoderInputs) -> Tensor:
        count = inputs.first.padded
        most = self.distances.dim(1) // 2
        ids = inputs.leaf("distances", lambda _: _distances(count, most))
        bias = as_f32(ctx, self.distances.rows(ctx, ids).reshape(ctx, self.shape.heads, count, count))
        return self.layers[layer](ctx, x, bias.permute(ctx, 2, 0, 1).contiguous(ctx))

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        piece = inputs.first
        if piece.held == piece.padded:
            return x
        x = x.reshape(ctx, self.width, piece.padded, inputs.count)
        return x.slice(ctx, 1, 0, piece.held, 1).contiguous(ctx).reshape(ctx, self.width, -1)


def _distances(count: int, most: int) -> NDArray[np.int32]:
    """The rows of the table for each key of each query: from -most to most - 1."""
    places = np.arange(count)
    distances: NDArray[np.int64] = np.clip(places[None, :] - places[:, None], -most, most - 1)
    return (distances + most).ravel().astype(np.int32)


@final
class FrameConvolutions:
    """Three convolutions, each of which halves frames and bins, and a product."""

    def __init__(self, weights: Weights, bins: int, width: int) -> None:
        channels = weights.extent("conv2d.0.bias", 0) or 1
        self.first = weights.need("conv2d.0.weight", SIDE, SIDE, 1, channels)
        self.bias = weights.need("conv2d.0.bias", channels)
        self.others = [
            (
                DepthwiseConvolution(weights, f"conv2d.{n}", channels, stride=2),
                Linear(weights, f"conv2d.{n + 1}", channels, channels, biased=True),
            )
            for n in (2, 5)
        ]
        self.channels = channels
        self.out = Linear(weights, "conv_out", channels * positions_of(bins), width, biased=True)

    def __call__(self, ctx: Context, mel: Tensor) -> Tensor:
        """(bins, frames, pieces) to (width, positions, pieces)"""
        bins, frames, pieces = mel.dim(0), mel.dim(1), mel.dim(2)
        planes = mel.reshape(ctx, bins, frames, 1, pieces)
        windows = self.first.im2col(ctx, planes, s0=2, s1=2, p0=1, p1=1)  # (9, bins, frames, pieces)
        matrix = self.first.reshape(ctx, SIDE * SIDE, self.channels)
        x = matrix.mulmat(ctx, windows.reshape(ctx, SIDE * SIDE, -1)).add(ctx, self.bias).relu(ctx)
        x = x.reshape(ctx, self.channels, windows.dim(1), windows.dim(2), pieces)
        for convolution, product in self.others:
            x = convolution(ctx, x)
            y = product(ctx, x.reshape(ctx, self.channels, -1)).relu(ctx)
            x = y.reshape(ctx, *x.shape)
        positions = x.dim(2)
        x = x.permute(ctx, 1, 0, 2, 3).contiguous(ctx)  # the reference has bins innermost
        return self.out(ctx, x.reshape(ctx, -1, positions * pieces)).reshape(ctx, -1, positions, pieces)


@final
class ConformerBlock:
    """Half a feed-forward, attention, convolutions, half a feed-forward, each added, and a norm."""

    def __init__(self, weights: Weights, shape: EncoderShape) -> None:
        self.shape = shape
        self.first, self.last = (HalfFeedForward(weights, shape, end) for end in ("", "_1"))
        self.norm, self.last_norm = (
            Norm(weights, (name,), shape.width, shape.eps) for name in ("ln1", "ln2")
        )
        self.project = Projection(weights, shape.attention)
        self.output = Linear(weights, "attn_out", shape.width, shape.width)
        self.convolve = TimeConvolution(weights, shape)

    def __call__(self, ctx: Context, x: Tensor, bias: Tensor) -> Tensor:
        """(width, positions of all pieces), and what is added to scores, (keys, queries, heads)"""
        count = bias.dim(0)
        x = x.add(ctx, self.first(ctx, x))
        q, k, v = (
            each.reshape(ctx, each.dim(0), each.dim(1), count, -1)
            for each in self.project(ctx, self.norm(ctx, x))
        )
        a = q.scaled_dot_product_attention(ctx, k, v, bias, scale=self.shape.head**-0.5)
        x = x.add(ctx, self.output(ctx, a.reshape(ctx, *x.shape)))
        x = x.add(ctx, self.convolve(ctx, x, count))
        return self.last_norm(ctx, x.add(ctx, self.last(ctx, x)))


@final
class HalfFeedForward:
    """Half of down(silu(gate(y)) * up(y)), where y = norm(x)."""

    def __init__(self, weights: Weights, shape: EncoderShape, end: str) -> None:
        self.norm = Norm(weights, (f"ffn_norm{end}",), shape.width, shape.eps)
        self.up, self.gate = (
            Linear(weights, f"ffn_{name}{end}", shape.width, shape.hidden) for name in ("up", "gate")
        )
        self.down = Linear(weights, f"ffn_down{end}", shape.hidden, shape.width)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        y = self.norm(ctx, x)
        y = self.gate(ctx, y).silu(ctx, self.up(ctx, y))
        return self.down(ctx, y).scale(ctx, 0.5)


@final
class TimeConvolution:
    """A gated product, a kernel for each channel over a position and those before it, and two products."""

    def __init__(self, weights: Weights, shape: EncoderShape) -> None:
        self.width = width = shape.width
        self.norm = Norm(weights, ("norm_conv",), width, shape.eps)
        self.into = Linear(weights, "conv_pw1", width, 2 * width)
        self.value, self.gate = (weights.need(f"conv_{name}.bias", width) for name in ("value", "gate"))
        self.kernel, self.bias = (
            weights.need("conv_dw.weight", None, width),
            weights.need("conv_dw.bias", width),
        )
        self.middle, self.out = (Linear(weights, f"conv_pw{n}", width, width) for n in (2, 3))

    def __call__(self, ctx: Context, x: Tensor, count: int) -> Tensor:
        """(width, positions of all pieces), of `count` positions each"""
        y = self.into(ctx, self.norm(ctx, x))
        value, gate = (part.contiguous(ctx) for part in y.chunk(ctx, 0, self.width))
        y = gate.add(ctx, self.gate).silu(ctx, value.add(ctx, self.value))
        y = self._over_time(ctx, y.reshape(ctx, self.width, count, -1)).reshape(ctx, *x.shape)
        return self.out(ctx, self.middle(ctx, y).silu(ctx))

    def _over_time(self, ctx: Context, x: Tensor) -> Tensor:
        """(width, positions, pieces)"""
        taps, count = self.kernel.dim(0), x.dim(1)
        kernels = as_f32(ctx, self.kernel).permute(ctx, 1, 0).contiguous(ctx)  # (width, taps)
        x = x.pad_ext(ctx, 0, 0, taps - 1, 0)
        found: Tensor | None = None
        for n in range(taps):
            tap = kernels.slice(ctx, 1, n, n + 1, 1).reshape(ctx, self.width)
            part = x.slice(ctx, 1, n, n + count, 1).mul(ctx, tap)
            found = part if found is None else found.add(ctx, part)
        assert found is not None
        return found.add(ctx, self.bias)
