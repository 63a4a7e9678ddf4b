"""Whisper's encoder: two convolutions, learned or sinusoid positions, and blocks in which all positions see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor

from ..encoders.block import AttentionGroups, Norm, TowerBlock, attend, attend_in_tiles, concatenate_pairwise
from ..encoders.contract import EncoderInputs, EncoderNetwork
from ..encoders.shape import EncoderShape, as_f32
from ..models.nn import Weights
from ..models.nn.feed_forward import gelu_erf
from .mel import Mel

TAPS = 3  # of each convolution; the second one halves the frames


@final
@dataclass(frozen=True, eq=False)
class SoundPiece:
    """A part of a sound that is encoded by itself.

    mel     (bins, frames)
    held    the first positions, for which there are results; the others are of padding
    seen    the first of these, which all of them see
    """

    mel: Mel
    held: int
    seen: int


def positions_of(frames: int) -> int:
    """The positions that the convolutions make of so many frames."""
    return (frames - 1) // 2 + 1


class WhisperTower(EncoderNetwork):
    """Blocks a.blk.* over the pieces of sounds, as the keys and tensors of projector files have them."""

    def __init__(self, weights: Weights, backend: Backend, bins: int) -> None:
        self.shape = EncoderShape.of(backend, prefix="a.")
        self.width, self.blocks = self.shape.width, self.shape.blocks
        a = weights.at("a.")
        self.first = Convolution(a, "conv1d.1", bins, self.width)
        self.second = Convolution(a, "conv1d.2", self.width, self.width, stride=2)
        self.positions = a.need("position_embd.weight", self.width, None)
        self.layers = [TowerBlock(a.at(f"blk.{n}."), self.shape, gelu_erf) for n in range(self.blocks)]
        self.norm = Norm(a, ("post_ln",), self.width, self.shape.eps)

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        mel = inputs.leaf("mel", _stacked)  # (frames, 1, bins, pieces)
        x = self.first(ctx, mel)
        x = self.second(ctx, x.permute(ctx, 2, 0, 3, 1).contiguous(ctx))  # (frames, 1, width, pieces)
        held = inputs.first.held
        if held < x.dim(1):
            x = x.slice(ctx, 1, 0, held, 1).contiguous(ctx)
        x = x.add(ctx, as_f32(ctx, self.positions.slice(ctx, 1, 0, held, 1)))
        return x.reshape(ctx, self.width, held * inputs.count)

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: EncoderInputs) -> Tensor:
        return self.layers[layer](ctx, x, partial(self.attend, piece=inputs.first, count=inputs.count))

    def attend(
        self, ctx: Context, q: Tensor, k: Tensor, v: Tensor, *, piece: SoundPiece, count: int
    ) -> Tensor:
        scale = self.shape.head**-0.5
        if piece.seen == piece.held:
            return attend(ctx, q, k, v, [AttentionGroups(piece.held, count)], scale)
        found = []
        for begin in range(0, piece.held * count, piece.held):
            own = q.slice(ctx, 2, begin, begin + piece.held, 1)
            keys, values = (each.slice(ctx, 2, begin, begin + piece.seen, 1) for each in (k, v))
            found.append(attend_in_tiles(ctx, own, keys, values, scale))
        return concatenate_pairwise(ctx, found, 2)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        return self.norm(ctx, x)


@final
class Convolution:
    """A convolution of three taps over frames, with a bias and a GELU."""

    def __init__(self, weights: Weights, name: str, inputs: int, outputs: int, stride: int = 1) -> None:
        self.inputs, self.outputs, self.stride = inputs, outputs, stride
        self.weight = weights.need(f"{name}.weight", TAPS, inputs, outputs)
        column = weights.extent(f"{name}.bias", 0) == 1
        self.bias = weights.need(f"{name}.bias", *((1, outputs) if column else (outputs,)))

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        """(frames, 1, inputs, pieces) to (outputs, frames, pieces)"""
        kernel = self.weight.reshape(ctx, TAPS, 1, self.inputs, self.outputs)
        windows = kernel.im2col(ctx, x, s0=self.stride, p0=1)  # (taps * inputs, frames, 1, pieces)
        frames, pieces = windows.dim(1), windows.dim(3)
        matrix = self.weight.reshape(ctx, TAPS * self.inputs, self.outputs)
        y = matrix.mulmat(ctx, windows.reshape(ctx, TAPS * self.inputs, frames * pieces))
        y = gelu_erf(ctx, y.add(ctx, self.bias.reshape(ctx, self.outputs)))
        return y.reshape(ctx, self.outputs, frames, pieces)


def _stacked(pieces: Sequence[SoundPiece]) -> NDArray[np.float32]:
    """(pieces, bins, 1, frames)"""
    return np.stack([piece.mel for piece in pieces])[:, :, None]
