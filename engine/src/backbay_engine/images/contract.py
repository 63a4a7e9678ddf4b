"""The contract of models that see: how a family prepares pictures, places them in a text, and encodes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, ModelFileError, Tensor
from backbay.gguf import ModelFile

from ..text.tokenizers import Tokenizer
from .inputs import Inputs
from .prepared import Prepared


@dataclass(frozen=True, eq=False)
class Placed:
    """A picture's place in a prompt: what the reference's processor makes of the bare placeholder."""

    ids: NDArray[np.int32]
    """The tokens, (n,); a token that a row of the picture replaces has the placeholder's id."""
    replaced: NDArray[np.bool_]
    """(n,): whether a row of the picture stands for the token; rows come in their order. None is True if `crosses`."""
    before: str = ""
    """Text before the ids. The reference expands the text, then tokenizes it: a tokenizer takes `before` together with
    the prompt's text that precedes it, and alone where ids or pictures precede it.
    """
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


class Network(ABC):
    """The forward pass of an encoder, over the weights of one backend: a start, blocks, and an end.

    An encoder may compute the parts one by one, so that other work gets its turn in between. Parts are made of
    `inputs` and of the state alone: what else depends on the pictures makes the graph wrong for the next ones.
    """

    width: int
    """The features of the state."""
    blocks: int
    keeps: tuple[int, ...] = ()
    """The blocks whose input `finish` takes beside the last block's output."""

    @abstractmethod
    def start(self, ctx: Context, inputs: Inputs) -> Tensor:
        """The state before the first block, (width, positions of all pictures)."""

    @abstractmethod
    def block(self, ctx: Context, layer: int, x: Tensor, inputs: Inputs) -> Tensor:
        """The state after a block."""

    @abstractmethod
    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
        """The rows of all pictures, (width of the text, rows), picture by picture."""


class VisionFamily(ABC):
    """A family of models that see, made from the header of the file that holds the encoder; it holds no weights.

    image_tokens    most rows of one picture: larger pictures are made smaller, as the family allows
    """

    name: ClassVar[str]
    placeholder: ClassVar[str]
    """The text by which a chat template marks a picture."""
    marker: ClassVar[str]
    """The text that stands for a picture in the template of a model that knows no pictures."""
    crosses: ClassVar[bool] = False
    """Whether the rows go to cross attention."""
    span: int = 0
    """Rows of the longest run of tokens that see each other, which one step must hold; 0: none do."""

    def __init__(self, file: ModelFile, image_tokens: int | None = None) -> None:
        self.file, self.config = file, file.metadata
        self.image_tokens = image_tokens

    @property
    @abstractmethod
    def width(self) -> int:
        """The features of a row: the text model's width."""

    @abstractmethod
    def prepare(self, rgb: NDArray[np.uint8], fit: str | None = None) -> Prepared:
        """The pixels of a picture, (height, width, 3), as the encoder takes them."""

    @abstractmethod
    def place(self, picture: Prepared, tokenizer: Tokenizer) -> Placed:
        """The place of a picture in a prompt."""

    @abstractmethod
    def largest(self) -> Sequence[Prepared]:
        """Pictures without content that need most memory, for reserving."""

    @abstractmethod
    def patches(self, picture: Prepared) -> int:
        """The patches of a picture: what its encoding costs."""

    @abstractmethod
    def key(self, picture: Prepared) -> Hashable:
        """Pictures of one key have one graph, and may be encoded together."""

    @abstractmethod
    def network(self, backend: Backend) -> Network:
        """The forward pass, its tensors found and checked; the weights need not be loaded."""

    def check_text(self, text: ModelFile, width: int, tokenizer: Tokenizer | None) -> None:
        """ModelFileError if the encoder is not that of a text model: another width, or tokens that its vocabulary lacks."""
        if width != self.width:
            raise ModelFileError(
                self.file.path, None, f"a projector to {width} features, the width of {text.path}", self.width
            )
        if tokenizer is not None:
            self.check_tokens(text, tokenizer)

    @abstractmethod
    def check_tokens(self, text: ModelFile, tokenizer: Tokenizer) -> None:
        """ModelFileError if a vocabulary lacks tokens that stand around a picture."""
