"""Ultravox: positions stacked, and a gate between two matrices; a sound is as long as it is, without padding to 30 seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ...encoders.block import Norm
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...models.nn import Linear, Weights
from ...models.nn.feed_forward import silu
from ...text.tokenizers import Tokenizer
from ..contract import SoundFamily
from ..mel import HOP
from ..prepared_sound import PreparedAudio
from ..tower import SoundPiece, WhisperTower, positions_of

STACK = whole("audio.projector.stack_factor", 1, 1 << 8)
DEFAULT_STACK = 8
EPSILON = 1e-6
LEAST = 2  # frames, to which shorter sounds are padded


@final
class UltravoxFamily(SoundFamily):
    """A projector for many text models, whose templates and vocabularies know no sound."""

    preparation = "ultravox"
    placeholder = marker = "<|audio|>"
    projections = ("mm.a.mlp.2.weight",)

    @property
    def stack(self) -> int:
        """The positions that become one row."""
        return STACK.of(self.config, DEFAULT_STACK)

    def fits(self, architecture: str) -> bool:
        return True

    def shape(self, samples: int) -> tuple[int, ...]:
        return self.bins, max(LEAST, -(-samples // HOP))

    def rows(self, samples: int) -> int:
        frames = self.shape(samples)[1]
        whole_pieces, rest = divmod(frames, self.frames)
        return whole_pieces * self._rows(self.frames) + self._rows(rest)

    def _rows(self, frames: int) -> int:
        return -(-positions_of(frames) // self.stack)

    def pieces(self, prepared: PreparedAudio, /) -> list[SoundPiece]:
        """A last piece after others is padded with zeros, which nothing sees; its last row has some of them, computed."""
        mel, found = prepared.mel, list[SoundPiece]()
        for begin in range(0, mel.shape[1], self.frames):
            piece = mel[:, begin : begin + self.frames]
            seen = held = positions_of(piece.shape[1])
            if begin and piece.shape[1] < self.frames:
                piece = np.pad(piece, ((0, 0), (0, self.frames - piece.shape[1])))
                held = min(self.frames // 2, -(-seen // self.stack) * self.stack)
            found.append(SoundPiece(piece, held, seen))
        return found

    def place(self, prepared: PreparedAudio, /, tokenizer: Tokenizer) -> MediaPlace:
        return rows_in_runs(placeholder_id(tokenizer), prepared.tokens, [[], []])

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(WhisperTower):
    def __init__(self, family: UltravoxFamily, backend: Backend) -> None:
        weights = Weights(backend)
        super().__init__(weights, backend, family.bins)
        mm, self.stack, inner = weights.at("mm.a."), family.stack, self.width * family.stack
        self.before = Norm(mm, ("norm_pre",), inner, EPSILON, root=True)
        self.hidden = (mm.extent("mlp.1.weight", 1) or 2) // 2
        self.up = Linear(mm, "mlp.1", inner, 2 * self.hidden)
        self.between = Norm(mm, ("norm_mid",), self.hidden, EPSILON, root=True)
        self.down = Linear(mm, "mlp.2", self.hidden, family.vector)
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        x = super().finish(ctx, x, kept, inputs).reshape(ctx, self.width, -1, inputs.count)
        if lacking := -x.dim(1) % self.stack:
            x = x.pad(ctx, 0, lacking)
        x = self.before(ctx, x.reshape(ctx, self.width * self.stack, -1))
        value, gate = (part.contiguous(ctx) for part in self.up(ctx, x).chunk(ctx, 0, self.hidden))
        return self.down(ctx, self.between(ctx, silu(ctx, gate, value)))
