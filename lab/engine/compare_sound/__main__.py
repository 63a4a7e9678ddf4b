"""Compares models that hear with transformers: spectrograms, the rows of encoders, and logits.

    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_sound --converter ~/llama.cpp
    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_sound --converter ~/llama.cpp --positions 1500 --backends ggml

Needs torch, transformers and the sources of llama.cpp, whose converter writes the files. Models are small and random;
without --positions, a piece of a sound has a second, not 30. Of ultravox, which transformers lacks, the reference is
PyTorch code of ours. The numbers are square errors over the squares of the reference's: of our spectrogram, of the rows
of the reference's spectrogram and of ours, and of the logits of both; once with the projector that `backbay convert`
writes of the same folder, whose differences from llama.cpp's have a line with the reason each. The exit status is 1 if a
number is above its limit, or a difference has no reason.
--store writes the files of apps/engine/tests/sound.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import converted_files
import numpy as np
import torch
from models import KINDS, Kind, logits, write
from numpy.typing import NDArray
from packed_folders import store_folder
from sounds import LOUDNESS, heard
from transformers import WhisperFeatureExtractor

from backbay_engine import Audio, load
from backbay_engine.sound.mel import log_mel

DATA = Path(__file__).parents[3] / "apps" / "engine" / "tests" / "data" / "sound"
SECONDS = (0.04, 0.1, 1.0, 3.3333, 29.99, 30.0)
STORED = (0.1, 3.3333)
FRAMES = 7  # of a spectrogram, one is stored
PIECES = {"short": 0.1, "half": 0.515, "almost": 0.99, "whole": 1.0, "longer": 1.4, "long": 2.5}
"""Lengths of sounds, in pieces."""
BEFORE, AFTER = [1, 20, 30], [40, 41]  # ids around a sound
MEL, ROWS, OWN, LOGITS, OWN_LOGITS = 1e-5, 1e-5, 1e-3, 2e-5, 2e-3  # the limits


def nmse(ours: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    return float(((ours - right) ** 2).sum() / (right**2).sum())


def spectrograms() -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
    """The name of each sound, the reference's spectrogram, and ours: of all loudnesses, padded and not."""
    for bins in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=bins)
        for kind in LOUDNESS:
            for seconds in SECONDS:
                sound = heard(seconds, kind)
                whole = np.pad(sound, (0, 30 * 16_000 - len(sound)))
                for padding, samples in (("longest", sound), ("max_length", whole)):
                    right: Any = extractor(sound, sampling_rate=16_000, padding=padding, return_tensors="np")
                    name = f"{kind} {seconds} {bins} {padding}"
                    yield name, right.input_features[0], log_mel(samples, bins)


def compare_spectrograms(*, store: bool) -> bool:
    worst, stored = 0.0, {}
    for name, right, ours in spectrograms():
        worst = max(worst, nmse(ours, right))
        if float(name.split()[1]) in STORED and name.endswith("longest"):
            stored[name] = right[:, ::FRAMES]
    print(f"spectrograms: {worst:.1e} at most")
    if store:
        DATA.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(DATA / "mel.npz", **stored)
    return worst <= MEL


def truths(kind: Kind, piece: float) -> dict[str, tuple[Any, Any, Any, Any]]:
    """By name the sounds that the model takes, each with the reference's spectrogram, rows and logits."""
    found = {}
    for seed, (name, pieces) in enumerate(PIECES.items()):
        if pieces > 1 and kind.one_piece:
            continue
        sound = heard(pieces * piece, seed=seed)
        mel = kind.mel(sound)
        rows = kind.rows(mel, len(sound))
        found[name] = sound, mel, rows.numpy(), logits(kind, BEFORE, rows, AFTER)
    return found


def compare(name: str, files: tuple[Path, Path], known: dict[str, Any], backend: str) -> bool:
    """Print the worst errors of a model on a backend."""
    text, projector = files
    worst = np.zeros(5)
    with load(text, backend, projector=projector, context=2048, kv_dtype="f32") as llm:
        for sound, mel, rows, right in known.values():
            own = llm.prepare(Audio(sound, rate=16_000))
            given = own.replace(mel=mel)
            errors = [nmse(own.mel, mel), *(nmse(llm.embed_audio(each), rows) for each in (given, own))]
            errors += [nmse(llm.logits([BEFORE, each, AFTER]), right) for each in (given, own)]
            worst = np.maximum(worst, errors)
    shown = zip(("mel", "rows", "own rows", "logits", "own logits"), worst, strict=True)
    print(f"{name} on {backend}:", ", ".join(f"{what} {error:.1e}" for what, error in shown))
    return bool((worst <= (MEL, ROWS, OWN, LOGITS, OWN_LOGITS)).all())


def own_projector(name: str, folder: Path, files: tuple[Path, Path]) -> tuple[Path, bool]:
    """The projector that `backbay convert` writes, and whether its differences, and those of the text, have reasons."""
    text, projector = converted_files.convert(folder, folder / "own.gguf")
    agree = converted_files.report(f"{name}, the projector", projector, files[1])
    return projector, agree and (not text.exists() or converted_files.report(name, text, files[0]))


def store_files(name: str, files: tuple[Path, Path], known: dict[str, Any]) -> None:
    for part, path in zip(("text", "mmproj"), files, strict=True):
        (DATA / f"{name}-{part}.gguf.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    found = {}
    for seed, (sound, (samples, _mel, rows, right)) in enumerate(known.items()):
        found[f"{sound} {len(samples)} {seed} rows"] = rows.astype(np.float16)
        found[f"{sound} {len(samples)} {seed} logits"] = right[-1]
    np.savez_compressed(DATA / f"{name}.npz", **found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--converter", type=Path, required=True)
    parser.add_argument("--positions", type=int, default=52, help="of an encoder; 1500 in published models")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--backends", nargs="+", default=["cpu_ref", "ggml", "onnx"])
    parser.add_argument("--store", action="store_true")
    args = parser.parse_args()
    agrees = [compare_spectrograms(store=args.store)]
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        for name in args.kinds:
            kind = KINDS[name](args.positions)
            files = write(kind, Path(folder) / name, args.converter)
            known = truths(kind, args.positions / 50)
            own, agree = own_projector(name, Path(folder) / name, files)
            agrees += [agree, *(compare(name, files, known, backend) for backend in args.backends)]
            agrees += [
                compare(f"{name}, our projector", (files[0], own), known, backend)
                for backend in args.backends
            ]
            if args.store:
                store_files(name, files, known)
                store_folder(Path(folder) / name, DATA / f"{name}.hf.xz")
    return int(not all(agrees))


if __name__ == "__main__":
    sys.exit(main())
