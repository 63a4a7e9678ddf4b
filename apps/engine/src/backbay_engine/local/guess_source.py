"""Sources of guessed tokens: the text itself, or a small model of the same vocabulary."""

from __future__ import annotations

from dataclasses import replace

from backbay import Backend, BackendParams
from backbay.gguf import Config

from ..cache.contract import Cache, CacheSizes
from ..errors import RequestError
from ..models import load_model
from ..port.contract import ModelFacts
from ..port.options import LoadOptions
from ..runner.speculation import LONGEST, DraftModel, GuessSource, NgramSource
from ..steps.step import largest_steps
from ..text.tokenizers.vocabulary import TOKENS
from .encoder_opening import companion_layers, open_text_backend


def open_guess_source(
    options: LoadOptions, facts: ModelFacts, cache: Cache | None, backend: Backend, parallel: int
) -> GuessSource:
    """The source of guesses for a model; everything that it needs is reserved."""
    if cache is None or cache.is_uniform:
        why = "generates no text" if cache is None else "is recurrent: its states cannot take tokens back"
        raise RequestError(f"tokens cannot be guessed: {facts.architecture} {why}")
    if options.draft is None:
        return NgramSource()
    params = options.params
    elsewhere = options.draft_backend is not None and options.draft_backend != backend.name
    given = BackendParams(num_threads=params.num_threads) if elsewhere else params  # options are its own
    given = options.draft_params or replace(given, gpu_layers=companion_layers(params))
    given = replace(given, alloc_memory=params.alloc_memory)
    draft, _ = open_text_backend(options.draft, options.draft_backend or type(backend), given)
    try:
        return _draft_model(draft, facts, backend.config, parallel)
    except BaseException:
        draft.close()
        raise


def _draft_model(draft: Backend, facts: ModelFacts, config: Config, parallel: int) -> DraftModel:
    model = load_model(draft, facts.context)
    cache = model.new_cache()
    if cache is None:
        raise RequestError(f"draft: {draft.config.architecture} generates no text")
    _require_same_vocabulary(config, draft.config)
    batch = max(LONGEST, parallel, min(facts.batch, parallel * facts.context))
    cache.open(draft, CacheSizes(parallel, facts.context, batch, draft.cache_config().dtypes[0]))
    try:
        source = DraftModel(
            model,
            cache,
            parallel=parallel,
            context=facts.context,
            batch=batch,
            vocabulary_size=facts.vocabulary_size,
        )
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
