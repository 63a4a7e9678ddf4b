"""The options of loading a model, in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias, TypedDict

from backbay import Backend, BackendParams, DType, OptionError
from backbay.gguf import nearest

from ..arguments import LARGEST, adapter_files, gpu_shares, require_params, whole_number

Path: TypeAlias = str | os.PathLike[str]
BackendName: TypeAlias = str | type[Backend]
STORE_BYTES = 256 << 20
CACHE_BYTES = 4 << 30
NGRAM: Final = "ngram"
MTP: Final = "mtp"


class LoadFields(TypedDict, total=False):
    """The options of `load`, for type checkers; LoadOptions documents them."""

    context: int | None
    parallel: int
    batch: int
    kv_dtype: str | DType | None
    params: BackendParams | None
    queue: int | None
    cache_dir: Path | None
    cache_bytes: int
    projector: Path | None
    encoder_backend: BackendName | None
    encoder_params: BackendParams | None
    image_tokens: int | None
    store_bytes: int
    speculate: str | None
    draft: Path | None
    draft_backend: BackendName | None
    draft_params: BackendParams | None
    adapters: Mapping[str, Path] | None
    num_gpu_layers: int | None
    main_gpu: int
    tensor_split: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a model is loaded.

    context      tokens of each sequence; by default the model's context length, at most 4096; a longer context than
                 the model's is logged as a warning
    parallel     sequences that run at the same time, each with a context of its own
    batch        tokens of one step; longer prompts are split
    kv_dtype     dtype of the cache: f32, f16, bf16, q8_0 or q4_0, if the backend supports it; by default the
                 backend's preference
    params       the backend's parameters
    queue        requests that may wait while `parallel` run: one more raises QueueFullError; by default any number
    cache_dir    a folder for the cache of prompts' beginnings, which later processes find again
    cache_bytes  bytes of this folder; what was not used for the longest time goes first

    Several tokens a step, where that is faster, without another answer; give one of:

    speculate        "ngram": guess what followed the last tokens where they stood before, in the prompt or the answer;
                     "mtp": guess with the model's own head that predicts tokens after the next one
    draft            the file of a small model of the same vocabulary, which guesses
    draft_backend    its backend; by default the model's
    draft_params     its parameters; by default `params`, and on another backend its threads

    Adapters (LoRA) change the model for the requests that ask for them:

    adapters         files in GGUF or folders of PEFT, by the names that requests use

    Layers lie on GPUs, the last ones first, where the backend has some; or say where by `params`:

    num_gpu_layers  so many layers, the output among them; by default, and if negative, all that fit with their caches
                    and graphs, and fewer where the GPU's memory is refused
    main_gpu        the number of the GPU that holds the output
    tensor_split    the shares of the GPUs; by default each is filled before the next one

    A model that sees pictures has an encoder in its file, or in a projector's file:

    projector        the projector's file (mmproj)
    encoder_backend  the encoder's backend; by default the model's
    encoder_params   the encoder's parameters; by default `params`
    image_tokens     most tokens of a picture: larger pictures are made smaller, if the model's family can
    store_bytes      bytes of host memory for the rows of pictures that were encoded
    """

    context: int | None = None
    parallel: int = 1
    batch: int = 512
    kv_dtype: str | DType | None = None
    params: BackendParams = field(default_factory=BackendParams)
    queue: int | None = None
    cache_dir: Any = None
    cache_bytes: int = CACHE_BYTES
    projector: Any = None
    encoder_backend: Any = None
    encoder_params: BackendParams | None = None
    image_tokens: int | None = None
    store_bytes: int = STORE_BYTES
    speculate: str | None = None
    draft: Any = None
    draft_backend: Any = None
    draft_params: BackendParams | None = None
    adapters: Any = None  # by name; never None once the options are made
    num_gpu_layers: int | None = None
    main_gpu: int = 0
    tensor_split: Sequence[float] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapters", adapter_files(self.adapters))
        for name in ("params", "encoder_params", "draft_params"):
            require_params(name, getattr(self, name))
        self._check_layers()
        whole_number("store_bytes", self.store_bytes, 0)
        if self.image_tokens is not None:
            whole_number("image_tokens", self.image_tokens, 1)
        whole_number("cache_bytes", self.cache_bytes, 1)
        if self.cache_dir is not None and not isinstance(self.cache_dir, str | os.PathLike):
            raise OptionError(f"cache_dir must be the path of a folder, got {self.cache_dir!r}")
        if self.speculate not in (None, NGRAM, MTP):
            raise OptionError(f"speculate must be {NGRAM!r}, {MTP!r} or None, got {self.speculate!r}")
        if self.speculate is not None and self.draft is not None:
            raise OptionError("give speculate or draft, not both: guesses come from one source")
        if self.draft is None and (self.draft_backend is not None or self.draft_params is not None):
            raise OptionError("draft_backend and draft_params are for a model with draft=FILE")

    def _check_layers(self) -> None:
        """Check what says where layers lie, and forget a negative number of them."""
        if (
            self.num_gpu_layers is not None
            and whole_number("num_gpu_layers", self.num_gpu_layers, -LARGEST) < 0
        ):
            object.__setattr__(self, "num_gpu_layers", None)
        whole_number("main_gpu", self.main_gpu, 0)
        object.__setattr__(self, "tensor_split", gpu_shares(self.tensor_split))
        told = self.num_gpu_layers is not None or self.main_gpu or len(self.tensor_split)
        if self.params.gpu_layers is not None and told:
            raise OptionError(
                "params.gpu_layers says where layers lie: leave out num_gpu_layers, main_gpu and tensor_split"
            )

    @property
    def guesses(self) -> bool:
        """Whether tokens are to be guessed."""
        return self.speculate is not None or self.draft is not None


NAMES: Final = [each.name for each in fields(LoadOptions)]


def load_options(given: Mapping[str, Any], others: Sequence[str] = ()) -> LoadOptions:
    """The options of these names; TypeError if one is unknown, also among the others that the caller takes."""
    for name in given:
        if name not in NAMES:
            raise TypeError(f"unknown option {name!r}{nearest(name, [*NAMES, *others])}")
    params = given.get("params")
    return LoadOptions(**{**given, "params": BackendParams() if params is None else params})
