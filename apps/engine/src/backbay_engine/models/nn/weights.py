"""The tensors of a file, bound by name; one error lists all that are missing or do not fit."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import final

from backbay import BackbayError, Backend, DType, ModelFileError, Tensor
from backbay.gguf import TensorInfo, nearest

from ..keys import BLOCK_COUNT, PREDICTING_BLOCKS
from .adaptation import Adapt, adaptations_of

log = logging.getLogger(__name__)
_LISTED = 12  # names in a message
FLOATS = tuple(dtype for dtype in DType if dtype.is_float)
WEIGHTS = tuple(dtype for dtype in DType if dtype.is_float or dtype.is_quantized)
_BLOCK = re.compile(r"blk\.([0-9]+)\.")


@dataclass
class _Asked:
    """The tensors that were asked for, in all scopes of one file."""

    used: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    unfit: list[tuple[str, str, TensorInfo]] = field(default_factory=list)  # what was expected, and found


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

    def need(
        self,
        name: str,
        *shape: int | None,
        or_else: Iterable[str] = (),
        dtypes: Collection[DType] | None = None,
    ) -> Tensor:
        """The tensor of this name, or of the first name in `or_else` that the file has."""
        if not any(each in self for each in (name, *or_else)):
            self._asked.missing.append(f"{self.prefix}{name} {_text(shape)}")
        return self.maybe(name, *shape, or_else=or_else, dtypes=dtypes)  # type: ignore[return-value]

    def maybe(
        self,
        name: str,
        *shape: int | None,
        or_else: Iterable[str] = (),
        dtypes: Collection[DType] | None = None,
    ) -> Tensor | None:
        """The tensor, or None if the file does not have it.

        Without `dtypes`, a tensor of rank 1 must be of floats, and any other of floats or quantized.
        """
        allowed = dtypes or (FLOATS if len(shape) < 2 else WEIGHTS)
        for each in (name, *or_else):
            full = self.prefix + each
            info = self._model.tensors.get(full)
            if info is not None:
                self._asked.used.add(full)
                return self.backend.get(full) if self._fits(info, shape, allowed) else None
        return None

    def adaptable(self, name: str, weight: Tensor) -> Adapt:
        """Declare a matrix, by the name that adapters use; gives the change of its products."""
        return adaptations_of(self.backend).declare(self.prefix + name, weight)

    def extent(self, name: str, dim: int) -> int | None:
        """An extent of a tensor, without asking for the tensor; None if the file does not have it."""
        info = self._model.tensors.get(self.prefix + name)
        if info is None:
            return None
        return info.shape[dim] if dim < len(info.shape) else 1

    def require(self) -> None:
        """Raise ModelFileError for tensors that are missing or do not fit."""
        asked, have = self._asked, self._model.tensors
        if asked.missing:
            first = asked.missing[0].partition(" ")[0]
            found = f"none of them among {len(have)} tensors{nearest(first, have)}"
            raise ModelFileError(self._model.path, None, f"the tensors {_listed(asked.missing)}", found)
        if asked.unfit:
            wanted, have_instead, (info, *_) = zip(*asked.unfit, strict=True)
            raise ModelFileError(info.path, info.declared_at, _listed(wanted), _listed(have_instead))

    def check(self) -> None:
        """Raise ModelFileError for tensors that are missing, do not fit, or lie in blocks that the file denies; log
        the tensors that nobody asked for, unless the model is only measured. Blocks that predict need no one to ask.
        """
        self.require()
        left = [name for name in self._model.tensors if name not in self._asked.used]
        if BLOCK_COUNT.name in self.config:
            count = BLOCK_COUNT.of(self.config)
            if beyond := _of_blocks(left, count):  # answers without the last blocks are garbage
                raise BLOCK_COUNT.refuse(
                    self.config, f"a count that includes the blocks of {_listed(beyond)}"
                )
            predicting = _of_blocks(left, count - PREDICTING_BLOCKS.of(self.config, 0))
            left = [name for name in left if name not in predicting]
        if left and self.backend.params.alloc_memory:
            log.warning("%s: nothing uses the tensors %s", self._model.path, _listed(left))

    def _fits(self, info: TensorInfo, shape: tuple[int | None, ...], dtypes: Collection[DType]) -> bool:
        fits = _equal(info.shape, shape)
        typed = info.dtype in dtypes
        if not (fits and typed):
            expected, found = f"{info.name} {_text(shape)}", _text(info.shape)
            if not typed:
                kinds = "floats or quantized" if dtypes is WEIGHTS else " or ".join(map(str, dtypes))
                expected, found = f"{expected} of {kinds}", f"{found} of {info.dtype}"
            self._asked.unfit.append((expected, found, info))
        return fits and typed


def _of_blocks(names: Iterable[str], first: int) -> list[str]:
    """The names that belong to block `first` or a later one."""
    return [name for name in names if (block := _BLOCK.match(name)) and int(block[1]) >= first]


def _equal(have: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether two shapes are equal, trailing ones ignored and None equal to any extent above 0."""
    pairs = zip_longest(have, wanted, fillvalue=1)
    return all(n == want if want is not None else n is not None and n > 0 for n, want in pairs)


def _text(shape: Iterable[int | None]) -> str:
    return f"[{', '.join('1 or more' if n is None else str(n) for n in shape)}]"


def _listed(texts: Iterable[str]) -> str:
    names = list(texts)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
