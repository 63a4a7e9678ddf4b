"""The contract of models with encoders: how a family prepares pictures or sound, places them in a text, and encodes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, DType, ModelFileError, Tensor
from backbay.gguf import ModelFile

from ..errors import RequestError
from ..steps.leaves import Leaves
from ..text.tokenizers import Tokenizer

Modality: TypeAlias = Literal["image", "audio"]
NOUNS: Final[dict[Modality, str]] = {"image": "a picture", "audio": "a sound"}

WITH_ENCODERS = (
    *("gemma3", "llama4", "mistral3", "mllama", "phi4mm"),
    *("qwen25vl", "qwen2vl", "qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe", "whisper"),
)
"""Architectures of text models that have encoders of families of their own."""


@dataclass(frozen=True, eq=False)
class MediaPlace:
    """A picture's or a sound's place in a prompt: what the reference's processor makes of the bare placeholder."""

    ids: NDArray[np.int32]
    """The tokens, (n,); a token that a row replaces has the placeholder's id. None at all: the next token of the prompt
    carries the place.
    """
    replaced: NDArray[np.bool_]
    """(n,): whether a row stands for the token; rows come in their order. None is True if `crosses`."""
    before: str = ""
    """Text before the ids. The reference expands the text, then tokenizes it: a tokenizer takes `before` together with
    the prompt's text that precedes it, and alone where ids or pictures precede it.
    """
    numbered: bool = False
    """Whether `before` has a place, {}, for the picture's number in the prompt, from 0."""
    after: str = ""
    """Text after the ids, to be tokenized together with the prompt's text that follows."""
    sees_itself: bool = False
    """The replaced tokens see each other in both directions: they are one span of one step."""
    positions: NDArray[np.int32] | None = None
    """(n, 3): M-RoPE's positions (time, row, column) of the ids, from 0 for the first; None: each id is one further."""
    advance: int = 0
    """How far the text's position moves over the ids; n without `positions`."""
    crosses: bool = False
    """The rows go to cross attention, not into the text."""
    visible: int | None = None
    """The first rows, which text after the picture sees; the others are padding. None: all rows."""


@final
class EncoderInputs:
    """Pieces of one shape, as leaves of a traced encoder: filled again with each group of pieces of the shape.

    A piece is what a family's `pieces` gives: a picture, or a part of a sound.
    """

    def __init__(self, ctx: Context, pieces: Sequence[Any]) -> None:
        self._leaves = Leaves(ctx, pieces, "EncoderFamily.key")

    @property
    def first(self) -> Any:
        """The first piece; a graph may depend on its shape, never on its values."""
        return self._leaves.data[0]

    @property
    def count(self) -> int:
        return len(self._leaves.data)

    def leaf(
        self, name: str, function: Callable[[Sequence[Any]], NDArray[Any]], dtype: DType | None = None
    ) -> Tensor:
        """A leaf that each group fills with `function(pieces)`: i32 for integers, else f32, or `dtype`.

        The leaf's shape is the array's, reversed. Asking for a name again gives the same leaf.
        """
        return self._leaves.leaf(name, function, dtype)

    def fill(self, pieces: Sequence[Any]) -> None:
        """Fill the leaves with as many other pieces of the same shape."""
        self._leaves.fill(pieces)


class EncoderNetwork(ABC):
    """The forward pass of an encoder, over the weights of one backend: a start, blocks, and an end.

    An encoder may compute the parts one by one, so that other work gets its turn in between. Parts are made of
    `inputs` and of the state alone: what else depends on the pieces makes the graph wrong for the next ones.
    """

    width: int
    """The features of the state."""
    blocks: int
    keeps: tuple[int, ...] = ()
    """The states that `finish` takes beside the last block's output: those before these blocks; `blocks` is the last."""

    @abstractmethod
    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        """The state before the first block, (width, positions of all pieces)."""

    @abstractmethod
    def block(self, ctx: Context, layer: int, x: Tensor, inputs: EncoderInputs) -> Tensor:
        """The state after a block."""

    @abstractmethod
    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        """The rows of all pieces, (width of the text, rows), piece by piece."""


class Prepared(Protocol):
    """A picture or a sound as an encoder takes it: its class has the values, and what else describes it."""

    @property
    def tokens(self) -> int:
        """Rows that the encoder makes."""
        ...

    @property
    def family(self) -> str:
        """The name of the preparation."""
        ...

    @property
    def content(self) -> bytes:
        """A digest of the values and of all that describes them: what is equal has equal rows."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        ...


P = TypeVar("P", bound=Prepared)


class EncoderFamily(ABC, Generic[P]):
    """A family of encoders, made from the header of the file that holds one; it holds no weights."""

    modality: ClassVar[Modality]
    placeholder: ClassVar[str]
    """The text by which a chat template marks a picture or a sound."""
    framed: ClassVar[str] = ""
    """The same with the marks around it, where templates write marks that belong to the place."""
    marker: ClassVar[str]
    """The text that stands for it in the template of a model that knows none."""
    texts: ClassVar[tuple[str, ...]] = ()
    """The architectures of its text models; none: all but those that have encoders of their own."""
    crosses: ClassVar[bool] = False
    """Whether the rows go to cross attention."""
    projections: ClassVar[tuple[str, ...]] = ()
    """The matrix that gives rows, by its names."""
    span: int = 0
    """Rows of the longest run of tokens that see each other, which one step must hold; 0: none do."""
    further: int = 0
    """The vectors of a row beside the first, which the text adds to the results of its first blocks."""

    def __init__(self, file: ModelFile) -> None:
        self.file, self.config = file, file.metadata

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the preparation."""

    @property
    def width(self) -> int:
        """The features of a row."""
        return self.vector * (1 + self.further)

    @property
    def vector(self) -> int:
        """The text model's width."""
        return self.extent(1, *self.projections)

    def extent(self, dim: int, *names: str) -> int:
        """An extent of the first of these tensors that the file has: 1 beyond its dimensions, 0 if it has none."""
        tensors = (self.file.tensors[name] for name in names if name in self.file.tensors)
        tensor = next(tensors, None)
        if tensor is None:
            return 0
        return tensor.shape[dim] if dim < len(tensor.shape) else 1

    @abstractmethod
    def prepared(self, given: Any, /) -> P:
        """A picture or a sound, as users give it, as the encoder takes it."""

    @abstractmethod
    def check_prepared(self, given: P, /) -> None:
        """ImageError or AudioError if it was prepared for another model, or no preparation makes it."""

    @abstractmethod
    def place(self, prepared: P, /, tokenizer: Tokenizer) -> MediaPlace:
        """Its place in a prompt."""

    def beside(self, prepared: P, _others: Collection[Modality], /) -> P:
        """The same in a prompt that has these modalities, too; some families make other rows of it there."""
        return prepared

    def placed(self, prepared: P, /, tokenizer: Tokenizer | None) -> MediaPlace:
        """Its place in a prompt; RequestError if the model has no vocabulary, and the place needs tokens."""
        if tokenizer is None:
            raise RequestError(
                f"the file has no vocabulary, so there are no tokens that stand for {self.noun}"
            )
        return self.place(prepared, tokenizer)

    def pieces(self, prepared: P, /) -> Sequence[Any]:
        """The pieces that are encoded by themselves, and whose rows `joined` puts together."""
        return [prepared]

    def joined(self, _prepared: P, rows: Sequence[NDArray[np.float32]], /) -> NDArray[np.float32]:
        """The rows of a picture or a sound, of those of its pieces."""
        return np.concatenate(rows)

    @abstractmethod
    def cost(self, piece: Any, /) -> int:
        """The positions of a piece in the encoder: what its encoding costs."""

    @abstractmethod
    def key(self, piece: Any, /) -> Hashable:
        """Pieces of one key have one graph, and may be encoded together."""

    @abstractmethod
    def network(self, backend: Backend) -> EncoderNetwork:
        """The forward pass, its tensors found and checked; the weights need not be loaded."""

    @abstractmethod
    def largest(self) -> P:
        """What has the largest piece, for reserving."""

    @abstractmethod
    def smallest(self) -> P:
        """What has the smallest, for reserving: backends may compute few positions in another way than many."""

    def check_text(self, text: ModelFile, width: int, tokenizer: Tokenizer | None) -> None:
        """ModelFileError if the encoder is not that of a text model: another architecture or width, or tokens that its
        vocabulary lacks.
        """
        architecture = text.metadata.architecture
        if not self.fits(architecture):
            expected = f"a projector for {text.path}, of the architecture {architecture!r}"
            raise ModelFileError(self.file.path, None, expected, f"one of {self.name}")
        if width * (1 + self.further) != self.width:
            times = f"{1 + self.further} times " if self.further else ""
            expected = f"a projector to {width} features, {times}the width of {text.path}"
            raise ModelFileError(self.file.path, None, expected, f"{self.width} features")
        missing = (
            [] if tokenizer is None else [word for word in self.words() if tokenizer.token_id(word) is None]
        )
        if missing:
            expected = f"a vocabulary with the tokens that {self.name} puts around {self.noun}"
            raise ModelFileError(text.path, None, expected, f"none of {', '.join(missing)}")

    def fits(self, architecture: str) -> bool:
        """Whether it is an encoder for text models of an architecture."""
        return architecture in self.texts if self.texts else architecture not in WITH_ENCODERS

    @property
    def noun(self) -> str:
        return NOUNS[self.modality]

    def words(self) -> tuple[str, ...]:
        """The tokens around a place, without which a text cannot have one."""
        return ()


def placeholder_id(tokenizer: Tokenizer, *words: str) -> int:
    """The id of the first of these tokens that the vocabulary has; rows replace it, so another token serves as well."""
    known = (tokenizer.token_id(word) for word in words)
    others = (tokenizer.pad, tokenizer.unk, 0)
    return next(id for id in (*known, *others) if id is not None)


def rows_in_runs(id: int, count: int | Sequence[int], between: Sequence[Sequence[int]]) -> MediaPlace:
    """Runs of `count` rows, all alike or each its own, in the place of one token, between other tokens: those before
    the first run, ...
    """
    counts = [count] * (len(between) - 1) if isinstance(count, int) else count
    first, *others = ([(each, False) for each in tokens] for tokens in between)
    runs = ([(id, True)] * each for each in counts)
    pairs = (pair for run, tokens in zip(runs, others, strict=True) for pair in (*run, *tokens))
    ids, replaced = zip(*first, *pairs, strict=True)
    return MediaPlace(np.array(ids, np.int32), np.array(replaced, np.bool_), advance=len(ids))
