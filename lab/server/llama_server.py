"""Stands in for llama-server where llama.cpp's own tests start it: its options become those of `backbay serve`.

The process is forked from that of the tests, which has imported everything: each test starts a server of its own. The
hub's models are given by ours. An option that has no counterpart ends the process at once, with status 2.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from argparse import SUPPRESS, ArgumentParser, Namespace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from adapter_files import random_pairs, write_adapter
from gguf.scripts import gguf_new_metadata
from pictures import drawn
from PIL import Image
from scripted_model import says, write_embedder, write_reranker, write_scripted_model

import backbay_cpu_ref.plugin  # noqa: F401  (imported before the first fork)
import backbay_server.application
import backbay_server.transport.server  # noqa: F401
from backbay.cli import main as backbay

ROOT = Path(__file__).resolve().parents[2]
CONTEXTS = {"backbay-tiny-vision-f16.gguf": 256, "vectors.gguf": 512, "scores.gguf": 512}
"""The contexts of models that have less than llama.cpp's tests ask for."""
BY_REPOSITORY = {
    "ggml-org/test-model-stories260K": "words.gguf",
    "ggml-org/test-model-stories260K-infill": "words.gguf",
    "ggml-org/stories15M_MOE": "words.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "backbay-tiny-vision-f16.gguf",
    "bert-bge-small/ggml-model-f16.gguf": "vectors.gguf",
    "jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "scores.gguf",
    "moe_shakespeare15M.gguf": "adapter.gguf",
    "stories15M-q4_0.gguf": "words.gguf",
}
ASKED = (
    "test",
    "gpt-3.5-turbo",
    "gpt-3.5-turbo-instruct",
    "gpt-4.1",
    "davinci-002",
    "codellama70b",
    "text-embedding-3-small",
)
"""Names of models in requests: llama-server takes any, this server those that it was given."""
PICTURE = "picture.png"
"""Stands for the pictures of the hub."""
WORDS = [
    "once",
    "upon",
    "a",
    "time",
    "there",
    "was",
    "an",
    "engine",
    "that",
    "could",
    "pull",
    "every",
    "train",
]
FLAGS = (
    "offline",
    "cont-batching",
    "jinja",
    "no-jinja",
    "slots",
    "no-slots",
    "embedding",
    "reranking",
    "verbose",
)
"""What the server does without being told, or shows elsewhere."""
HINTS = (
    "temp",
    "seed",
    "batch-size",
    "ubatch-size",
    "n-predict",
    "pooling",
    "fa",
    "reasoning-format",
    "spec-type",
    "spec-draft-n-min",
    "spec-draft-n-max",
)
"""Defaults of requests, and choices that the model or the backend makes here."""


class LlamaServer:
    """The process, as subprocess.Popen shows it to llama.cpp's tests."""

    models: Path  # the folder that write_models() filled

    def __init__(self, words: list[str], **_: Any) -> None:
        self._process = get_context("fork").Process(target=serve, args=(self.models, words[1:]))
        self._process.start()
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @classmethod
    def file_of(cls, url: str) -> str:
        """The file of ours that stands for one of the hub."""
        return str(cls.models / BY_REPOSITORY[url.rpartition("/")[2]])

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> None:
        self._process.join(timeout)
        if self._process.is_alive():
            raise subprocess.TimeoutExpired("llama-server", timeout)


def serve(models: Path, given: list[str]) -> None:
    args = parse(given)
    with tempfile.TemporaryDirectory(prefix="llama-server-") as made:
        folder = Path(made)
        words = [
            "--host",
            args.host,
            "--port",
            args.port,
            "--backend",
            "cpu_ref",
            "--parallel",
            args.parallel,
        ]
        words += ["--metrics"] if args.metrics else []
        words += ["--no-page"] if args.no_ui else []
        if args.api_key is not None:
            (folder / "keys").write_text(args.api_key + "\n")
            words += ["--api-key-file", str(folder / "keys")]
        sys.exit(backbay(["serve", *model_words(args, models, folder), *words]))


def parse(given: list[str]) -> Namespace:
    parser = ArgumentParser("llama-server", allow_abbrev=False)
    for name in (
        "host",
        "port",
        "model",
        "hf-repo",
        "hf-file",
        "alias",
        "ctx-size",
        "api-key",
        "chat-template-file",
        "model-draft",
    ):
        parser.add_argument(f"--{name}")
    parser.add_argument("--lora", action="append", default=[])
    parser.add_argument("--parallel", default="4")
    for name in (*FLAGS, "metrics", "no-ui"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in HINTS:
        parser.add_argument(f"--{name}", f"-{name}", default=SUPPRESS)
    parser.add_argument("--reasoning", choices=("auto", "on"))
    return parser.parse_args(given)


def model_words(args: Namespace, models: Path, folder: Path) -> list[str]:
    """The model as `backbay serve` takes it, under the names that llama-server would give it; without one, all."""
    if not (args.model or args.hf_repo or args.hf_file):
        names = [f"{name}={Path(file).stem}" for name, file in BY_REPOSITORY.items() if name.count("/") == 1]
        return ["--models", str(models), *(word for name in names for word in ("--alias", name))]
    key = args.hf_file if args.hf_file in BY_REPOSITORY else args.hf_repo
    if args.model is None and key not in BY_REPOSITORY:
        sys.exit(f"llama-server: no model here stands for {args.hf_repo} {args.hf_file}")
    source = Path(args.model or models / BY_REPOSITORY[key])
    first, *others = sorted((args.alias or source.stem).split(","))
    model = folder / f"{first}.gguf"
    if args.chat_template_file is None:
        model.symlink_to(source.resolve())
    else:
        sys.argv[1:] = ["--force", "--chat-template-file", args.chat_template_file, str(source), str(model)]
        gguf_new_metadata.main()
    eyes = source.with_name(f"mmproj-{source.name}")
    if eyes.exists():
        (folder / f"mmproj-{model.name}").symlink_to(eyes.resolve())
    most = CONTEXTS.get(source.name, 1 << 15)
    context = min(most, int(args.ctx_size or 4096) // int(args.parallel))
    aliases = (word for name in (*others, *ASKED) for word in ("--alias", f"{name}={first}"))
    adapters = (word for name in args.lora for word in ("--adapter", f"{Path(name).stem}={name}"))
    draft = ["--draft", args.model_draft] if args.model_draft else []
    return [str(model), "--context", str(context), *draft, *adapters, *aliases]


def write_models(folder: Path) -> None:
    """The models that main() gives: one that writes words without end, one that sees, one that embeds, one that ranks."""
    for path in (ROOT / "examples" / "models").glob("*vision*.gguf"):
        (folder / path.name).symlink_to(path)
    Image.fromarray(drawn(32, 32)).save(folder / PICTURE)
    words = says({f" {word}": 1 / len(WORDS) for word in WORDS}, loops=True)
    write_scripted_model(folder / "words.gguf", {"ok": words, "result": words})
    write_adapter(folder / "adapter.gguf", random_pairs(folder / "words.gguf", 2, 7), alpha=8.0)
    axes = np.eye(8, dtype=np.float32)
    write_embedder(folder / "vectors.gguf", {"north": axes[0], "east": axes[1]})
    write_reranker(folder / "scores.gguf", {"good": 1.0})
