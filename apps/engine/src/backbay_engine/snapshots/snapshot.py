"""Snapshots: a conversation at one moment, the fingerprint of its model, and the options with which its answer goes on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from backbay.gguf import ModelFile

from ..arguments import AdapterMix
from ..cache.cells.contents import CacheContents
from ..errors import DamagedSnapshotError, RequestError, SnapshotError
from ..runner.requests.request import Generate, GenerationOptions
from ..text.formats import ResponseFormat
from ..text.sampling import SamplingParams
from . import tensor_file
from .saved_rows import RowsSpan, checked_spans, packed_prompt, unpacked_prompt

TOKENS, PROMPT = "tokens", "prompt"
CACHE = "cache."
SAMPLE: Final = 4096  # bytes of a tensor, for the fingerprint
_OPTIONS: Final = [
    each.name
    for each in fields(GenerationOptions)
    if each.name not in ("sampling", "constraint", "transcript")
]
_SAMPLING: Final = [each.name for each in fields(SamplingParams)]


@final
@dataclass(frozen=True, eq=False)
class Snapshot:
    """A conversation, which goes on with `llm.submit(snapshot.prompt, **snapshot.options)` once it is restored.

    model     the fingerprint of the model: only the same weights can go on
    tokens    the tokens that the cache holds; a placeholder for each row of the caller's own
    rows      the places of these rows among them
    contents  what it holds of them
    exact     how many of them are as if computed anew: those after them have seen tokens that are forgotten
    prompt    the prompt of the request, ids or parts of ids and Rows; of a prompt that was saved, this prompt
    options   the options of the request, with its seed, and in `resume` the tokens of its answer so far
    adapters  the fingerprints of the adapters that computed the contents, with their scales
    notes     facts of the caller's, such as the messages of a chat; plain JSON
    """

    model: str
    tokens: tuple[int, ...]
    contents: CacheContents = field(default_factory=CacheContents, repr=False)
    exact: int | None = None
    prompt: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    adapters: AdapterMix = ()
    rows: tuple[RowsSpan, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of keys, values and states."""
        return sum(array.nbytes for array in self.contents.arrays.values())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file of safetensors, whole or not at all."""
        tensor_file.write_file(Path(path), self.to_bytes())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file; SnapshotError if it cannot be read, DamagedSnapshotError unless it is as it was written."""
        try:
            data = tensor_file.read_file(path)
        except OSError as error:
            raise SnapshotError(f"{path}: the snapshot cannot be read: {error.strerror or error}") from error
        return cls.from_bytes(data, path)

    def to_bytes(self) -> bytearray:
        prompt, given, begins = packed_prompt(self.prompt)
        arrays = {TOKENS: np.array(self.tokens, "<i4"), PROMPT: prompt, **given}
        arrays |= {CACHE + name: array for name, array in self.contents.arrays.items()}
        facts: dict[str, Any] = {
            "model": self.model,
            "exact": self.exact,
            "numbers": dict(self.contents.numbers),
            "options": encode_options(self.options),
            "notes": dict(self.notes),
            "adapters": [[each, repr(scale)] for each, scale in self.adapters],
        }
        if begins or self.rows:
            facts |= {"rows": [astuple(span) for span in self.rows], "prompt_rows": begins}
        return tensor_file.pack_tensors(arrays, facts)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, where: object = "a snapshot") -> Self:
        arrays, facts = tensor_file.unpack_tensors(data, where)
        try:
            held = {name[len(CACHE) :]: array for name, array in arrays.items() if name.startswith(CACHE)}
            tokens = _ids(arrays[TOKENS])
            return cls(
                str(facts["model"]),
                tokens,
                CacheContents(held, {str(name): int(number) for name, number in facts["numbers"].items()}),
                None if facts["exact"] is None else max(0, int(facts["exact"])),
                unpacked_prompt(_ids(arrays[PROMPT]), arrays, facts.get("prompt_rows", ())),
                decode_options(facts["options"]),
                dict(facts["notes"]),
                tuple((str(each), float(scale)) for each, scale in facts.get("adapters", ())),
                checked_spans(facts.get("rows", ()), len(tokens)),
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            told = f"{where}: the snapshot is damaged, or of another version: {error!r}"
            raise DamagedSnapshotError(told) from None


def _ids(array: NDArray[Any]) -> tuple[int, ...]:
    if array.dtype != np.int32 or array.ndim != 1:
        raise TypeError(f"{array.dtype} of {array.shape} are no row of token ids")
    return tuple(array.tolist())


def model_fingerprint(model: ModelFile) -> str:
    """A digest of the architecture's metadata, and of the names, dtypes, shapes and first bytes of all tensors.

    Models that were trained on from another may have nearly all of their tensors in common. No path is in it.
    """
    metadata = model.metadata
    digest = hashlib.sha256(repr(metadata.architecture).encode())
    for key in sorted(metadata):
        if key.startswith(f"{metadata.architecture}."):
            digest.update(repr((key, np.asarray(metadata[key]).tolist())).encode())
    for name in sorted(model.tensors):
        info = model.tensors[name]
        digest.update(repr((name, info.dtype.name, info.shape)).encode())
        first = next(iter(model.chunks(name)), None)
        digest.update(b"" if first is None else first[:SAMPLE].tobytes())
    return digest.hexdigest()[:32]


# -- options ------------------------------------------------------------------------------------------------


def continuation_options(request: Generate, seed: int, answer: Sequence[int]) -> dict[str, Any]:
    """The options with which a request goes on after these tokens of its answer, by name."""
    options = request.options
    if options.constraint is not None and options.response_format is None:
        raise RequestError(
            "a request with a constraint of your own cannot be saved: its object stays here; use response_format"
        )
    own = {name: getattr(options, name) for name in _OPTIONS}
    own["shown"] = tuple(sorted(options.shown))
    sampling = {name: getattr(options.sampling, name) for name in _SAMPLING}
    sampling["logit_bias"] = dict(options.sampling.logit_bias)
    return {**own, **sampling, "seed": seed, "resume": tuple(answer)}


def encode_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON holds them."""
    plain = dict(options)
    if "adapter" in plain:
        plain["adapter"] = {name: repr(float(scale)) for name, scale in plain["adapter"]}
    wanted, bias = plain.get("response_format"), plain.get("logit_bias")
    if isinstance(wanted, ResponseFormat):
        plain["response_format"] = [wanted.kind, wanted.text]
    if bias is not None:
        plain["logit_bias"] = [[int(id), repr(float(value))] for id, value in bias.items()]
    return plain


def decode_options(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Options as `submit` takes them."""
    options = dict(plain)
    wanted, bias = options.get("response_format"), options.get("logit_bias")
    if wanted is not None:
        options["response_format"] = ResponseFormat(*wanted)
    if bias is not None:
        options["logit_bias"] = {id: float(value) for id, value in bias}
    if "adapter" in options:
        options["adapter"] = tuple((name, float(scale)) for name, scale in options["adapter"].items())
    for name in ("stop", "resume", "shown"):
        if name in options:
            options[name] = tuple(options[name])
    return options
