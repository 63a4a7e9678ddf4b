"""Errors as clients see them: a class for each status, and the engine's errors among them."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Final, TypeAlias

from msgspec import UNSET, Struct, UnsetType, json
from starlette.responses import Response
from starlette.types import Scope

from backbay import CancelledError, ClosedError, OptionError
from backbay_engine import (
    ContextOverflowError,
    DeadlineError,
    QueueFullError,
    RequestError,
    ResponseFormatError,
    TemplateError,
    TokenizerError,
    ToolsError,
)

log = logging.getLogger(__name__)
SOON: Final = 1  # seconds after which a client may try again
REQUEST_ID: Final = "backbay_request_id"  # of a scope


class ApiError(Exception):
    """What goes wrong with a request, as its client is told.

    param    the field of the request that is wrong
    details  more members of the error's body
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    retry_after: ClassVar[int | None] = None  # seconds

    def __init__(self, message: str, *, param: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message, self.param, self.details = message, param, details


class InvalidRequestError(ApiError):
    """The request is malformed, out of range, or asks for what the server cannot do."""

    status, type = 400, "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """The prompt is longer than the model's context."""

    code = "context_length_exceeded"


class AuthenticationError(ApiError):
    """The request has no key, or a wrong one."""

    status, type, code = 401, "invalid_request_error", "invalid_api_key"


class ForbiddenError(ApiError):
    """The request comes from a page, or names a host, that the server does not serve."""

    status, type = 403, "permission_error"


class RouteNotFoundError(ApiError):
    """The server has no such path."""

    status, type = 404, "invalid_request_error"


class ModelNotFoundError(ApiError):
    """The server has no model of this name."""

    status, type, code = 404, "invalid_request_error", "model_not_found"


class MethodNotAllowedError(ApiError):
    """The path is there, and takes other methods."""

    status, type = 405, "invalid_request_error"


class RequestTooLargeError(ApiError):
    """The request is larger than the server takes."""

    status, type = 413, "invalid_request_error"


class BusyError(ApiError):
    """As many requests wait as may wait."""

    status, type, code, retry_after = 429, "rate_limit_error", "rate_limit_exceeded", SOON


class ServerError(ApiError):
    """The server failed; the request was all right."""


class UnavailableError(ApiError):
    """The model is being loaded, or the server is about to end."""

    status, type, retry_after = 503, "server_error", SOON


ERRORS: Final[tuple[type[ApiError], ...]] = (
    InvalidRequestError,
    AuthenticationError,
    ForbiddenError,
    ModelNotFoundError,
    RequestTooLargeError,
    BusyError,
    ServerError,
    UnavailableError,
)
"""Those that any endpoint may give."""


# -- the engine's errors ---------------------------------------------------------------------------------


def api_error(error: BaseException) -> ApiError:
    """The error for the client. Only what the client can mend is told in detail."""
    match error:
        case ApiError():
            return error
        case ContextOverflowError():
            return ContextLengthError(
                f"This model's maximum context length is {error.context} tokens. However, your messages resulted in "
                f"{error.prompt_tokens} tokens. Please reduce the length of the messages.",
                n_prompt_tokens=error.prompt_tokens,
                n_ctx=error.context,
            )
        case QueueFullError() | DeadlineError():
            return BusyError(str(error))
        case ResponseFormatError():
            return InvalidRequestError(f"response_format: {error.reason}", param="response_format")
        case ToolsError():
            return InvalidRequestError(str(error), param="tools")
        case RequestError() | OptionError() | TemplateError() | TokenizerError():
            return InvalidRequestError(str(error))
        case ClosedError() | CancelledError():
            return UnavailableError("the model is leaving; try again later")
        case _:
            log.error("a request failed", exc_info=error)
            return ServerError(f"the server failed with {type(error).__name__}; its log says more")


# -- bodies ----------------------------------------------------------------------------------------------


class OpenAIDetails(Struct, omit_defaults=True):
    """What is wrong. Both counts of tokens are there if the prompt is too long."""

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class OpenAIErrorBody(Struct):
    """An error of OpenAI's API."""

    error: OpenAIDetails


class AnthropicDetails(Struct):
    """What is wrong."""

    type: str
    message: str


class AnthropicErrorBody(Struct, tag="error", tag_field="type"):
    """An error of Anthropic's API."""

    error: AnthropicDetails
    request_id: str | None = None


class OllamaErrorBody(Struct):
    """An error of Ollama's API."""

    error: str


ErrorBody: TypeAlias = OpenAIErrorBody | AnthropicErrorBody | OllamaErrorBody
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_form(path: str, *, anthropic: bool = False) -> type[ErrorBody]:
    """The form of the API to which a path belongs; `anthropic`: the request names a version of Anthropic's."""
    if path.startswith("/v1/messages") or path == "/v1/complete" or (anthropic and path.startswith("/v1/")):
        return AnthropicErrorBody
    return OllamaErrorBody if path.startswith("/api/") else OpenAIErrorBody


def names_anthropic(scope: Scope) -> bool:
    """Whether a request comes from a client of Anthropic's, by its header."""
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def _form_for(scope: Scope) -> type[ErrorBody]:
    return error_form(scope["path"], anthropic=names_anthropic(scope))


def error_status(kind: type[ApiError], form: type[ErrorBody]) -> int:
    """The status of an error: 529 where Anthropic's clients are told to wait."""
    return 529 if issubclass(kind, BusyError) and form is AnthropicErrorBody else kind.status


def error_body(error: ApiError, scope: Scope) -> bytes:
    """The body of an error, in the form of the API whose path was asked for."""
    form = _form_for(scope)
    if form is AnthropicErrorBody:
        kind = _ANTHROPIC_TYPES.get(error_status(type(error), form), "invalid_request_error")
        return json.encode(AnthropicErrorBody(AnthropicDetails(kind, error.message), scope.get(REQUEST_ID)))
    if form is OllamaErrorBody:
        return json.encode(OllamaErrorBody(error.message))
    told = OpenAIDetails(error.message, error.type, error.param, error.code, **error.details)
    return json.encode(OpenAIErrorBody(told))


def error_response(error: ApiError, scope: Scope) -> Response:
    """The answer to a request that goes wrong; an ASGI application."""
    status = error_status(type(error), _form_for(scope))
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return Response(error_body(error, scope), status, headers, "application/json")
