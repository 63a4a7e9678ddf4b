"""Open models for commands: arguments, a progress bar, logging."""

from __future__ import annotations

import json
import logging
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TextIO, final

import backbay
from backbay import BackbayError, BackendParams
from backbay.cli import add_options, file_to_write, options_of, say, shares, standard_input, whole, write_text
from backbay.discovery import open_model as open_model_file
from backbay.internals import MAX_THREADS

from ..arguments import LARGEST, LARGEST_BATCH, MOST_SEQUENCES
from ..llm import LLM
from ..loading import load
from ..local.opening.load_checks import KV_DTYPES
from ..models import load_model
from ..models.keys import CONTEXT_LENGTH
from ..port.contract import ModelFacts, Numbers
from ..port.options import MTP, NGRAM, STORE_BYTES, load_options
from ..trials import fastest_backend

MODEL = "a GGUF file (of a split model, any of its files), a folder of transformers, or a name such as hf:org/name"
LOADING = [
    "context",
    "parallel",
    "batch",
    "kv_dtype",
    "projector",
    "encoder_backend",
    "image_tokens",
    "store_bytes",
    "main_gpu",
    "tensor_split",
]
OTHERS = ("worker", "speculate", "draft", "draft_backend")  # arguments of `load`, which not every command has


def add_backend_arguments(parser: ArgumentParser, *, several: bool = False) -> None:
    names = "names of installed backends, separated by commas, or `all`"
    what = names if several else "name of an installed backend"
    parser.add_argument("--backend", help=f"{what}; by default the best that works")


def add_number_arguments(
    parser: ArgumentParser, numbers: Sequence[tuple[str, int, int, str]], **defaults: int | None
) -> None:
    """Add options for whole numbers: their name, the least and the most, and their help, with the default at its end."""
    for name, least, most, what in numbers:
        default = defaults.get(name)
        told = what if default is None else f"{what} ({default})"
        parser.add_argument(f"--{name}", type=whole(least, most), default=default, metavar="N", help=told)


def add_model_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that open a model, for any backend."""
    numbers = [
        ("context", 2, LARGEST, "tokens of each sequence (4096, or the model's if less)"),
        ("parallel", 1, MOST_SEQUENCES, "sequences that share a step"),
        ("batch", 1, LARGEST_BATCH, "tokens of one step"),
        ("threads", 1, MAX_THREADS, "CPU threads (all cores)"),
        ("gpu-layers", 0, LARGEST, "layers on GPUs; 0: none; by default all that fit"),
        ("main-gpu", 0, LARGEST, "the number of the GPU that holds the output"),
        ("image-tokens", 1, LARGEST, "most tokens of a picture: larger ones are made smaller, if possible"),
        ("store-bytes", 0, 2**62, "most bytes of encoded pictures that are kept"),
    ]
    parser.set_defaults(adapter=[])  # unless the command has the option
    add = parser.add_argument
    add("model", help=MODEL)
    add_number_arguments(
        parser, numbers, **{"parallel": 1, "batch": 512, "main-gpu": 0, "store-bytes": STORE_BYTES}
    )
    add("--tensor-split", type=shares, default=(), metavar="N,N", help="the shares of the GPUs, such as 3,1")
    add("--kv-dtype", choices=KV_DTYPES, help="dtype of the cache; by default the backend's choice")
    add("--projector", metavar="FILE", help="the file of the model's encoder of pictures (mmproj)")
    add("--encoder-backend", metavar="NAME", help="the encoder's backend; by default the model's")
    add_options(parser)
    add("--log", choices=("text", "json"), default="text", help="format of log lines (text)")


def add_worker_arguments(parser: ArgumentParser) -> None:
    what = "run the model in a process of its own; if it dies, another one goes on with the answer"
    parser.add_argument("--worker", action="store_true", help=what)


def add_speculation_arguments(parser: ArgumentParser) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    itself = "guess the next tokens from the text itself, to be faster; the answer is the same"
    add("--speculate", action="store_const", const=NGRAM, help=itself)
    head = "guess them with the model's own head, if it has one (multi-token prediction)"
    add("--mtp", dest="speculate", action="store_const", const=MTP, help=head)
    draft = "guess the next tokens with this smaller model of the same vocabulary"
    add("--draft", metavar="FILE", help=draft)
    backend = "the backend of --draft; by default the model's"
    parser.add_argument("--draft-backend", metavar="NAME", help=backend)


def add_adapter_arguments(parser: ArgumentParser) -> None:
    what = "an adapter (LoRA) that changes the model: a GGUF file, or a folder of PEFT, with its scale (1)"
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        type=scaled_file,
        metavar="FILE[:SCALE]",
        help=f"{what}; may be repeated",
    )


def scaled_file(text: str) -> tuple[str, float]:
    """The file and the scale of FILE[:SCALE]; what stands behind a colon and is no number belongs to the file."""
    path, _, scale = text.rpartition(":")
    try:
        return (path, float(scale)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0


def adapter_scales(args: Namespace) -> dict[str, float]:
    """The scales of the adapters, by the names that `load_arguments` gives them."""
    return {str(number): scale for number, (_, scale) in enumerate(args.adapter)}


def add_image_arguments(parser: ArgumentParser, what: str) -> None:
    told = f"{what}; may be repeated"
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help=told)


def add_plot_argument(parser: ArgumentParser, what: str) -> None:
    parser.add_argument("--plot", type=file_to_write, metavar="FILE", help=f"{what}, as SVG")


def add_text_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", help="texts; by default the lines of standard input")


def read_texts(args: Namespace, verb: str) -> list[str]:
    texts = args.text or [line for line in standard_input().split("\n") if line.strip()]
    if not texts:
        raise BackbayError(f"there is nothing to {verb}: give texts, or lines on standard input")
    return texts


def load_arguments(args: Namespace) -> dict[str, Any]:
    """The arguments of `load` and `estimate`, from those of the command line."""
    given = {name: getattr(args, name) for name in LOADING}
    given["params"] = BackendParams(num_threads=args.threads, options=options_of(args))
    given["adapters"] = {str(number): path for number, (path, _) in enumerate(args.adapter)}
    return {**given, "num_gpu_layers": args.gpu_layers}


def trained_context(model: str) -> int:
    """The tokens that a model was trained for; a large number if its file does not say."""
    with open_model_file(model) as file:
        return CONTEXT_LENGTH.of(file.metadata, LARGEST)


def chosen_backend(args: Namespace, *, measuring: bool = True) -> str:
    """The name of the backend that `load` takes. The model file is looked at first: trying backends takes longer.

    If `measuring` is False, no trial is made of which one is faster.
    """
    given = load_arguments(args)
    choice = fastest_backend(args.model, args.backend, load_options(given), measuring=measuring)
    if choice is None:  # a backend is named
        open_model_file(args.model).close()
        choice = backbay.choose(args.backend)
    return choice.name


def require_results(args: Namespace, wanted: Numbers) -> None:
    """RequestError unless the model of the arguments makes embeddings, or scores: its weights are not loaded for this."""
    name = chosen_backend(args, measuring=False)
    with backbay.open(
        args.model, name, BackendParams(alloc_memory=False, options=options_of(args))
    ) as backend:
        model = load_model(backend)
        generates = model.new_cache() is not None
        architecture, ranks, transcribes = backend.config.architecture, model.ranks, model.transcribes
        facts = ModelFacts(architecture, 0, 0, 0, generates, ranks=ranks, transcribes=transcribes)
        facts.require_numbers(wanted)


def open_model(args: Namespace, backend: str | None) -> LLM:
    """Load the model of the arguments, with a progress bar."""
    set_up_logging(args.log)
    with ProgressBar(sys.stderr, "loading") as bar:
        others = {name: getattr(args, name) for name in OTHERS if getattr(args, name, None) is not None}
        return load(args.model, backend, **load_arguments(args), progress=bar.show, **others)


def write_plot(args: Namespace, picture: str) -> None:
    """Write the plot; call it after all output, which a failure must not lose."""
    write_text(args.plot, picture)
    if not args.json:
        say(f"plot: {args.plot}")


@final
class ProgressBar:
    """A progress bar on one line; shows nothing without a terminal."""

    def __init__(self, stream: TextIO, what: str) -> None:
        self._stream, self._what = stream, what
        self._visible, self._shown = stream.isatty(), 0.0

    def __enter__(self) -> Self:
        return self

    def show(self, done: float) -> None:
        now = time.monotonic()
        if self._visible and (now - self._shown > 0.05 or done >= 1):
            self._shown, filled = now, round(30 * done)
            self._stream.write(f"\r{'█' * filled}{'░' * (30 - filled)} {self._what} {done:4.0%}")
            self._stream.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._visible:
            self._stream.write("\r" + " " * (40 + len(self._what)) + "\r")
            self._stream.flush()


def set_up_logging(form: str) -> None:
    """Log to standard error: a line of text or of JSON for each record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter("backbay: %(message)s"))
    logging.basicConfig(
        level=logging.WARNING if form == "text" else logging.INFO, handlers=[handler], force=True
    )


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (memory := getattr(record, "memory", None)) is not None:
            line["memory"] = memory
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)
