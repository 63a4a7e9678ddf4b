"""Writes docs/reference/api.md: every name that backbay promises, with its signature. `make api` runs it."""

import ast
import enum
import inspect
import sys
import typing
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType

from backbay import ops
from backbay.discovery.registration import is_final
from backbay.plugin import Backend, BackendHooks

DOORS = {
    "backbay": "For those who run models and graphs.",
    "backbay.plugin": "For backend authors.",
    "backbay.kernels": "For authors of backends over arrays of other libraries.",
    "backbay.discovery": "For packages that have an entry-point group of their own.",
    "backbay.gguf": "For those who read model files.",
    "backbay.cli": "For packages that add commands, in the entry-point group `backbay.commands`.",
    "backbay_engine": "For those who run language models.",
    "backbay_engine.plugin": "For authors of model architectures.",
    "backbay_server": "For those who run the server from Python.",
    "backbay_conformance": "For those who run the conformance suite from Python.",
    "backbay_conformance.plugin": "For authors of cases and scenarios.",
}
OPS = "The ops are in [ops.md](ops.md). These classes are the types of their attributes."
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
INTRODUCTION = """\
# The public names

Made by `make api`; do not edit it by hand. Only these names are promised, and the ops of [ops.md](ops.md). A test
compares this page with the code: a name that is added raises the contract's minor version, a name that is changed or
removed its major version (`core/src/backbay/types/contract_version.py`).

A method marked `implement` is abstract. A method marked `override` may be overridden by a plugin. All other methods of
a backend are final."""


def page() -> str:
    """The whole page."""
    seen: dict[int, str] = {}
    parts = [INTRODUCTION]
    for name, readers in DOORS.items():
        module = import_module(name)
        lines = [line for key in sorted(_names_of(module)) for line in _described(module, key, seen)]
        parts.append(f"## {name}\n\n{readers}\n\n```text\n" + "\n".join(lines) + "\n```")
    records = [line for key in _attribute_types() for line in _described(ops, key, seen)]
    parts.append(f"## backbay.ops\n\n{OPS}\n\n```text\n" + "\n".join(records) + "\n```")
    return "\n\n".join(parts) + "\n"


def _names_of(module: ModuleType) -> list[str]:
    """The names of a door: those of `__all__`, or those that it imports under their own name."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    tree = ast.parse(inspect.getsource(module))
    imported = (each for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names)
    return [each.name for each in imported if each.asname == each.name]


def _attribute_types() -> list[str]:
    """The classes that the families of ops define for attributes."""
    return sorted(
        name
        for name, value in vars(ops).items()
        if isinstance(value, type) and value.__module__ in {family.__name__ for family in _families()}
    )


def _families() -> list[ModuleType]:
    return [value for value in vars(ops).values() if isinstance(value, ModuleType)]


def _described(module: ModuleType, name: str, seen: dict[int, str]) -> list[str]:
    value = getattr(module, name)
    known = seen.get(id(value))
    if known is not None and not isinstance(value, (int, str)):
        return [f"{name}: see {known}"]
    seen[id(value)] = module.__name__
    if isinstance(value, type):
        return [f"class {name}{_bases(value)}", *_members(value)]
    if inspect.isroutine(value):
        return [f"def {name}{_signature(value)}"]
    if isinstance(value, ModuleType):
        return [f"module {name}"]
    return [f"{name}: {_kind(value)}"]


def _kind(value: object) -> str:
    if isinstance(value, (int, str, tuple)):
        return f"{type(value).__name__} = {value}"
    if type(value).__module__ in ("types", "typing", "collections.abc"):  # a name for a type
        return f"type = {value}"
    return type(value).__name__


def _bases(kind: type) -> str:
    names = [base.__name__ for base in kind.__bases__ if base is not object]
    return f"({', '.join(names)})" if names else ""


def _members(kind: type) -> list[str]:
    if issubclass(kind, enum.Enum):
        return [f"    {', '.join(kind.__members__)}"]
    lines = []
    if "__init__" in vars(kind) or hasattr(kind, "__dataclass_fields__"):
        lines.append(f"    __init__{_signature(kind.__init__)}")
    if hasattr(kind, "_fields"):
        lines.append(f"    __new__{_signature(kind.__new__)}")
    if not hasattr(kind, "__dataclass_fields__") and not hasattr(
        kind, "_fields"
    ):  # a constructor's parameters
        lines += [f"    {name}: {annotation}" for name, annotation in sorted(_fields(kind).items())]
    lines += [f"    {_member(kind, key)}" for key in sorted(vars(kind)) if _is_method(kind, key)]
    return lines


def _fields(kind: type) -> dict[str, str]:
    """The public attributes of a class, and of the objects that its own constructor makes."""
    annotated = {name: str(_text(value)) for name, value in vars(kind).get("__annotations__", {}).items()}
    try:
        tree = ast.parse(dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return annotated
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            for name in getattr(target, "elts", [target]):
                if isinstance(name, ast.Attribute) and ast.unparse(name.value) == "self":
                    written = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else "..."
                    annotated.setdefault(name.attr, written)
    methods = {name for base in kind.__mro__ for name in vars(base) if callable(vars(base)[name])}
    return {
        name: text for name, text in annotated.items() if not name.startswith("_") and name not in methods
    }


def _is_method(kind: type, name: str) -> bool:
    value = inspect.getattr_static(kind, name)
    wrapped = isinstance(value, (property, classmethod, staticmethod)) or hasattr(value, "func")
    return not name.startswith("_") and (wrapped or inspect.isfunction(value))


def _member(kind: type, name: str) -> str:
    value = inspect.getattr_static(kind, name)
    mark = _mark(kind, name, value)
    if isinstance(value, property) or hasattr(value, "func"):
        getter = value.fget if isinstance(value, property) else value.func
        return f"{name}: {inspect.signature(getter).return_annotation}{mark}"
    if isinstance(value, (classmethod, staticmethod)):
        return f"{type(value).__name__} {name}{_signature(value.__func__)}{mark}"
    return f"{name}{_signature(value)}{mark}"


def _mark(kind: type, name: str, value: object) -> str:
    if not issubclass(kind, BackendHooks) or any(is_final(vars(base).get(name)) for base in Backend.__mro__):
        return ""
    return "  # implement" if getattr(value, "__isabstractmethod__", False) else "  # override"


class _Text(str):
    """An annotation or a default that prints as it is written."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(function: typing.Callable[..., object]) -> str:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return "(...)"
    parameters = [
        parameter.replace(annotation=_text(parameter.annotation), default=_default(parameter.default))
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=_text(signature.return_annotation)))


def _text(annotation: object) -> object:
    annotation = getattr(annotation, "__forward_arg__", annotation)
    return _Text(annotation) if isinstance(annotation, str) else annotation


def _default(value: object) -> object:
    """A default in a few words: an enum's member by its name, a record as a call."""
    if isinstance(value, enum.Enum):
        return _Text(f"{type(value).__name__}.{value.name}")
    if hasattr(value, "__dataclass_fields__"):
        return _Text(f"{type(value).__name__}(...)")
    if isinstance(value, tuple):
        return tuple(map(_default, value))
    if inspect.isfunction(value):
        return _Text("..." if value.__name__ == "<lambda>" else value.__name__)
    return value


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
