"""A model's sizes, the dtype of its cache, its vocabulary and its facts, by its file and the caller's options."""

from __future__ import annotations

import logging

from backbay import Backend, DType
from backbay.gguf import Config

from ...arguments import LARGEST, whole_number
from ...errors import RequestError
from ...models.contract import Model
from ...models.keys import CONTEXT_LENGTH
from ...port.contract import MediaFacts, ModelFacts
from ...text.tokenizers import Tokenizer, tokenizer_from_gguf
from ...text.tokenizers.vocabulary import KIND, TOKENS
from ...text.transcripts import TranscriptMarks

log = logging.getLogger(__name__)

DEFAULT_CONTEXT, SHORTEST = 4096, 2
KV_DTYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
NO_VOCABULARY = (None, "none", "no_vocab")


def context_of(asked: int | None, backend: Backend) -> int:
    """The tokens of each sequence; of more than a model was trained for, the log tells when it is loaded, not measured."""
    trained = CONTEXT_LENGTH.of(backend.config, DEFAULT_CONTEXT)
    if asked is None:
        return min(trained, DEFAULT_CONTEXT)
    context = whole_number("context", asked, SHORTEST, LARGEST)
    if context > trained and backend.params.alloc_memory:
        log.warning("a context of %d tokens is longer than the model was trained for: %d", context, trained)
    return context


def tokenizer_of(config: Config, model: Model) -> Tokenizer | None:
    """The tokenizer, or None if the file has no vocabulary."""
    if KIND.of(config, None) in NO_VOCABULARY:
        return None
    if not model.vocabulary_size <= len(TOKENS.of(config)) <= model.embedded:
        raise TOKENS.refuse(config, f"{model.vocabulary_size} tokens, as the model has embeddings,")
    return tokenizer_from_gguf(config)


def dtype_of(name: str | DType | None, backend: Backend) -> DType:
    """The dtype of the cache."""
    if name is None:
        return backend.cache_config().dtypes[0]
    if isinstance(name, DType):
        return name
    try:
        return DType[str(name).upper()]
    except KeyError:
        raise RequestError(f"kv_dtype must be f32, f16, bf16, q8_0 or q4_0, got {name!r}") from None


def facts_of(
    model: Model,
    config: Config,
    tokenizer: Tokenizer | None,
    *,
    context: int,
    batch: int,
    generates: bool,
    media: tuple[MediaFacts, ...],
) -> ModelFacts:
    """The facts of a model with sequences of `context` tokens and steps of `batch`."""
    return ModelFacts(
        config.architecture,
        model.vocabulary_size,
        context,
        batch,
        generates=generates,
        media=media,
        ranks=model.ranks,
        transcribes=model.transcribes,
        transcript=TranscriptMarks.of(config, tokenizer) if model.transcribes else None,
        row_widths=model.row_widths,
    )
