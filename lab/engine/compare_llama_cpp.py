"""Opens what `backbay convert` writes in llama.cpp: the logits of a text, and the rows of a picture or a sound.

    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_llama_cpp.py
    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_llama_cpp.py --families qwen2vl voxtral

Needs torch, transformers and llama-cpp-python. Models are small and random; each folder of transformers is converted in f32.
The table has square errors over the squares of the results of transformers, those of llama.cpp and those of `cpu_ref` with
the same files: of logits, and of the rows of two pictures, one of which needs no resizing, or of a sound. The exit status
is 1 if one of ours is above its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["TQDM_DISABLE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "compare_vision"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "compare_sound"))

import converted
import converted_files
import kinds
import llama4
import minicpmv
import minicpmv46
import models
import numpy as np
import pixtral
import qwen3vl
import smolvlm
import texts
import torch
import transformers
from model_files import unpacked_folder
from numpy.typing import NDArray
from small_whisper import write_whisper
from sounds import heard
from truths import picture, truth

from backbay_engine import Audio, Image, load

HERE = Path(__file__).resolve().parent
SEEING = {
    **kinds.KINDS,
    **qwen3vl.KINDS,
    **smolvlm.KINDS,
    **pixtral.KINDS,
    **minicpmv46.KINDS,
    "llama4": llama4.KINDS["llama4"],
    "minicpmv-wide": minicpmv.KINDS["minicpmv-wide"],  # llama.cpp has heads of 128
}
UNKNOWN = "phi4", "whisper"
"""Families of architectures that llama.cpp does not know."""
POSITIONS, SECONDS = 1500, 3.3333  # llama.cpp always hears 30 seconds
DATA = HERE.parents[1] / "apps" / "engine" / "tests" / "data"
LIMIT = 1e-3  # of rows from our own pixels or spectrogram; logits are far below
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Truth:
    """A model's files, and what transformers makes of a text and of pictures or sounds."""

    text: Path
    projector: Path | None
    ids: list[int]
    logits: Array
    given: Mapping[str, NDArray[Any]]
    rows: Mapping[str, Array]


def seen(name: str, folder: Path) -> Truth:
    kind = SEEING[name]
    save = minicpmv.save if name in minicpmv.KINDS else converted.save
    text, projector = converted_files.convert(save(kind, folder / "hf"), folder / "own.gguf")
    ids = [1, *texts.letters("Hello,thisisatext.")]
    sizes = {"fitting": kind.fitting, "wide": (60, 150)}
    found = {each: truth(kind, picture(size, seed)) for seed, (each, size) in enumerate(sizes.items())}
    return Truth(
        text,
        projector if projector.exists() else None,
        ids,
        text_logits(kind.model, ids),
        {each: one.rgb for each, one in found.items()},
        {each: one.rows for each, one in found.items()},
    )


def text_logits(model: Any, ids: list[int]) -> Array:
    """Those of the text alone, where the whole model wants a picture (Llama 4 in transformers 5.24)."""
    text = model.language_model if isinstance(model, transformers.Llama4ForConditionalGeneration) else model
    found: Array = text(input_ids=torch.tensor([ids])).logits[0].numpy()
    return found


def heard_by(name: str, folder: Path) -> Truth:
    kind = models.KINDS[name](POSITIONS)
    saved = models.save(kind, folder / "hf")
    for each in {saved, folder / "hf"}:
        converted.write_tokenizer(each, models.VOCABULARY, len(models.WORDS) + len(models.MARKS))
    text, projector = converted_files.convert(folder / "hf", folder / "own.gguf")
    if saved != folder / "hf":
        text, _ = converted_files.convert(saved, folder / "text.gguf")
    ids = [1, *(models.ID[letter] for letter in "Hello,thisisatext.")]
    samples = heard(SECONDS)
    rows = kind.rows(kind.mel(samples), len(samples)).numpy()
    return Truth(text, projector, ids, models.text_logits(kind, ids), {"sound": samples}, {"sound": rows})


def refused(name: str, folder: Path) -> str:
    """What llama.cpp says of a file of an architecture that it does not know."""
    source = write_whisper(folder / name) if name == "whisper" else unpacked_folder(name, folder, DATA / name)
    path, _ = converted_files.convert(source, folder / "own.gguf")
    try:
        return in_llama_cpp("compare_kinds/llama_side.py", path, "logits", "[]") or "opens"
    except SystemError as failed:
        return str(failed)


def in_llama_cpp(script: str, *arguments: object, given: str = "") -> str:
    """What a program prints that runs llama.cpp; SystemError says what went wrong."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, input=given, text=True, capture_output=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        aborted = next((line for line in said if re.search(r"\.c(pp)?:\d+: \S", line)), None)
        raise SystemError(
            (aborted or said[-1]).rpartition("/")[2] if said else f"it ended with {done.returncode}"
        )
    return done.stdout


def theirs(known: Truth, folder: Path) -> Iterator[str]:
    """The errors of llama.cpp, or its own."""
    try:
        printed = in_llama_cpp(
            "compare_kinds/llama_side.py", known.text, "logits", "[]", given=json.dumps(known.ids)
        )
        yield error(np.array(json.loads(printed), np.float32), known.logits)
    except SystemError as failed:
        yield str(failed)
    if known.projector is None:
        return
    pictures, made = folder / "given.npz", folder / "rows.npz"
    for name, each in known.given.items():
        np.savez(pictures, **{name: each})
        try:
            in_llama_cpp("compare_vision/mtmd_side.py", known.text, known.projector, made, pictures)
        except SystemError as failed:
            yield f"{name}: {failed}"
            continue
        with np.load(made) as found:
            yield f"{name}: {error(found[name], known.rows[name])}"


def ours(known: Truth) -> Iterator[float]:
    with load(known.text, "cpu_ref", projector=known.projector, context=2048) as llm:
        yield nmse(llm.logits(known.ids), known.logits)
        for name, each in known.given.items():
            rows = (
                llm.embed_audio(Audio(each, rate=16_000)) if each.ndim == 1 else llm.embed_image(Image(each))
            )
            yield nmse(rows, known.rows[name])


def nmse(found: Array, right: Array) -> float:
    if found.shape != right.shape:
        return float("inf")
    return float(((found.astype(np.float64) - right) ** 2).sum() / (right.astype(np.float64) ** 2).sum())


def error(found: Array, right: Array) -> str:
    return (
        f"{nmse(found, right):.0e}" if found.shape == right.shape else f"{len(found)} rows for {len(right)}"
    )


def main() -> int:
    families = [*SEEING, *models.KINDS, *UNKNOWN]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=families, default=families, metavar="FAMILY")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("| family | whose | logits | rows |\n|---|---|---|---|")
    agrees = True
    with torch.inference_mode(), tempfile.TemporaryDirectory() as scratch:
        for name in args.families:
            folder = Path(scratch) / name
            folder.mkdir()
            if name in UNKNOWN:
                print(f"| {name} | llama.cpp | {refused(name, folder)} | |", flush=True)
                continue
            known = (seen if name in SEEING else heard_by)(name, folder)
            logits, *rows = theirs(known, folder)
            print(f"| {name} | llama.cpp | {logits} | {', '.join(rows)} |")
            logits_error, *errors = ours(known)
            agrees &= max(logits_error, *errors) < LIMIT
            shown = ", ".join(f"{what}: {each:.0e}" for what, each in zip(known.given, errors, strict=True))
            print(f"| {name} | ours | {logits_error:.0e} | {shown} |", flush=True)
    return int(not agrees)


if __name__ == "__main__":
    sys.exit(main())
