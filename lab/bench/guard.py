"""Guards against slower code: this checkout against an earlier revision, both as wheels, in one run. Fails on 10 %.

    python lab/bench/guard.py                       # against the last tag
    python lab/bench/guard.py --against 3037036     # or any revision
    python lab/bench/guard.py --wheels dist         # the wheels of `make dist`, with their libggml, against the checkout as installed

Both sides of revisions are built by pip from the folders of the packages, without what they depend on, and measured alternately
(`sides.py`), with the small shape. They share all other packages, also the libraries of backends. Rates are tokens per second of
processor time, on one thread, which waits for nobody: so the guard also works beside other processes, and sees no change that
only concerns waiting. The fastest rounds are compared. If a rate then seems lower, as many rounds again must say so too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_file import DTYPES, SHAPES, write_model
from sides import Side, serve, take_all_turns, write_json

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "core": "core",
    "engine": "apps/engine",
    "cpu_ref": "plugins/cpu_ref",
    "native": "plugins/native",
    "ggml": "plugins/ggml",
    "onnx": "plugins/onnx",
}
NOW, BEFORE = "now", "before"
SLACK = 0.10
SEQUENCES, DEPTH, PROMPT, TOKENS = 4, 32, 256, 24
MEASURES = ("prompt", "1 sequence", f"{SEQUENCES} sequences")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="REVISION", help="by default the last tag")
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="guard these wheels against the checkout"
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the code that is guarded")
    parser.add_argument("--backends", nargs="+", default=["ggml", "onnx"])
    parser.add_argument("--shape", default="small", choices=SHAPES)
    parser.add_argument("--dtype", default="q4_0", choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--slack", type=float, default=SLACK)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", nargs=2, metavar=("BACKEND", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        be_side(*args.side)
    else:
        sys.exit(1 if compare(args) else 0)


def compare(args: argparse.Namespace) -> list[str]:
    """What became slower, in words."""
    against = "the checkout" if args.wheels else args.against or last_tag()
    if against is None:
        print("there is no tag yet: nothing is compared; name a revision with --against")
        return []
    results: dict[str, Any] = {"against": against}
    slower: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        model = here / "model.gguf"
        write_model(model, SHAPES[args.shape], args.dtype)
        packages = wheels_and_checkout(args, here) if args.wheels else revisions(args, against, here)
        for backend in args.backends:
            command = [__file__, "--side", backend, str(model)]
            sides = [Side(name, command, {"PYTHONPATH": str(packages[name])}) for name in (NOW, BEFORE)]
            for side in sides:
                if not side.greeting["core"].startswith(str(packages[side.name])):
                    raise SystemExit(f"{side.name} imports {side.greeting['core']}, not its own packages")
            results[backend] = ratios(sides, args.rounds)
            if lost(results[backend], args.slack):
                results[backend] = ratios(sides, args.rounds)
            for measure, ratio in results[backend].items():
                print(f"{backend:<8} {measure:<14} {ratio:.3f} times as fast as {against}", flush=True)
            slower += [f"{backend}: {measure}" for measure in lost(results[backend], args.slack)]
            for side in sides:
                side.close()
    write_json(args.json, results)
    if slower:
        print(f"slower by more than {args.slack:.0%} than {against}: {', '.join(slower)}")
    return slower


def revisions(args: argparse.Namespace, revision: str, here: Path) -> dict[str, Path]:
    """The folders of the packages of both revisions, from wheels."""
    sources = {NOW: args.checkout, BEFORE: checked_out(revision, here / "revision")}
    return {name: built(source, here / name, args.backends) for name, source in sources.items()}


def wheels_and_checkout(args: argparse.Namespace, here: Path) -> dict[str, Path]:
    """The folders of the packages of wheels that were built, and of the checkout, which is installed here."""
    return {NOW: installed(args.wheels, here / NOW), BEFORE: args.checkout}


def ratios(sides: Sequence[Side], rounds: int) -> dict[str, float]:
    """The rate now, of the rate before, for each measure, in the fastest rounds."""
    answers = take_all_turns(sides, "all", MEASURES, rounds)
    return {measure: max(found[NOW]) / max(found[BEFORE]) for measure, found in answers.items()}


def lost(found: Mapping[str, float], slack: float) -> list[str]:
    """The measures that are slower than the slack allows."""
    return [measure for measure, ratio in found.items() if ratio < 1 - slack]


# -- wheels ------------------------------------------------------------------------------------------------


def last_tag() -> str | None:
    """The latest tag before this commit, if there is any."""
    tagged = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"],
        capture_output=True,
        text=True,
        check=False,
    )
    return tagged.stdout.strip() or None


def checked_out(revision: str, target: Path) -> Path:
    """The files of a revision."""
    target.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision], stdout=subprocess.PIPE, check=False
    )
    if archive.returncode:
        raise SystemExit(f"git has no revision {revision!r}")
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target


def built(source: Path, target: Path, backends: Sequence[str]) -> Path:
    """The wheels of a checkout, built and unpacked into a folder."""
    wheels = target.with_suffix(".wheels")
    folders = (FOLDERS[name] for name in ("core", "engine", "native", *backends))
    # Older revisions have no native code of their own.
    copies = [copied(source, folder, wheels / "sources") for folder in folders if (source / folder).is_dir()]
    pip("wheel", "--no-build-isolation", "-w", wheels, *copies)
    return installed(wheels, target)


def installed(wheels: Path, target: Path) -> Path:
    """The wheels of a folder, unpacked into another."""
    pip("install", "--target", target, *wheels.glob("*.whl"))
    return target


def pip(command: str, *words: object) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([sys.executable, "-m", "pip", command, *quiet, *map(str, words)], check=True)


def copied(source: Path, folder: str, target: Path) -> Path:
    """The sources of a package, without what earlier builds left there."""
    left = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "tests", "lib")
    made = target / folder
    shutil.copytree(source / folder, made, ignore=left)
    return made


# -- the sides ---------------------------------------------------------------------------------------------


def be_side(backend: str, model: str) -> None:
    """Answer with the rates of a prompt, and of one and of several sequences."""
    import backbay
    import backbay_engine

    context = max(PROMPT, DEPTH + TOKENS) + 8
    llm = backbay_engine.load(model, backend, context=context, parallel=SEQUENCES, num_threads=1)

    def answer(request: str) -> dict[str, float]:
        begun = time.process_time()
        llm.generate(ids(PROMPT, 0), max_tokens=1, temperature=0, reuse=False)
        read = time.process_time() - begun
        return dict(zip(MEASURES, (PROMPT / read, rate(llm, 1), rate(llm, SEQUENCES)), strict=True))

    answer("all")  # compiles
    serve({"core": str(backbay.__file__)}, answer)


def rate(llm: Any, count: int) -> float:
    """Tokens per second of processor time of all sequences; their prompts are kept."""
    begun = time.process_time()
    for handle in [
        llm.submit(ids(DEPTH, number), max_tokens=TOKENS, temperature=0) for number in range(count)
    ]:
        handle.result()
    return count * TOKENS / (time.process_time() - begun)


def ids(length: int, number: int) -> list[int]:
    """Token ids that share no prefix with another prompt."""
    return [300 + number, *((n * 7 + number) % 1000 + 300 for n in range(1, length))]


if __name__ == "__main__":
    main()
