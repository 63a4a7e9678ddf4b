"""Voxtral: pieces of 30 seconds, silence included; four positions become one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ...encoders.block import TwoLayerPerceptron
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...models.nn import Weights
from ...text.tokenizers import Tokenizer
from ..contract import SoundFamily
from ..mel import HOP
from ..prepared_sound import PreparedAudio
from ..tower import SoundPiece, WhisperTower

STACK = whole("audio.projector.stack_factor", 1, 1 << 8)
DEFAULT_STACK = 4
BEGIN, SOUND = "[BEGIN_AUDIO]", "[AUDIO]"


@final
class VoxtralFamily(SoundFamily):
    preparation = "voxtral"
    placeholder = SOUND
    framed = marker = BEGIN + SOUND
    texts = ("llama",)
    projections = ("mm.a.mlp.2.weight",)

    @property
    def stack(self) -> int:
        """The positions that become one row."""
        stack = STACK.of(self.config, DEFAULT_STACK)
        if self.frames // 2 % stack:
            raise STACK.refuse(self.config, f"a divisor of the {self.frames // 2} positions")
        return stack

    def words(self) -> tuple[str, ...]:
        return BEGIN, SOUND

    def shape(self, samples: int) -> tuple[int, ...]:
        return -(-samples // (self.frames * HOP)), self.bins, self.frames

    def rows(self, samples: int) -> int:
        return self.shape(samples)[0] * (self.frames // 2 // self.stack)

    def pieces(self, prepared: PreparedAudio, /) -> list[SoundPiece]:
        return [SoundPiece(mel, self.frames // 2, self.frames // 2) for mel in prepared.mel]

    def place(self, prepared: PreparedAudio, /, tokenizer: Tokenizer) -> MediaPlace:
        begin, sound = (placeholder_id(tokenizer, word) for word in self.words())
        return rows_in_runs(sound, prepared.tokens, [[begin], []])

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(WhisperTower):
    def __init__(self, family: VoxtralFamily, backend: Backend) -> None:
        weights = Weights(backend)
        super().__init__(weights, backend, family.bins)
        self.inner = self.width * family.stack
        widths = self.inner, None, family.vector
        self.projector = TwoLayerPerceptron(weights.at("mm.a."), ("mlp.1", "mlp.2"), widths)
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        x = super().finish(ctx, x, kept, inputs)
        return self.projector(ctx, x.reshape(ctx, self.inner, -1))
