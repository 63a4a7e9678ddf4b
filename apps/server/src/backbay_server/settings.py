"""Settings: what the server is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from backbay import OptionError


@final
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What the server offers, and its limits.

    models         files, folders, or names such as hf:org/name
    folders        folders of models: of GGUF files, Hugging Face's cache, Ollama's store
    aliases        further names, each for a model's name or its file
    adapters       files of adapters (LoRA) by name, or by MODEL:NAME if there are several models
    backend        the name of an installed backend; None: the best that works
    further_backends  backends on which each model is on offer too, as NAME@BACKEND, with their usual options
    options        the backend's own options, such as ggml's rpc
    threads        CPU threads of a model's steps; None: all cores
    gpu_layers     layers of each model on GPUs; None: all that fit
    main_gpu       the number of the GPU that holds the output
    tensor_split   the shares of the GPUs
    parallel       requests that a model answers at the same time
    context        tokens of each request; None: the model's context length, at most 4096
    kv_dtype       dtype of the caches; None: the backend's choice
    speculate      "ngram": guess tokens from the text itself; "mtp": with models' own heads; both with models that can
    draft          the file of a small model of the one model's vocabulary, which guesses tokens
    queue          requests that may wait for a model's answer; one more is a 429
    worker         each model runs in a process of its own
    max_loaded     models in memory at a time
    keys           API keys; a request needs one of them, if there are any
    hosts          further names of this host that the header Host may have
    origins        origins of web pages that may ask (CORS)
    picture_hosts  hosts from which pictures may be fetched; none: nothing is fetched
    allow_rows     whether conversations may have rows in the place of tokens
    max_body       bytes of a request's body
    max_choices    answers to one request: prompts times n
    metrics        whether /metrics is served
    page           whether the page at / is served
    drain_seconds  how long running requests may go on when the server is told to end
    """

    models: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    backend: str | None = None
    further_backends: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    gpu_layers: int | None = None
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    parallel: int = 4
    context: int | None = None
    kv_dtype: str | None = None
    speculate: str | None = None
    draft: str | None = None
    queue: int = 64
    worker: bool = False
    max_loaded: int = 1
    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    picture_hosts: tuple[str, ...] = ()
    allow_rows: bool = False
    host: str = "127.0.0.1"
    port: int = 8080
    max_body: int = 64 << 20
    max_choices: int = 32
    metrics: bool = True
    page: bool = True
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.draft is not None and (self.folders or len(self.models) != 1):
            raise OptionError(
                "a draft guesses for one model: name one, and no folder; --speculate serves several"
            )
