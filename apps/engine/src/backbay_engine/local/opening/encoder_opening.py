"""Opens the encoder of a model, and the model without it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import backbay
from backbay import Backend, BackendParams, GPULayersList
from backbay.discovery import open_model

from ...checkpoints import locate
from ...encoders.contract import EncoderFamily
from ...media.encoder import MediaEncoder
from ...media.encoder_file import encoder_families, kinds_of, text_file
from ...media.processor_lock import ProcessorLock, share_processors
from ...media.prompt_tokenizer import PromptTokenizer
from ...models.keys import WIDTH
from ...port.options import LoadOptions
from ...text.tokenizers import Tokenizer
from ..media_intake import MediaIntake


def open_text_backend(
    path: Any, backend: str | type[Backend] | None, params: BackendParams
) -> tuple[Backend, bool]:
    """A backend with the model of a file, without the encoder that the file may hold; and whether it holds one."""
    file = open_model(path)
    if not (holds := bool(kinds_of(file))):
        return backbay.open(file, backend, params), holds
    file.close()
    return backbay.open(text_file(path), backend, params), holds


def own_projector(path: Any, options: LoadOptions) -> LoadOptions:
    """The options with the projector that lies beside a model in another program's store, if none is given."""
    if options.projector is not None:
        return options
    return replace(options, projector=locate(path).projector)


def open_encoder(
    path: Any,
    text: Backend,
    backend: str | type[Backend] | None,
    options: LoadOptions,
    tokenizer: Tokenizer | None,
) -> MediaIntake | None:
    """The encoders of a projector's file, or of the model's own file; None if neither has one."""
    with ExitStack() as opened:
        encoders = [
            opened.enter_context(closing(_open_one(family, text, backend, options, tokenizer)))
            for family in encoder_families(path, options.projector, options.image_tokens)
        ]
        if not encoders:
            return None
        share = any(share_processors(text.memory(), encoder.memory()) for encoder in encoders)
        turns = ProcessorLock() if share else None
        prompts = PromptTokenizer(tokenizer, [encoder.family for encoder in encoders])
        made = MediaIntake(encoders, prompts, options.store_bytes, turns)
        opened.pop_all()
        return made


def _open_one(
    family: EncoderFamily[Any],
    text: Backend,
    backend: str | type[Backend] | None,
    options: LoadOptions,
    tokenizer: Tokenizer | None,
) -> MediaEncoder:
    """The encoder of a family that has a file of its own."""
    assert text.model is not None
    try:
        family.check_text(text.model, WIDTH.of(text.config), tokenizer)
    except BaseException:
        family.file.close()
        raise
    return MediaEncoder(family, options.encoder_backend or backend, _params_of_encoder(options))


def _params_of_encoder(options: LoadOptions) -> BackendParams:
    """The parameters of the text's backend, without those that name the text's layers or, on another backend, options."""
    params, own = options.params, options.encoder_params
    if own is None:
        others = {} if options.encoder_backend is not None else params.options
        own = replace(params, gpu_layers=companion_layers(params), options=others)
    return replace(own, alloc_memory=params.alloc_memory)


def companion_layers(params: BackendParams) -> GPULayersList | None:
    """The layers on GPUs of an encoder or a draft beside a model: none if the model has none there, else all that fit."""
    return None if params.gpu_layers else params.gpu_layers
