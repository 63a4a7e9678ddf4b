"""Whether, and how much, the model reasons, as clients of many servers ask for it; and what else belongs to chat alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct

from ...errors import InvalidRequestError
from .. import fields
from ..fields import ignored, refused, taken
from ..options import reasoning_variables
from .generation_fields import GenerationFields


class ReasoningOptions(Struct):
    """How the model reasons, as OpenRouter has it."""

    effort: fields.ReasoningEffort = None
    enabled: Annotated[bool | None, taken("whether the model reasons, for templates that can switch it")] = (
        None
    )
    exclude: Annotated[bool | None, refused("the whole reasoning is given", (False,))] = None
    max_tokens: Annotated[int | None, ignored("only the answer as a whole has a limit")] = None
    summary: Annotated[str | None, ignored("the whole reasoning is given")] = None


class ThinkingOptions(Struct):
    """Whether the model reasons, as DeepSeek and GLM have it."""

    type: Annotated[Literal["enabled", "disabled", "adaptive", "auto"], taken("disabled: it does not reason")]
    budget_tokens: Annotated[int | None, ignored("only the answer as a whole has a limit")] = None
    clear_thinking: Annotated[bool | None, ignored("the template decides what it shows")] = None


class ReasoningFields(GenerationFields, kw_only=True):
    """Fields of other servers that chat may have."""

    enable_thinking: Annotated[
        bool | None, taken("whether the model reasons, for templates that can switch it")
    ] = None
    thinking: Annotated[ThinkingOptions | None, taken("whether the model reasons")] = None
    reasoning: Annotated[ReasoningOptions | None, taken("how the model reasons")] = None
    include_reasoning: Annotated[bool | None, refused("the whole reasoning is given", (True,))] = None
    thinking_budget: Annotated[int | None, ignored("only the answer as a whole has a limit")] = None
    reasoning_format: Annotated[
        str | None, refused("reasoning comes apart from the text", ("auto", "deepseek"))
    ] = None
    parse_tool_calls: Annotated[bool | None, refused("calls come apart from the text", (True,))] = None
    add_generation_prompt: Annotated[bool | None, refused("the model answers", (True,))] = None
    continue_final_message: Annotated[bool | None, refused("answers cannot be begun", (False,))] = None
    add_special_tokens: Annotated[bool | None, refused("the template has them", (False,))] = None


def thinking_variables(body: ReasoningFields, effort: str | None) -> dict[str, Any]:
    """The variables by which templates are told whether, and how much, the model reasons, in any of these forms."""
    effort = effort or (body.reasoning and body.reasoning.effort) or None
    told = [
        body.enable_thinking,
        None if body.thinking is None or body.thinking.type == "auto" else body.thinking.type != "disabled",
        None if body.reasoning is None else body.reasoning.enabled,
        None if effort is None else effort != "none",
    ]
    said = {each for each in told if each is not None}
    if len(said) > 1:
        raise InvalidRequestError("the request asks for reasoning, and for none", param="reasoning")
    return reasoning_variables(on=next(iter(said), None), effort=effort)
