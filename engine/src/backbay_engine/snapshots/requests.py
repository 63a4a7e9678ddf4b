"""The options of a request as plain JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from ..errors import RequestError
from ..runner.requests.options import GenerationOptions
from ..runner.requests.request import Generate
from ..text.formats import ResponseFormat
from ..text.sampling import SamplingParams

_OWN: Final = [each.name for each in fields(GenerationOptions) if each.name not in ("sampling", "constraint")]
_SAMPLING: Final = [each.name for each in fields(SamplingParams)]


def continuation_options(request: Generate, seed: int, answer: Sequence[int]) -> dict[str, Any]:
    """The options with which a request goes on after these tokens of its answer, by name."""
    options = request.options
    if options.constraint is not None and options.response_format is None:
        raise RequestError(
            "a request with a constraint of your own cannot be saved: its object stays here; use response_format"
        )
    own = {name: getattr(options, name) for name in _OWN}
    own["shown"] = tuple(sorted(options.shown))
    sampling = {name: getattr(options.sampling, name) for name in _SAMPLING}
    sampling["logit_bias"] = dict(options.sampling.logit_bias)
    return {**own, **sampling, "seed": seed, "resume": tuple(answer)}


def options_to(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON holds them."""
    plain = dict(options)
    wanted, bias = plain.get("response_format"), plain.get("logit_bias")
    if isinstance(wanted, ResponseFormat):
        plain["response_format"] = [wanted.kind, wanted.text]
    if bias is not None:
        plain["logit_bias"] = [[int(id), repr(float(value))] for id, value in bias.items()]
    return plain


def options_from(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Options as `submit` takes them."""
    options = dict(plain)
    wanted, bias = options.get("response_format"), options.get("logit_bias")
    if wanted is not None:
        options["response_format"] = ResponseFormat(*wanted)
    if bias is not None:
        options["logit_bias"] = {id: float(value) for id, value in bias}
    for name in ("stop", "resume", "shown"):
        if name in options:
            options[name] = tuple(options[name])
    return options
