"""The places of the sources that a mutant can change, each with its mutant."""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SOURCES = ("core/src", "plugins/*/src", "conformance/src", "apps/*/src")
TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
TURNED |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
SWAPPED = {"+": "-", "-": "+", "*": "//", "//": "*", "/": "*", "%": "//", "**": "*", "<<": ">>", ">>": "<<"}
JOINED = {"and": "or", "or": "and"}
SYMBOL = re.compile(rb"\bis\s+not\b|\bnot\s+in\b|\b(?:is|in|and|or)\b|[<>=!]=|\*\*|//|<<|>>|[-<>+*/%&|^@]")
UNSWAPPED = {"max", "min", "cast", "isinstance", "issubclass", "NewType", "TypeVar"}  # no chance


@dataclass(frozen=True)
class Mutant:
    """One change of a file; `probe` is the expression that runs when the place runs."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int  # in bytes, as all that follow
    end: int
    probe: tuple[int, int]


class _Places(ast.NodeVisitor):
    """Collects the mutants of a file: only where running code can show them, so not in annotations or messages."""

    def __init__(self, path: str, text: bytes) -> None:
        self.path, self.text, self.mutants = path, text, list[Mutant]()
        self.lines = [0]
        for line in text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[
            node.end_lineno - 1
        ] + node.end_col_offset

    def add(self, kind: str, changed: tuple[int, int], after: str, probe: ast.AST) -> None:
        start, end = changed
        line = self.text.count(b"\n", 0, start) + 1
        before = self.text[start:end].decode()
        self.mutants.append(Mutant(self.path, line, kind, before, after, start, end, self.span(probe)))

    def replace_symbol(self, kind: str, start: int, end: int, turned: dict[str, str], probe: ast.AST) -> None:
        """A mutant of the operator that stands alone between two operands."""
        found = list(SYMBOL.finditer(self.text, start, end))
        if len(found) == 1 and b"#" not in self.text[start:end]:
            after = turned.get(" ".join(found[0].group().decode().split()))
            if after is not None:
                self.add(kind, found[0].span(), after, probe)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in pairwise([node.left, *node.comparators]):
            self.replace_symbol("comparison", self.span(left)[1], self.span(right)[0], TURNED, node)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        left, right = node.values[:2]
        self.replace_symbol("and, or", self.span(left)[1], self.span(right)[0], JOINED, node)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self.span(node)[0]
            self.add("not", (start, start + 3), "", node)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(_is_text(each) for each in (node.left, node.right)):
            self.replace_symbol("operator", self.span(node.left)[1], self.span(node.right)[0], SWAPPED, node)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self.add("constant", self.span(node), str(node.value + 1), node)
        elif type(node.value) is float:
            self.add("constant", self.span(node), repr(node.value * 2 or 1.0), node)

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        if {"TYPE_CHECKING", "__name__"} & _names(node.test):
            return
        if not any(isinstance(each, ast.NamedExpr) for each in ast.walk(node.test)):
            for value in ("False",) if isinstance(node, ast.While) else ("False", "True"):
                self.add("branch", self.span(node.test), value, node.test)
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        starred = any(isinstance(each, ast.Starred) for each in node.args[:2])
        if len(node.args) >= 2 and not starred and name not in UNSWAPPED:
            (start, left), (right, end) = map(self.span, node.args[:2])
            first, second = self.text[start:left], self.text[right:end]
            if first != second:
                swapped = second + self.text[left:right] + first
                self.add("arguments", (start, end), swapped.decode(), node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add("statement", self.span(node), "None", node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("statement", self.span(node), "None", node.value)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add("return", self.span(node.value), "None", node.value)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if "overload" not in set().union(*map(_names, node.decorator_list)):
            defaults = [each for each in node.args.defaults + node.args.kw_defaults if each is not None]
            for each in (*node.decorator_list, *defaults, *node.body):
                self.visit(each)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_match_case(self, node: ast.match_case) -> None:
        for each in (node.guard, *node.body):
            if each is not None:
                self.visit(each)

    def leave_out(self, node: ast.AST) -> None:
        """People read messages, an assert narrows types, and the parts of an f-string have no place before Python 3.12."""

    visit_Raise = visit_Assert = visit_JoinedStr = leave_out


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_text(node: ast.AST) -> bool:
    """Whether any other operator fails at once, as in `"%s" % x` and `[0] * n`."""
    text = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    return text or isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple))


def mutants_of(path: str, text: bytes) -> list[Mutant]:
    places = _Places(path, text)
    places.visit(ast.parse(text))
    return places.mutants


def all_mutants(root: Path) -> list[Mutant]:
    folders = [folder for source in SOURCES for folder in sorted(root.glob(source))]
    modules = [
        path for folder in folders for path in sorted(folder.rglob("*.py")) if "templates" not in path.parts
    ]
    return [
        mutant for path in modules for mutant in mutants_of(str(path.relative_to(root)), path.read_bytes())
    ]


def draw(mutants: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """Mutants at random, each kind as often as the others, no two of which change the same text."""
    chance, kinds = random.Random(seed), defaultdict[str, list[Mutant]](list)
    for mutant in mutants:
        kinds[mutant.kind].append(mutant)
    for each in kinds.values():
        chance.shuffle(each)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(kinds.values()):
        for kind in sorted(kinds):
            mutant = kinds[kind].pop() if kinds[kind] else None
            if mutant and len(drawn) < count and not any(_overlap(mutant, each) for each in drawn):
                drawn.append(mutant)
    return sorted(drawn, key=lambda mutant: (mutant.path, mutant.start))


def _overlap(a: Mutant, b: Mutant) -> bool:
    return a.path == b.path and a.start < b.end and b.start < a.end
