"""The page at /: a chat, and the server's state. Plain files, nothing from elsewhere."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
NAMES = (
    "index.html",
    "page.css",
    "page.js",
    "attachments.js",
    "recorder.js",
    "chat.js",
    "answers.js",
    "answer_view.js",
    "comparison.js",
    "conversations.js",
    "elements.js",
    "markdown.js",
    "state.js",
    "icon.svg",
    "libraries/highlight.js",
    "libraries/markdown-it.js",
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"  # no text becomes HTML or a script
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def routes() -> list[Route]:
    return [
        _route("/" if name == "index.html" else f"/page/{name}", name, (files(__name__) / name).read_bytes())
        for name in NAMES
    ]


def _route(path: str, name: str, content: bytes) -> Route:
    tag = f'"{sha256(content).hexdigest()[:16]}"'
    kind = KINDS[name.rpartition(".")[2]]

    async def show(request: Request) -> Response:
        """The page: a chat, and the server's state."""
        headers = {**HEADERS, "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return Route(path, show)
