"""Sources of guessed tokens: the text itself, the model's own head, or a small model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from backbay import BackendParams
from backbay.gguf import Config

from ..cache.contract import Cache, CacheSizes
from ..errors import RequestError
from ..models import load_model
from ..models.bases import Decoder
from ..models.contract import Model
from ..models.predicting_head import PredictingHead
from ..port.contract import ModelFacts
from ..port.options import MTP, LoadOptions
from ..runner.speculation import LONGEST, DraftModel, GuessSource, HeadSource, ModelSource, NgramSource
from ..steps.step import largest_steps
from ..text.tokenizers.vocabulary import TOKENS
from .opening.encoder_opening import companion_layers, open_text_backend

S = TypeVar("S", bound=ModelSource)


def open_guess_source(
    options: LoadOptions, facts: ModelFacts, model: Model, cache: Cache | None, parallel: int
) -> GuessSource:
    """The source of guesses for a model; everything that it needs is reserved."""
    if cache is None:
        raise RequestError(f"tokens cannot be guessed: {facts.architecture} generates no text")
    if options.speculate == MTP:
        return _open_head(model, facts, parallel)
    if options.draft is None:
        return NgramSource()
    params, backend = options.params, model.backend
    elsewhere = options.draft_backend is not None and options.draft_backend != backend.name
    given = BackendParams(num_threads=params.num_threads) if elsewhere else params  # options are its own
    given = options.draft_params or replace(given, gpu_layers=companion_layers(params))
    given = replace(given, alloc_memory=params.alloc_memory)
    draft, _ = open_text_backend(options.draft, options.draft_backend or type(backend), given)
    try:
        small = load_model(draft, facts.context)
        held = small.new_cache()
        if held is None:
            raise RequestError(f"draft: {draft.config.architecture} generates no text")
        _require_same_vocabulary(backend.config, draft.config)
        return _reserved(DraftModel, small, held, facts, parallel)
    except BaseException:
        draft.close()
        raise


def _open_head(model: Model, facts: ModelFacts, parallel: int) -> HeadSource:
    """The model's own head; from now on the model keeps the vectors that the head goes on from."""
    if not isinstance(model, Decoder):
        raise RequestError(f"speculate={MTP!r}: {facts.architecture} has no head that predicts tokens")
    head = PredictingHead(model)
    head.fit(facts.context)
    model.keeps_rows = True
    return _reserved(HeadSource, head, head.new_cache(), facts, parallel)


def _reserved(kind: Callable[..., S], model: Model, cache: Cache, facts: ModelFacts, parallel: int) -> S:
    """A source of this kind, with the memory of its cache and of its largest steps."""
    batch = max(LONGEST, parallel, min(facts.batch, parallel * facts.context))
    dtype = model.backend.cache_config().dtypes[0]
    cache.open(model.backend, CacheSizes(parallel, facts.context, batch, dtype))
    try:
        sizes = {"parallel": parallel, "context": facts.context, "batch": batch}
        source = kind(model, cache, **sizes, vocabulary_size=facts.vocabulary_size)
        steps = largest_steps(batch, parallel, facts.context, decoding=True, uniform=cache.is_uniform)
        source.step_cache.reserve([*model.worst_steps(steps)])
    except BaseException:
        cache.close()
        raise
    return source


def _require_same_vocabulary(config: Config, draft: Config) -> None:
    """RequestError unless equal ids are equal tokens; one vocabulary may be padded with more tokens than the other."""
    own, other = TOKENS.of(config), TOKENS.of(draft)
    for id, (one, two) in enumerate(zip(own, other, strict=False)):
        if one != two:
            raise RequestError(
                f"draft: its vocabulary is another one: token {id} is {two!r}, where the model has {one!r}"
            )
