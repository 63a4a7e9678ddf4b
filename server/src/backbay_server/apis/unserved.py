"""Fields of llama.cpp's server for samplers, slots and limits that this server does not have."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Struct

from .fields import ignored, refused

Number: TypeAlias = float | None
NOT_SAMPLED = "the sampler does not have it"


class UnservedFields(Struct, kw_only=True):
    """Clients of llama.cpp's server send them with values that ask for nothing."""

    typical_p: Annotated[Number, refused(NOT_SAMPLED, (1,))] = None
    top_n_sigma: Annotated[Number, refused(NOT_SAMPLED, (-1, 0))] = None
    xtc_probability: Annotated[Number, refused(NOT_SAMPLED, (0,))] = None
    xtc_threshold: Annotated[Number, ignored("it belongs to xtc_probability")] = None
    dynatemp_range: Annotated[Number, refused(NOT_SAMPLED, (0,))] = None
    dynatemp_exponent: Annotated[Number, ignored("it belongs to dynatemp_range")] = None
    dry_multiplier: Annotated[Number, refused(NOT_SAMPLED, (0,))] = None
    dry_base: Annotated[Number, ignored("it belongs to dry_multiplier")] = None
    dry_allowed_length: Annotated[int | None, ignored("it belongs to dry_multiplier")] = None
    dry_penalty_last_n: Annotated[int | None, ignored("it belongs to dry_multiplier")] = None
    dry_sequence_breakers: Annotated[list[str] | None, ignored("it belongs to dry_multiplier")] = None
    mirostat: Annotated[int | None, refused(NOT_SAMPLED, (0,))] = None
    mirostat_tau: Annotated[Number, ignored("it belongs to mirostat")] = None
    mirostat_eta: Annotated[Number, ignored("it belongs to mirostat")] = None
    adaptive_target: Annotated[Number, refused(NOT_SAMPLED, (-1,))] = None
    adaptive_decay: Annotated[Number, ignored("it belongs to adaptive_target")] = None
    min_keep: Annotated[int | None, refused(NOT_SAMPLED, (0,))] = None
    samplers: Annotated[list[str] | str | None, ignored("the order of the sampler is fixed")] = None
    post_sampling_probs: Annotated[
        bool | None, refused("the model's own probabilities are told", (False,))
    ] = None
    lora: Annotated[list[Any] | None, refused("there are no adapters", ([],))] = None
    id_slot: Annotated[int | None, ignored("any slot finds the cache of an earlier prompt")] = None
    n_keep: Annotated[int | None, ignored("an answer ends where the context ends")] = None
    n_discard: Annotated[int | None, ignored("an answer ends where the context ends")] = None
    n_indent: Annotated[int | None, ignored("the model chooses the indentation")] = None
    n_cache_reuse: Annotated[int | None, ignored("equal beginnings of prompts are found")] = None
    t_max_prompt_ms: Annotated[int | None, ignored("a client that waits no longer disconnects")] = None
    t_max_predict_ms: Annotated[int | None, ignored("a client that waits no longer disconnects")] = None
    timings_per_token: Annotated[bool | None, ignored("the end of an answer has the timings")] = None
    return_progress: Annotated[bool | None, refused("prompts tell no progress", (False,))] = None
