"""Qwen2-Audio: one piece of 30 seconds at most, of which what is sound counts; two positions become one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from backbay import Backend, Context, Tensor

from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...errors import AudioError
from ...models.nn import Linear, Weights
from ...text.tokenizers import Tokenizer
from ..contract import SoundFamily, seconds
from ..mel import HOP
from ..prepared_sound import PreparedAudio
from ..tower import SoundPiece, WhisperTower, positions_of

BEGIN, SOUND, END = "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"
POOL = 2


@final
class Qwen2AudioFamily(SoundFamily):
    """The marks around a sound are the template's, and of a prompt that is written out."""

    preparation = "qwen2-audio"
    placeholder = SOUND
    marker = BEGIN + SOUND + END
    texts = ("qwen2",)
    projections = ("mm.a.fc.weight",)

    def words(self) -> tuple[str, ...]:
        return (SOUND,)

    def shape(self, samples: int) -> tuple[int, ...]:
        if samples > self.frames * HOP:
            most = seconds(self.frames * HOP)
            raise AudioError(f"a sound of {seconds(samples)}; {self.name} takes {most}, so give it in parts")
        if not self.rows(samples):
            raise AudioError(f"a sound of {seconds(samples)} is too short: {self.name} makes no row of it")
        return self.bins, self.frames

    def rows(self, samples: int) -> int:
        return self._heard(samples) // POOL

    def _heard(self, samples: int) -> int:
        """The positions of the sound, without padding."""
        return positions_of(-(-samples // HOP))

    def pieces(self, prepared: PreparedAudio, /) -> list[SoundPiece]:
        heard = self._heard(prepared.samples)
        return [SoundPiece(prepared.mel, heard, heard)]

    def place(self, prepared: PreparedAudio, /, tokenizer: Tokenizer) -> MediaPlace:
        return rows_in_runs(placeholder_id(tokenizer, SOUND), prepared.tokens, [[], []])

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(WhisperTower):
    def __init__(self, family: Qwen2AudioFamily, backend: Backend) -> None:
        weights = Weights(backend)
        super().__init__(weights, backend, family.bins)
        self.projection = Linear(weights, "mm.a.fc", self.width, family.vector)
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        held = inputs.first.held
        x = x.reshape(ctx, self.width, held, inputs.count)
        x = x.slice(ctx, 1, 0, held // POOL * POOL, 1).contiguous(ctx) if held % POOL else x
        pairs = x.reshape(ctx, self.width, POOL, -1)
        first, second = (pairs.slice(ctx, 1, n, n + 1, 1).contiguous(ctx) for n in range(POOL))
        means = first.add(ctx, second).scale(ctx, 1 / POOL).reshape(ctx, self.width, -1)
        return self.projection(ctx, super().finish(ctx, means, kept, inputs))
