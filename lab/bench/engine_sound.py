"""The encoding of sound, beside whisper.cpp: 30 seconds, the same file, the same threads, random weights.

    PYTHONPATH=apps/engine/tests/inputs python lab/bench/engine_sound.py --sides whisper.cpp ggml onnx

Needs pywhispercpp for whisper.cpp. The encoder has the sizes of Whisper small (12 blocks of 768, 1500 positions), in f16;
`--blocks` takes fewer. `encode` is the time from a spectrogram to the keys and values that the decoder's one block
attends to, `processor` the time that all threads work on it, which a busy machine changes less. The first logit after each
of some tokens is compared with that of the last side.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from engine_images import PROCESSOR, Times
from numpy.typing import NDArray
from sides import Side, against, serve, side_arguments, table, take_all_turns, write_json
from small_whisper import write_ggml

WHISPER_CPP, NOISE = "whisper.cpp", np.float32(0.3)
FRAMES, BINS, WORDS = 3000, 80, 51865
TOKENS = range(10, 26)


def main() -> None:
    parser = side_arguments(__doc__, rounds=3)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--sides", nargs="+", help=f"{WHISPER_CPP}, and names of backends")
    parser.add_argument("--file", type=Path, help="a model file to keep, or to take")
    args = parser.parse_args()
    args.sides = args.sides or [*([WHISPER_CPP] if importlib.util.find_spec("_pywhispercpp") else []), "ggml"]
    if args.side:
        made: Any = WhisperCpp(args) if args.side == WHISPER_CPP else Engine(args)
        made.encode()  # warms up
        serve({"logits": made.logits()}, lambda _: made.encode())
        return
    with tempfile.TemporaryDirectory() as folder:
        args.file = args.file or Path(folder) / "small.bin"
        if not args.file.exists():
            write_file(args.file, args.blocks)
        write_json(args.json, compare(args))


def write_file(path: Path, blocks: int) -> None:
    sizes = {"d_model": 768, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
    sizes |= {"encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_layers": blocks}
    sizes |= {"decoder_layers": 1, "max_source_positions": FRAMES // 2, "max_target_positions": 448}
    write_ggml(path, **sizes, vocab_size=WORDS, num_mel_bins=BINS)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    own = [f"--{name}={getattr(args, name)}" for name in ("threads", "file")]
    sides = [Side(name, [__file__, *own, "--side", name]) for name in args.sides]
    logits = [np.array(side.greeting["logits"]) for side in sides]
    results: dict[str, Any] = {"differences": {}}
    for side, found in zip(sides[:-1], logits, strict=False):
        error = float(((found - logits[-1]) ** 2).sum() / (logits[-1] ** 2).sum())
        results["differences"][side.name] = error
        print(f"logits of {side.name} differ from those of {sides[-1].name} by {error:.1e}")
    parts = ["encode", PROCESSOR]
    for part, answers in take_all_turns(sides, "encode", parts, args.rounds).items():
        results[part] = against(answers, sides[0].name)
        print(table(f"30 seconds: {part}", "s", results[part]), flush=True)
    for side in sides:
        side.close()
    return results


def spectrogram(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).standard_normal((BINS, FRAMES), np.float32) * NOISE


class Engine:
    """backbay_engine on a backend."""

    def __init__(self, args: argparse.Namespace) -> None:
        import backbay_engine

        self.number = 0
        self.llm = backbay_engine.load(args.file, args.side, num_threads=args.threads, context=64)
        self.silence = self.llm.prepare(backbay_engine.Audio(np.zeros(FRAMES * 160, np.int16), rate=16_000))

    def encode(self) -> dict[str, float]:
        self.number += 1
        heard = self.silence.replace(mel=spectrogram(self.number))
        begun = Times()
        self.llm.logits([TOKENS[0]], audio=heard)
        return begun.until_now()

    def logits(self) -> list[float]:
        heard = self.silence.replace(mel=spectrogram(0))
        return [float(self.llm.logits([token], audio=heard)[0, 0]) for token in TOKENS]


class WhisperCpp:
    """whisper.cpp's library, through pywhispercpp's bindings."""

    def __init__(self, args: argparse.Namespace) -> None:
        import _pywhispercpp as library

        self.library, self.threads, self.number = library, args.threads, 0
        params = library.whisper_context_default_params()
        params.use_gpu = False
        self.context = library.whisper_init_from_file_with_params(str(args.file), params)

    def _hear(self, number: int) -> None:
        if self.library.whisper_set_mel(self.context, spectrogram(number).ravel(), FRAMES, BINS):
            raise SystemExit("whisper.cpp does not take the spectrogram")

    def _encode(self) -> None:
        if self.library.whisper_encode(self.context, 0, self.threads):
            raise SystemExit("whisper.cpp cannot encode the sound")

    def _decode(self, token: int) -> float:
        if self.library.whisper_decode(self.context, token, 1, 0, self.threads):
            raise SystemExit("whisper.cpp cannot decode")
        return float(self.library.whisper_get_logits(self.context))

    def encode(self) -> dict[str, float]:
        self.number += 1
        self._hear(self.number)
        begun = Times()
        self._encode()
        self._decode(TOKENS[0])
        return begun.until_now()

    def logits(self) -> list[float]:
        self._hear(0)
        self._encode()
        return [self._decode(token) for token in TOKENS]


if __name__ == "__main__":
    main()
