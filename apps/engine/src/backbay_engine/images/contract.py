"""The contract of models that see: how a family prepares pictures, places them in a text, and encodes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, DType, ModelFileError, Tensor
from backbay.gguf import ModelFile

from ..errors import ImageError
from ..steps.leaves import Leaves
from ..text.tokenizers import Tokenizer
from .picture import Fit, require_size
from .preparations.preparation import PictureLayout, Preparation
from .prepared_picture import Prepared

WITH_ENCODERS = (
    *("gemma3", "llama4", "mistral3", "mllama"),
    *("qwen25vl", "qwen2vl", "qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe"),
)
"""Architectures of text models that have encoders of families of their own."""

Pictures: TypeAlias = Sequence[Prepared]
FromPictures: TypeAlias = Callable[[Pictures], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """A picture's place in a prompt: what the reference's processor makes of the bare placeholder."""

    ids: NDArray[np.int32]
    """The tokens, (n,); a token that a row of the picture replaces has the placeholder's id."""
    replaced: NDArray[np.bool_]
    """(n,): whether a row of the picture stands for the token; rows come in their order. None is True if `crosses`."""
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
    """Pictures of one shape, as leaves of a traced encoder: filled again with each group of pictures of the shape."""

    def __init__(self, ctx: Context, pictures: Pictures) -> None:
        self._leaves = Leaves(ctx, pictures, "VisionFamily.key")

    @property
    def first(self) -> Prepared:
        """The first picture; a graph may depend on its shape, never on its pixels."""
        return self._leaves.data[0]

    @property
    def count(self) -> int:
        return len(self._leaves.data)

    def leaf(self, name: str, function: FromPictures, dtype: DType | None = None) -> Tensor:
        """A leaf that each group fills with `function(pictures)`: i32 for integers, else f32, or `dtype`.

        The leaf's shape is the array's, reversed. Asking for a name again gives the same leaf.
        """
        return self._leaves.leaf(name, function, dtype)

    def fill(self, pictures: Pictures) -> None:
        """Fill the leaves with the data of as many other pictures of the same shape."""
        self._leaves.fill(pictures)


class EncoderNetwork(ABC):
    """The forward pass of an encoder, over the weights of one backend: a start, blocks, and an end.

    An encoder may compute the parts one by one, so that other work gets its turn in between. Parts are made of
    `inputs` and of the state alone: what else depends on the pictures makes the graph wrong for the next ones.
    """

    width: int
    """The features of the state."""
    blocks: int
    keeps: tuple[int, ...] = ()
    """The states that `finish` takes beside the last block's output: those before these blocks; `blocks` is the last."""

    @abstractmethod
    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        """The state before the first block, (width, positions of all pictures)."""

    @abstractmethod
    def block(self, ctx: Context, layer: int, x: Tensor, inputs: EncoderInputs) -> Tensor:
        """The state after a block."""

    @abstractmethod
    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        """The rows of all pictures, (width of the text, rows), picture by picture."""


class VisionFamily(ABC):
    """A family of models that see, made from the header of the file that holds the encoder; it holds no weights.

    image_tokens    most rows of one picture: larger pictures are made smaller, as the family allows
    """

    placeholder: ClassVar[str]
    """The text by which a chat template marks a picture."""
    marker: ClassVar[str]
    """The text that stands for a picture in the template of a model that knows no pictures."""
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
    preparation: Preparation

    def __init__(self, file: ModelFile, image_tokens: int | None = None) -> None:
        self.file, self.config = file, file.metadata
        self.preparation = self.prepares().limited(image_tokens)

    @property
    def name(self) -> str:
        return self.preparation.family

    @property
    def image_tokens(self) -> int:
        """Most rows of one picture."""
        return self.preparation.largest().tokens

    @abstractmethod
    def prepares(self) -> Preparation:
        """How pictures become pixels, by the metadata."""

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
    def place(self, picture: Prepared, tokenizer: Tokenizer) -> PlacedRows:
        """The place of a picture in a prompt."""

    @abstractmethod
    def patches(self, picture: Prepared) -> int:
        """The positions of a picture in the encoder: what its encoding costs."""

    def key(self, picture: Prepared) -> Hashable:
        """Pictures of one key have one graph, and may be encoded together."""
        return picture.pixels.shape

    @abstractmethod
    def network(self, backend: Backend) -> EncoderNetwork:
        """The forward pass, its tensors found and checked; the weights need not be loaded."""

    def prepare(self, rgb: NDArray[np.uint8], fit: Fit | None = None) -> Prepared:
        """The pixels of a picture, (height, width, 3), as the encoder takes them."""
        return self.preparation.prepare(rgb, fit)

    def largest(self) -> Prepared:
        """A black picture that needs most memory, for reserving."""
        plan, size = self.preparation.largest(), self.preparation.largest_size()
        return Prepared(
            np.zeros(plan.shape, np.float32), plan.tokens, plan.grid, size, self.name, plan.aspect_ratio_id
        )

    def smallest(self) -> Prepared:
        """A tiny black picture, for reserving: backends may compute few positions in another way than many."""
        return self.prepare(np.zeros((2, 2, 3), np.uint8))

    def check_picture(self, picture: Prepared) -> None:
        """ImageError if a picture was prepared for another model, or no preparation makes it."""
        plan = self.preparation.largest()
        if (
            picture.family != self.name
            or picture.pixels.ndim != len(plan.shape)
            or picture.tokens > plan.tokens
            or len(picture.grid) != len(plan.grid)
        ):
            raise ImageError(
                f"a picture prepared for {picture.family}, {list(picture.pixels.shape)} with {picture.tokens} tokens; "
                f"this model takes pictures for {self.name}, up to {list(plan.shape)} with {plan.tokens} tokens"
            )
        require_size("a prepared picture", picture.size)
        made = PictureLayout(
            picture.pixels.shape, picture.tokens, tuple(picture.grid), picture.aspect_ratio_id
        )
        if made != (wanted := self.preparation.plan_of(picture)):
            raise ImageError(
                f"{self.name} makes {wanted} of a picture like the prepared one, which is {made}"
            )

    def check_text(self, text: ModelFile, width: int, tokenizer: Tokenizer | None) -> None:
        """ModelFileError if the encoder is not that of a text model: another architecture or width, or tokens that its
        vocabulary lacks.
        """
        architecture = text.metadata.architecture
        if architecture not in self.texts if self.texts else architecture in WITH_ENCODERS:
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
            expected = f"a vocabulary with the tokens that {self.name} puts around a picture"
            raise ModelFileError(text.path, None, expected, f"none of {', '.join(missing)}")

    def words(self) -> tuple[str, ...]:
        """The tokens around a picture, without which a text cannot hold one."""
        return ()


def placeholder_id(tokenizer: Tokenizer, *words: str) -> int:
    """The id of the first of these tokens that the vocabulary has; rows replace it, so another token serves as well."""
    known = (tokenizer.token_id(word) for word in words)
    others = (tokenizer.pad, tokenizer.unk, 0)
    return next(id for id in (*known, *others) if id is not None)


def rows_in_runs(id: int, count: int | Sequence[int], between: Sequence[Sequence[int]]) -> PlacedRows:
    """Runs of `count` rows, all alike or each its own, in the place of one token, between other tokens: those before
    the first run, ...
    """
    counts = [count] * (len(between) - 1) if isinstance(count, int) else count
    first, *others = ([(each, False) for each in tokens] for tokens in between)
    runs = ([(id, True)] * each for each in counts)
    pairs = (pair for run, tokens in zip(runs, others, strict=True) for pair in (*run, *tokens))
    ids, replaced = zip(*first, *pairs, strict=True)
    return PlacedRows(np.array(ids, np.int32), np.array(replaced, np.bool_), advance=len(ids))
