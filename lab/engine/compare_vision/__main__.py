"""Compares encoders of pictures with transformers, on random models in all layouts of files.

    python lab/engine/compare_vision --converter ~/llama.cpp
    python lab/engine/compare_vision --converter ~/llama.cpp --kinds gemma3 --backends onnx --keep models

Needs torch, transformers and the sources of llama.cpp. Models are small and random. The numbers are square errors over
the squares of the results of transformers, in f32: of the rows from the reference's own pixels, of our pixels, and of
the rows from our pixels. Of families that transformers lacks, whose reference here is PyTorch code of ours, the last
column is the worst error against the NumPy transcription by another hand.

--texts compares the logits of prompts with pictures, too: from the reference's pixels, and from ours; where the text
makes a large difference of a small one in the rows, also with the reference's text over the same rows. --llama compares
the rows of llama.cpp's mtmd (with llama-cpp-python), also of a picture that needs no resizing. --keep keeps the model
files. Files that `backbay convert` writes of the same folder are the layout "own"; where they differ from the others,
the table is followed by a line with the reason. --store writes the files of the tests, which run without torch: each encoder, packed, and the reference's rows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # the converter's progress

import numpy as np
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import converted_files
import kinds
import llama4
import minicpmv
import minicpmv46
import mobilevlm
import pixtral
import qwen3vl
import smolvlm
import stored
import texts
import transcriptions
from converted import convert, save, write_llava
from truths import SIZES, Truth, nmse, picture, truth

import backbay
from backbay_engine.media.encoder import MediaEncoder
from backbay_engine.media.encoder_file import encoder_family, encoder_files

KINDS = {
    **kinds.KINDS,
    **llama4.KINDS,
    **qwen3vl.KINDS,
    **smolvlm.KINDS,
    **pixtral.KINDS,
    **mobilevlm.KINDS,
    **minicpmv.KINDS,
    **minicpmv46.KINDS,
}
UNWRITTEN = {"llama4-chunked", *mobilevlm.KINDS}
"""Kinds of which `backbay convert` writes no encoder: their folder has none, or the file has keys of Ollama's alone."""
FOLDERS = (
    *("gemma3", "idefics3", "llama4", "llava", "llava16", "minicpmv", "minicpmv46", "mistral3", "mllama"),
    *("qwen2vl", "qwen25vl", "qwen3vl", "qwen3vlmoe"),
)
"""Kinds of which the tests convert the folder."""
TRANSCRIBED = {**mobilevlm.KINDS, **minicpmv.KINDS}  # transformers lacks them
LLAMA_CPP = "llama.cpp"
ROWS, PIXELS, OWN = 1e-5, 2e-4, 1e-3  # the limits


def files(name: str, folder: Path, converter: Path) -> dict[str, Path]:
    """The files of a kind, by layout."""
    sys.path.insert(0, str(converter / "gguf-py"))
    import single

    kind = KINDS[name]
    folder.mkdir(parents=True, exist_ok=True)
    if name in minicpmv.KINDS:
        convert(minicpmv.save_text(kind, folder / "text"), folder / "text.gguf", converter)
        minicpmv.save(kind, folder / "hf")
        return {"projector": minicpmv.write(kind, folder / "mmproj.gguf")}
    saved = save(kind, folder / "hf")
    if name == "mllama":
        return {"single": single.write_mllama(kind, folder / "single.gguf")}
    text = convert(saved, folder / "text.gguf", converter)
    if name in ("llava", "llava16"):
        return {
            "new": write_llava(kind, folder / "mmproj.gguf", old=False),
            "old": write_llava(kind, folder / "mmproj-old.gguf", old=True),
        }
    if name == "llama4-chunked":  # only this layout says how long chunks are
        return {"single": single.write_llama4(kind, text, folder / "single.gguf")}
    if name in mobilevlm.KINDS:
        projector = name.removesuffix("-published")
        return {"projector": write_llava(kind, folder / "mmproj.gguf", old=True, projector=projector)}
    found = {"projector": convert(saved, folder / "mmproj.gguf", converter, projector=True)}
    write = single.WRITERS.get(name)
    return found if write is None else found | {"single": write(kind, text, folder / "single.gguf")}


def own_file(name: str, layouts: dict[str, Path], folder: Path) -> tuple[Path, bool]:
    """The file with the encoder that `backbay convert` writes, and whether its differences from the others have reasons."""
    text, projector = converted_files.convert(folder / "hf", folder / "own.gguf")
    if name == "mllama":
        return text, converted_files.report(name, text, layouts["single"])
    theirs = layouts.get("projector") or layouts["new"]
    agree = converted_files.report(name, text, folder / "text.gguf")
    if name in minicpmv.KINDS:  # the authors' script has other names, and f16
        return projector, agree
    return projector, converted_files.report(f"{name}, the projector", projector, theirs) and agree


def compare(path: Path, backend: str, truths: dict[str, Truth], *, transcribed: bool) -> Iterator[str]:
    """The errors of each picture, of all together, and against the transcription; those over the limit in bold."""
    encoder = MediaEncoder(encoder_family(next(encoder_files(path))), backend)
    try:
        encoder.load()
        prepared = {name: encoder.family.prepare(each.rgb) for name, each in truths.items()}
        given = {name: prepared[name].replace(pixels=each.pixels) for name, each in truths.items()}
        for name, each in truths.items():
            (rows,), (own,) = encoder.embed([given[name]]), encoder.embed([prepared[name]])
            pixels = nmse(prepared[name].pixels, each.pixels)
            errors = zip(
                (nmse(rows, each.rows), pixels, nmse(own, each.rows)), (ROWS, PIXELS, OWN), strict=True
            )
            yield " ".join(f"{error:.0e}" if error < limit else f"**{error:.0e}**" for error, limit in errors)
        together = encoder.embed([given[name] for name in truths] * 2)
        error = nmse(np.concatenate(together), np.concatenate([each.rows for each in truths.values()] * 2))
        yield f"{error:.0e}" if error < ROWS else f"**{error:.0e}**"
        if not transcribed:
            yield "-"
            return
        error = max(
            nmse(rows, transcriptions.rows(path, each.pixels, each.rgb.shape[:2]))
            for rows, each in zip(together, truths.values(), strict=False)  # once of the two times
        )
        yield f"{error:.0e}" if error < ROWS else f"**{error:.0e}**"
    finally:
        encoder.close()


def in_llama_cpp(text: Path, projector: Path, truths: dict[str, Truth]) -> Iterator[str]:
    """The errors of mtmd's rows, or what went wrong."""
    given, made = projector.with_name("pictures.npz"), projector.with_name("rows.npz")
    np.savez(given, **{name: each.rgb for name, each in truths.items()})
    side = Path(__file__).with_name("mtmd_side.py")
    done = subprocess.run(
        [sys.executable, side, text, projector, made, given], text=True, capture_output=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        asserted = (line for line in said if "GGML_ASSERT" in line)
        yield next(asserted, said[-1] if said and done.returncode > 0 else f"it ended with {done.returncode}")
        return
    with np.load(made) as found:
        for name, each in truths.items():
            theirs, wanted = found[name], each.rows
            same = theirs.shape == wanted.shape
            yield f"{nmse(theirs, wanted):.0e}" if same else f"{len(theirs)} rows for {len(wanted)}"


def rows(name: str, args: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    """The rows of the table: for each layout, of llama.cpp and of each backend."""
    kind = KINDS[name]
    pictures = {size: picture(extent, seed) for seed, (size, extent) in enumerate(SIZES.items())}
    truths = {size: truth(kind, rgb) for size, rgb in pictures.items()}
    layouts = files(name, folder, args.converter)
    if args.folders and name in FOLDERS:
        first = next(iter(layouts.values()))
        stored.store_folder(folder / "hf", first, name, kind, args.folders)
    if name not in UNWRITTEN:
        layouts["own"], agree = own_file(name, layouts, folder)
        if not agree:
            yield ["own", "its keys and tensors", "**differ**"]
    for layout, path in layouts.items():
        text = path.with_name("own.gguf" if layout == "own" else "text.gguf")
        if args.store and layout != "own" and f"{name}-{layout}" not in stored.AS_OTHERS:
            stored.store(path, name, kind, args.store / f"{name}-{layout}")
        single = layout == "single" or text == path
        if args.llama and not single:
            fitting = {"fitting": truth(kind, picture(kind.fitting, len(SIZES)))}
            yield [layout, LLAMA_CPP, *in_llama_cpp(text, path, truths | fitting)]
        for backend in args.backends:
            yield [layout, backend, *compare(path, backend, truths, transcribed=name in TRANSCRIBED)]
            if args.texts:
                files_of = (path, None) if single else (text, path)
                yield [layout, backend, *map(": ".join, texts.compare(name, kind, *files_of, backend))]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--converter", type=Path, required=True, help="the folder of llama.cpp's sources")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--backends", nargs="*", default=sorted(backbay.backends()))
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--llama", action="store_true", help="compare the rows of llama.cpp's mtmd, too")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument(
        "--folders", type=Path, help="store the folders of some kinds here, for tests that convert them"
    )
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("| kind | file | backend |", *(f"{size} |" for size in SIZES), "all, twice | transcription |")
    print("|---|---|---|" + "---|" * (len(SIZES) + 2))
    agrees = True
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.kinds:
            for cells in rows(name, args, (args.keep or Path(scratch)) / name):
                print("|", " | ".join([name, *cells]), "|", flush=True)
                agrees &= cells[1] == LLAMA_CPP or not any("**" in cell for cell in cells)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
