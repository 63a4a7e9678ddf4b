"""Builds the sdists and wheels of all packages, checks them, and runs backbay from the wheels alone.

    python lab/tools/dist.py                  # into dist/, needs requirements-dist.txt
    python lab/tools/dist.py --twice          # also builds again, and compares byte by byte
    python lab/tools/dist.py --share          # the fresh environment shares third-party packages with this one
    python lab/tools/dist.py core engine --only-build   # some packages
    python lab/tools/dist.py --gpu vulkan     # ggml's code for Vulkan alone, which lies beside backbay-ggml-lib

The same commit gives the same files: times are those of the commit, and sdists are packed anew in a fixed order. Each wheel
is built from its sdist, as pip would build it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from versions import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("cpu_ref", "ggml", "onnx")
LIBGGML = "plugins/ggml/lib"
GPUS = {"vulkan": "Vulkan", "cuda": "CUDA"}
CUDA_PACKAGES = ("nvidia-cublas", "nvidia-cuda-runtime")  # hold the libraries that the code for CUDA needs
FOREIGN = ("libggml-base.so", "libvulkan.so.*", "libcu*.so.*")  # in other packages, or of the driver
WARNINGS = {  # of check-wheel-contents, where they are meant
    "backbay": "W009",  # the command is a module beside the package, so that Ctrl+C ends it while the package is imported
    **{f"backbay_ggml_{name}": "W004" for name in ("lib", *GPUS)},  # libraries are no modules
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
    parser.add_argument(
        "--gpu", choices=GPUS, default="", help="build the package of ggml's code for these GPUs"
    )
    args = parser.parse_args()
    packages = [LIBGGML] if args.gpu else args.packages or PACKAGES
    files = built(packages, args.into, args.gpu)
    if args.twice:
        with tempfile.TemporaryDirectory() as folder:
            again = built(packages, Path(folder), args.gpu)
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
        if not args.gpu:
            try_out(tried, share=args.share)
    for file in files:
        print(f"{digest(file)}  {file.name}")


def built(packages: Sequence[str], into: Path, gpu: str = "") -> list[Path]:
    """The sdists and wheels of packages, from the files that git tracks; or libggml's with the code for a GPU alone."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    epoch = int(git("log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            source, unpacked = Path(folder) / "source", Path(folder) / "unpacked"
            copy_tracked(package, source)
            if gpu:
                project = source / "pyproject.toml"
                project.write_text(with_gpu(project.read_text(), gpu))
            run("build", "--no-isolation", "--sdist", "--outdir", into, source)
            sdist = max(into.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime_ns)
            repacked(sdist, epoch)
            with tarfile.open(sdist) as archive:
                archive.extractall(unpacked, filter="data")
            options = ["-Ccmake.define.BACKBAY_CPUS=all"] if package == LIBGGML else []
            wheels = Path(folder) / "wheels" if gpu else into
            run("build", "--no-isolation", "--wheel", *options, "--outdir", wheels, next(unpacked.iterdir()))
            if gpu:  # an index takes a library only with the C library that it needs in its name
                excluded = [f"--exclude={name}" for name in FOREIGN]
                run("auditwheel", "repair", *excluded, "--wheel-dir", into, *wheels.iterdir())
    return sorted(into.iterdir())


def with_gpu(text: str, gpu: str) -> str:
    """The pyproject.toml of libggml, as that of a package that adds the code for a kind of GPU to it."""
    needs = [f"backbay-ggml-lib=={tomllib.loads(text)['project']['version']}"]
    if gpu == "cuda":
        toolkit = (ROOT / "lab" / "devices" / "cuda_toolkit.txt").read_text()
        versions = dict(re.findall(r"^([a-z-]+)==(\d+\.\d+)", toolkit, re.MULTILINE))
        needs += [f"{name}~={versions[name]}" for name in CUDA_PACKAGES]
    values = {
        "name": f"backbay-ggml-{gpu}",
        "description": f"ggml's code for {GPUS[gpu]}, which backbay-ggml finds beside the libggml of backbay-ggml-lib",
        "dependencies": needs,
    }
    for name, value in values.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {json.dumps(value)}", text, flags=re.MULTILINE)
    return f'{text}\n[tool.scikit-build.cmake.define]\nBACKBAY_GPU = "{gpu}"\n'


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
