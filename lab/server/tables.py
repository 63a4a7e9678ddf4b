"""Writes the tables of docs/server.md, and docs/reference/server-fields.md: every endpoint, and every field with its use.

python lab/server/tables.py            write the tables
python lab/server/tables.py --check    exit with status 1 if a page differs
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from msgspec import inspect
from starlette.routing import Route

from backbay_server import app, command, errors
from backbay_server.apis import ENDPOINTS
from backbay_server.apis.endpoint import Endpoint
from backbay_server.apis.fields import field_uses

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (DOCS / "server.md", DOCS / "reference" / "server-fields.md")
PLACE = re.compile(r"(<!-- made by lab/server/tables.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
APIS = {
    "openai": "OpenAI's API",
    "anthropic": "Anthropic's API",
    "ollama": "Ollama's API",
    "llama_cpp": "llama.cpp's API",
}
Names = Mapping[type, str]  # where the table of a struct is


def options() -> Iterator[str]:
    """The options of `backbay serve`."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    yield from ("| option | meaning |", "|---|---|")
    for action in parser._actions[1:]:
        value = (
            ""
            if action.nargs == 0 or not action.option_strings
            else f" {action.metavar or action.dest.upper()}"
        )
        name = (action.option_strings or [action.dest.upper() + " ..."])[0]
        yield f"| `{name}{value}` | {_cell(action.help or '')} |"


def statuses() -> Iterator[str]:
    """The errors, by status."""
    found = {each.status: [] for each in _errors(errors.ApiError)}
    for each in _errors(errors.ApiError):
        found[each.status].append(each)
    yield from ("| status | type, code | cause |", "|---|---|---|")
    for status in sorted(found):
        for each in found[status]:
            code = f", `{each.code}`" if each.code else ""
            later = "" if each.retry_after is None else " With `Retry-After`."
            yield f"| {status} | `{each.type}`{code} | {_first_line(each)}{later} |"


def _errors(kind: type[errors.ApiError]) -> Iterator[type[errors.ApiError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _errors(each)


def endpoints() -> Iterator[str]:
    """The endpoints of all APIs, and those that belong to none."""
    for module, title in APIS.items():
        yield from (f"### {title}", "", *_endpoints(_of(module), _names()))
    yield from ("### The server itself", "", *_others())


def fields() -> Iterator[str]:
    """The fields of all bodies."""
    names, shown = _names(), set[type]()
    for module, title in APIS.items():
        yield from (f"### Bodies of {title}", "")
        for struct in _structs(_of(module)):
            if struct not in shown:
                yield from _table(struct, names)
            shown.add(struct)


def _of(module: str) -> list[Endpoint[Any]]:
    return [each for each in ENDPOINTS if f".apis.{module}." in each.handler.__module__]


def _names() -> Names:
    """The anchors that a page gives to its headings: equal ones are numbered."""
    found: dict[type, str] = {}
    for module in APIS:
        for struct in _structs(_of(module)):
            name = struct.__name__.lower()
            before = sum(each.__name__.lower() == name for each in found)
            found.setdefault(struct, f"{name}-{before}" if before else name)
    return found


def _structs(endpoints: Iterable[Endpoint[Any]]) -> list[type]:
    """The structs of bodies, each before those in it."""
    seen: list[type] = []

    def visit(struct: type) -> None:
        if struct not in seen:
            seen.append(struct)
            inside: list[type] = []
            for field in inspect.type_info(struct).fields:  # type: ignore[attr-defined]
                _type(field.type, {}, inside)
            for each in inside:
                visit(each)

    for endpoint in endpoints:
        if endpoint.body is not None:
            visit(_struct_of(endpoint.body))
    return seen


def _endpoints(endpoints: Iterable[Endpoint[Any]], names: Names) -> Iterator[str]:
    """A row for each handler; paths that are there with and without /v1 stand with it."""
    declared = {each.path for each in ENDPOINTS}
    yield from ("| endpoint | what it does | body |", "|---|---|---|")
    by_handler: dict[Any, list[Endpoint[Any]]] = {}
    for each in endpoints:
        if f"/v1{each.path}" not in declared:
            by_handler.setdefault(each.handler, []).append(each)
    for first, *others in by_handler.values():
        struct = None if first.body is None else _struct_of(first.body)
        body = "" if struct is None else f"[{struct.__name__}](#{names[struct]})"
        paths = _shown(first.method, (first.path, *(each.path for each in others)))
        yield f"| {paths} | {first.summary} | {body} |"
    yield ""


def _others() -> Iterator[str]:
    """The endpoints without a struct: the page, and what watches the server."""
    declared = {each.path for each in ENDPOINTS}
    yield from ("| endpoint | what it does |", "|---|---|")
    by_handler: dict[Any, list[str]] = {}
    for route in app().routes:
        if isinstance(route, Route) and route.path not in declared and not route.path.startswith("/page/"):
            by_handler.setdefault(route.endpoint, []).append(route.path)
    for handler, paths in by_handler.items():
        yield f"| {_shown('GET', paths)} | {_first_line(handler)} |"


def _shown(method: str, paths: Iterable[str]) -> str:
    return f"`{method} " + "`, `".join(map(_path, paths)) + "`"


def _struct_of(body: Any) -> type:
    """The struct of a body, which may be a list of them."""
    return _struct_of(get_args(body)[0]) if get_args(body) else body


def _table(struct: type, names: Names) -> Iterator[str]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    yield from (f"#### {struct.__name__}", "", _first_line(struct), "")
    yield from ("| field | type | use | |", "|---|---|---|---|")
    if info.tag_field is not None:
        yield f'| `{info.tag_field}` | "{info.tag}" | taken | tells this part from others |'
    by_name = field_uses(struct)
    for field in info.fields:
        use = by_name[field.encode_name]
        name = f"`{field.encode_name}`" + (", required" if field.required else "")
        shown = _type(field.type, names, [])
        yield f"| {name} | {shown} | {use.use} | {_cell(use.text + _spared(use.unless))} |"
    yield ""


def _spared(unless: tuple[Any, ...]) -> str:
    shown = ", ".join(f"`{value!r}`" for value in unless if value not in ([], ""))
    return f"; {shown} is accepted" if shown else ""


def _type(kind: inspect.Type, names: Names, found: list[type]) -> str:
    """A type in words; structs are links, and are added to `found`."""
    match kind:
        case inspect.Metadata():
            return _type(kind.type, names, found)
        case inspect.UnionType():
            shown = [
                _type(each, names, found) for each in kind.types if not isinstance(each, inspect.NoneType)
            ]
            return " or ".join(dict.fromkeys(shown))
        case inspect.StructType():
            found.append(kind.cls)
            return f"[{kind.cls.__name__}](#{names.get(kind.cls)})"
        case inspect.ListType():
            return f"list of {_type(kind.item_type, names, found)}"
        case inspect.LiteralType():
            return ", ".join(f'"{value}"' for value in kind.values)
        case inspect.IntType() | inspect.FloatType():
            name = "integer" if isinstance(kind, inspect.IntType) else "number"
            return name + _range(kind)
        case inspect.StrType():
            return "text"
        case inspect.BytesType():
            return "file"
        case inspect.BoolType():
            return "boolean"
        case inspect.DictType():
            return "object"
        case _:
            return "any"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    bounds = ((kind.ge, "from"), (kind.gt, "above"), (kind.le, "to"), (kind.lt, "below"))
    return "".join(f" {word} {_number(bound)}" for bound, word in bounds if bound is not None)


def _number(bound: float) -> str:
    """A bound; those of 64 bits as powers of two."""
    if abs(bound) < 2**32:
        return f"{bound:g}"
    return f"-2^{(-int(bound)).bit_length() - 1}" if bound < 0 else f"2^{int(bound).bit_length()} - 1"


def _path(path: str) -> str:
    return re.sub(r":\w+}", "}", path)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").partition("\n")[0]


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "options": options,
    "statuses": statuses,
    "endpoints": endpoints,
    "fields": fields,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    differs = False
    for page in PAGES:
        held = page.read_text()
        made = PLACE.sub(lambda found: found[1] + "\n".join([*TABLES[found[2]](), found[3]]), held)
        differs = differs or made != held
        if not check:
            page.write_text(made)
    return int(check and differs)


if __name__ == "__main__":
    sys.exit(main())
