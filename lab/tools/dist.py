"""Builds the sdists and wheels of all packages, checks them, and runs backbay from the wheels alone.

    python lab/tools/dist.py                  # into dist/, needs requirements-dist.txt
    python lab/tools/dist.py --twice          # also builds again, and compares byte by byte
    python lab/tools/dist.py --share          # the fresh environment shares third-party packages with this one
    python lab/tools/dist.py core engine --only-build   # some packages

The same commit gives the same files: times are those of the commit, and sdists are packed anew in a fixed order. Each wheel
is built from its sdist, as pip would build it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from versions import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("cpu_ref", "ggml", "onnx")
LIBGGML = "plugins/ggml/lib"
WARNINGS = {  # of check-wheel-contents, where they are meant
    "backbay": "W009",  # the command is a module beside the package, so that Ctrl+C ends it while the package is imported
    "backbay_ggml_lib": "W004",  # libraries are no modules
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="folders of packages; default: all")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument("--twice", action="store_true", help="build twice, and compare")
    parser.add_argument(
        "--share", action="store_true", help="install no third-party packages, share those here"
    )
    parser.add_argument("--only-build", action="store_true", help="check nothing, run nothing")
    args = parser.parse_args()
    packages = args.packages or PACKAGES
    files = built(packages, args.into)
    if args.twice:
        with tempfile.TemporaryDirectory() as folder:
            again = built(packages, Path(folder))
            differ = [a.name for a, b in zip(files, again, strict=True) if digest(a) != digest(b)]
        if differ:
            sys.exit(f"built twice, and other bytes: {', '.join(differ)}")
    if not args.only_build:
        run("twine", "check", "--strict", *files)
        wheels = [file for file in files if file.suffix == ".whl"]
        for wheel in wheels:
            meant = WARNINGS.get(wheel.name.partition("-")[0])
            run("check_wheel_contents", *([f"--ignore={meant}"] if meant else []), wheel)
        large = "backbay_ray-", "backbay_jax-", "backbay_torch-"  # Ray and JAX take 0.5 GB, torch more
        tried = [wheel for wheel in wheels if not wheel.name.startswith(large)]
        try_out(tried, share=args.share)
    for file in files:
        print(f"{digest(file)}  {file.name}")


def built(packages: Sequence[str], into: Path) -> list[Path]:
    """The sdists and wheels of packages, from the files that git tracks."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    epoch = int(git("log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            source, unpacked = Path(folder) / "source", Path(folder) / "unpacked"
            copy_tracked(package, source)
            run("build", "--no-isolation", "--sdist", "--outdir", into, source)
            sdist = max(into.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime_ns)
            repacked(sdist, epoch)
            with tarfile.open(sdist) as archive:
                archive.extractall(unpacked, filter="data")
            options = ["-Ccmake.define.BACKBAY_CPUS=all"] if package == LIBGGML else []
            run("build", "--no-isolation", "--wheel", *options, "--outdir", into, next(unpacked.iterdir()))
    return sorted(into.iterdir())


def copy_tracked(package: str, target: Path) -> None:
    inner = [other for other in PACKAGES if other.startswith(f"{package}/")]
    for name in git("ls-files", "-z", package).split("\0"):
        if name and not any(name.startswith(f"{other}/") for other in inner):
            path = target / Path(name).relative_to(package)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, path)


def repacked(sdist: Path, epoch: int) -> None:
    """Pack an sdist anew: sorted, of nobody, and with the time of the commit."""
    plain = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() else 0o644, {}
            new.addfile(member, old.extractfile(member))
    with sdist.open("wb") as stream, gzip.GzipFile("", "wb", fileobj=stream, mtime=epoch) as packed:
        packed.write(plain.getvalue())


def try_out(wheels: list[Path], *, share: bool) -> None:
    """Install the wheels alone in a fresh environment; run the demo, and the suite's smallest run on each backend."""
    with tempfile.TemporaryDirectory() as folder:
        run("venv", Path(folder) / "venv", "--without-pip")
        python = Path(folder) / "venv" / "bin" / "python"
        others = [*wheels, "onnxruntime>=1.31,<2"]
        if share:
            [site] = python.parents[1].glob("lib/python*/site-packages")
            shared = [
                path for path in sys.path if Path(path).is_dir() and not path.startswith(f"{ROOT}{os.sep}")
            ]
            (site / "shared.pth").write_text("\n".join(shared))
            others = ["--no-deps", "--ignore-installed", *wheels]
        run("pip", "--python", python, "install", "-q", *others)
        for backend in BACKENDS:
            subprocess.run(
                [python, "-m", "backbay", "conform", backend, "--size", "tiny"], cwd=folder, check=True
            )
        subprocess.run([python, ROOT / "examples" / "demo.py"], cwd=folder, check=True)


def run(module: str, *words: object) -> None:
    subprocess.run([sys.executable, "-m", module, *map(str, words)], check=True)


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
