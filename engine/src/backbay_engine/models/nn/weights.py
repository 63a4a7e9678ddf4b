"""The tensors of a file, bound by name; one error lists all that are missing or have a wrong shape."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import final

from backbay import BackbayError, Backend, ModelFileError, Tensor
from backbay.gguf import nearest

log = logging.getLogger(__name__)
_LISTED = 12  # names in a message


@dataclass
class _Asked:
    """The tensors that were asked for, in all scopes of one file."""

    used: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    misshapen: list[tuple[str, str]] = field(default_factory=list)


@final
class Weights:
    """A file's tensors, as an architecture declares them; `at("blk.3.")` is the scope of a prefix.

    A shape follows each name, with None for an extent that the file decides. `need` only notes a missing tensor, and
    `check` raises: call it before the first use of a tensor.
    """

    def __init__(self, backend: Backend, prefix: str = "", asked: _Asked | None = None) -> None:
        if backend.model is None:
            raise BackbayError("the backend has no model: open it with the path of a file")
        self.backend, self.prefix = backend, prefix
        self.config = backend.config
        self._model = backend.model
        self._asked = asked if asked is not None else _Asked()

    def at(self, prefix: str) -> Weights:
        """The same file, with a further prefix of every name."""
        return Weights(self.backend, self.prefix + prefix, self._asked)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self._model.tensors

    def need(self, name: str, *shape: int | None, or_else: Iterable[str] = ()) -> Tensor:
        """The tensor of this name, or of the first name in `or_else` that the file has."""
        found = self.maybe(name, *shape, or_else=or_else)
        if found is None:
            self._asked.missing.append(f"{self.prefix}{name} {_text(shape)}")
        return found  # type: ignore[return-value]  # None only until `check` raises

    def maybe(self, name: str, *shape: int | None, or_else: Iterable[str] = ()) -> Tensor | None:
        """The tensor, or None if the file does not have it."""
        for each in (name, *or_else):
            full = self.prefix + each
            tensor = self.backend.get(full)
            if tensor is not None:
                self._asked.used.add(full)
                if not _fits(tensor.shape, shape):
                    self._asked.misshapen.append((f"{full} {_text(shape)}", _text(tensor.shape)))
                return tensor
        return None

    def extent(self, name: str, dim: int) -> int | None:
        """An extent of a tensor, without asking for the tensor; None if the file does not have it."""
        info = self._model.tensors.get(self.prefix + name)
        return info.shape[dim] if info is not None and dim < len(info.shape) else None

    def check(self) -> None:
        """Raise ModelFileError for missing and misshapen tensors; log the tensors that nobody asked for."""
        asked, have = self._asked, self._model.tensors
        if asked.missing:
            first = asked.missing[0].partition(" ")[0]
            found = f"none of them among {len(have)} tensors{nearest(first, have)}"
            raise ModelFileError(self._model.path, None, f"the tensors {_listed(asked.missing)}", found)
        if asked.misshapen:
            expected, found = (_listed(texts) for texts in zip(*asked.misshapen, strict=True))
            raise ModelFileError(self._model.path, None, expected, found)
        left = [name for name in have if name not in asked.used]
        if left:
            log.warning("%s: nothing uses the tensors %s", self._model.path, _listed(left))


def _fits(have: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether two shapes are equal, trailing ones ignored and None equal to any extent."""
    return all(want is None or n == want for n, want in zip_longest(have, wanted, fillvalue=1))


def _text(shape: Iterable[int | None]) -> str:
    return f"[{', '.join('?' if n is None else str(n) for n in shape)}]"


def _listed(texts: Iterable[str]) -> str:
    names = list(texts)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
