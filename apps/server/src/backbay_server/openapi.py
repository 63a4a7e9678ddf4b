"""The description of all endpoints for tools, /openapi.json: made from the structs and the endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from typing import Any, Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .apis import ENDPOINTS
from .apis.endpoint import Endpoint
from .errors import ERRORS, error_form, error_status
from .transport.answers import PLAIN_TEXT

Schema: TypeAlias = Mapping[str, Any]
_REFERENCE: Final = "#/components/schemas/{name}"
_TEXT: Final[Schema] = {"type": "string"}
FORM: Final = "multipart/form-data"


def openapi_document(endpoints: Iterable[Endpoint[Any]]) -> Schema:
    """The description, by OpenAPI 3.1."""
    listed = list(endpoints)
    kinds = [(each.body, each.answers, each.chunks, error_form(each.path)) for each in listed]
    unique = list(dict.fromkeys(kind for structs in kinds for kind in structs if kind is not None))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REFERENCE)
    files = (each for kind in components.values() for each in kind.get("properties", {}).values())
    for field in files:
        if field.pop("contentEncoding", None):  # only forms have bytes, which are sent as they are
            field["contentMediaType"] = "application/octet-stream"
    by_kind = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in listed:
        path = re.sub(r":\w+}", "}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, path, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "backbay", "version": metadata.version("backbay")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(endpoint: Endpoint[Any], path: str, schemas: Mapping[Any, Schema]) -> Schema:
    name = re.sub(r"\W+", "_", f"{endpoint.method.lower()}{path}").strip("_")
    found: dict[str, Any] = {"operationId": name, "summary": endpoint.summary}
    if names := re.findall(r"{(\w+)}", path):
        place = {"in": "path", "required": True, "schema": _TEXT}
        found["parameters"] = [{"name": each, **place} for each in names]
    if endpoint.body is not None:
        content = _content(FORM if endpoint.form else "application/json", schemas[endpoint.body])
        found["requestBody"] = {"required": True, "content": content}
    answer = _content("application/json", schemas[endpoint.answers])
    if endpoint.chunks is not None:
        answer |= _content(endpoint.stream_type, schemas[endpoint.chunks])
    if endpoint.plain:
        answer |= _content(PLAIN_TEXT, _TEXT)
    form = _content("application/json", schemas[error_form(path)])
    found["responses"] = {"200": {"description": "the answer", "content": answer}, **_failures(path, form)}
    return found


def _failures(path: str, form: Schema) -> Mapping[str, Schema]:
    """The errors that any endpoint may give, by status."""
    found = {}
    for error in ERRORS:
        told = (error.__doc__ or "").partition("\n")[0]
        found[str(error_status(error, error_form(path)))] = {"description": told, "content": form}
    return found


def _content(media_type: str, schema: Schema) -> dict[str, Any]:
    return {media_type: {"schema": schema}}


@cache
def _document() -> bytes:
    return msgspec.json.encode(openapi_document(ENDPOINTS)).replace(b"backbay_server.apis.", b"")


async def show_document(request: Request) -> Response:
    """Describe all endpoints."""
    return Response(_document(), media_type="application/json")


ROUTE: Final = Route("/openapi.json", show_document)
