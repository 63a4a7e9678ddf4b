"""Text to tokens and back, by the vocabulary of a model file."""

from .decoding import TokenStream
from .tokenizer import Tokenizer, tokenizer_from_gguf

__all__ = ["TokenStream", "Tokenizer", "tokenizer_from_gguf"]
