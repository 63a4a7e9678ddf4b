"""Serve models to clients of OpenAI's, Anthropic's and Ollama's APIs."""

from __future__ import annotations

import sys
from argparse import Action, ArgumentParser, Namespace
from contextlib import suppress
from typing import Any, final

from backbay import OptionError
from backbay.cli import add_options, options_of, positive, say, shares, whole
from backbay.internals import MAX_THREADS

from .settings import ServerSettings
from .transport.request_checks import read_keys

LARGEST = 2**30
SAME = (
    "backend",
    "further_backends",
    "threads",
    "gpu_layers",
    "main_gpu",
    "tensor_split",
    "parallel",
    "context",
    "kv_dtype",
    "speculate",
    "draft",
    "queue",
    "worker",
    "allow_rows",
    "host",
    "port",
    "metrics",
)
"""Fields of Settings that are the options of the same names."""
KV_DTYPES = "f32", "f16", "bf16", "q8_0", "q4_0"  # the engine's, which is not imported for its arguments


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument

    def several(name: str, value: str, what: str) -> None:
        add(name, action="append", default=[], metavar=value, help=f"{what}; may be repeated")

    def number(name: str, least: int, most: int, default: int | None, what: str) -> None:
        add(name, type=whole(least, most), default=default, metavar="N", help=what.format(default))

    add("model", nargs="*", help="GGUF files, folders, or names such as hf:org/name, ollama:name")
    several("--models", "DIR", "a folder of models, also Hugging Face's cache or Ollama's store")
    several("--alias", "NAME=MODEL", "a further name for a model, which is given by its name or file")
    adapter = "an adapter (LoRA): a GGUF file, or a folder of PEFT; clients ask for the model MODEL:NAME"
    several("--adapter", "[MODEL:]NAME=FILE", adapter)
    add("--host", default=ServerSettings.host, help=f"address to listen at ({ServerSettings.host})")
    number("--port", 0, 65535, ServerSettings.port, "port to listen at ({}); 0: any free one")
    chosen = (
        "name of an installed backend; by default the best that works; again: models also as NAME@BACKEND"
    )
    add("--backend", action=BackendArgument, help=chosen)
    parser.set_defaults(further_backends=())
    add_options(parser)
    number("--parallel", 1, 2**16, ServerSettings.parallel, "answers at a time of each model ({})")
    number("--threads", 1, MAX_THREADS, None, "CPU threads of each model (all cores)")
    number("--gpu-layers", 0, LARGEST, None, "layers of each model on GPUs; 0: none (all that fit)")
    number(
        "--main-gpu", 0, LARGEST, ServerSettings.main_gpu, "the number of the GPU that holds the output ({})"
    )
    add("--tensor-split", type=shares, default=(), metavar="N,N", help="the shares of the GPUs, such as 3,1")
    number("--context", 2, LARGEST, None, "tokens of each request (4096, or the model's if less)")
    add("--kv-dtype", choices=KV_DTYPES, help="dtype of the caches (the backend's choice)")
    guess = parser.add_mutually_exclusive_group().add_argument
    itself = "guess the next tokens from the text itself, to be faster; the answer is the same"
    guess("--speculate", action="store_const", const="ngram", help=itself)
    head = "guess them with the model's own head, if it has one (multi-token prediction)"
    guess("--mtp", dest="speculate", action="store_const", const="mtp", help=head)
    draft = "guess them with this smaller model of the same vocabulary; for a server of one model"
    guess("--draft", metavar="FILE", help=draft)
    number("--queue", 0, LARGEST, ServerSettings.queue, "requests that may wait for each model ({})")
    number("--max-loaded", 1, 1024, None, "models in memory at a time (as many as are named)")
    add("--worker", action="store_true", help="run each model in a process of its own")
    keys = "a file of keys, one on a line; each request needs one of them"
    add("--api-key-file", metavar="FILE", help=keys)
    several(
        "--allow-host", "NAME", "a name of this machine that requests may use (localhost, addresses); *: any"
    )
    several(
        "--allow-origin", "ORIGIN", "a web page that may use the server, such as https://chat.example.com"
    )
    fetched = "a host from which the server may fetch the pictures that requests name by their address; *.NAME, *: several"
    several("--allow-picture-host", "NAME", fetched)
    add(
        "--allow-rows",
        action="store_true",
        help="take vectors in the place of tokens, as parts of messages in chat",
    )
    number("--max-body", 1, 1 << 20, ServerSettings.max_body >> 20, "largest body of a request in MiB ({})")
    add("--metrics", action="store_true", help="serve metrics for Prometheus at /metrics")
    add("--no-page", action="store_true", help="serve no page at /")
    drain = ServerSettings.drain_seconds
    ending = f"how long running answers may go on after SIGTERM or Ctrl+C ({drain:g})"
    add("--drain", type=positive, default=drain, metavar="SECONDS", help=ending)
    add("--log", choices=("text", "json"), default="text", help="format of log lines (text)")


def run(args: Namespace) -> int:
    """Serve until SIGTERM or SIGINT. One line on standard output tells the address."""
    from .application import app  # takes a while
    from .monitoring import set_up_logging
    from .transport.server import Server, bind_socket

    settings = settings_of(args)
    listener = bind_socket(settings.host, settings.port)
    with listener, set_up_logging(args.log):
        application = app(settings=settings)
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address

        def listening() -> None:
            with suppress(OSError):  # a full disk ends no server
                say(f"listening on http://{shown}:{port}")
                sys.stdout.flush()

        async def cancel() -> None:
            await application.state.services.pool.close()

        server = Server(
            application,
            application.state.drain,
            drain_seconds=settings.drain_seconds,
            cancel=cancel,
            listening=listening,
        )
        server.run([listener])
    return 0


def settings_of(args: Namespace) -> ServerSettings:
    aliases = dict(parse_pair("--alias", "MODEL", text) for text in args.alias)
    adapters = dict(parse_pair("--adapter", "FILE", text) for text in args.adapter)
    if not (args.model or args.models or aliases):
        raise OptionError("name a model, or a folder of models with --models DIR")
    named = (len(args.model) + len(aliases)) * (1 + len(args.further_backends))
    return ServerSettings(
        models=tuple(args.model),
        folders=tuple(args.models),
        aliases=aliases,
        adapters=adapters,
        options=options_of(args),
        max_loaded=args.max_loaded or max(1, named),
        keys=read_keys(args.api_key_file) if args.api_key_file is not None else (),
        hosts=(*args.allow_host, args.host),
        origins=tuple(args.allow_origin),
        picture_hosts=tuple(args.allow_picture_host),
        max_body=args.max_body << 20,
        page=not args.no_page,
        drain_seconds=args.drain,
        **{name: getattr(args, name) for name in SAME},
    )


@final
class BackendArgument(Action):
    """The action of --backend: the first name is the models' backend, those after it are the further ones."""

    def __call__(
        self, parser: ArgumentParser, args: Namespace, value: Any, option: str | None = None
    ) -> None:
        if args.backend is None:
            args.backend = value
        elif value in (args.backend, *args.further_backends):
            parser.error(f"{option} {value} is named twice")
        else:
            args.further_backends = (*args.further_backends, value)


def parse_pair(option: str, value: str, text: str) -> tuple[str, str]:
    """The name and the value of NAME=VALUE."""
    name, equals, given = text.partition("=")
    if not (name and equals and given):
        raise OptionError(f"{option} takes NAME={value}, got {text!r}")
    return name, given
