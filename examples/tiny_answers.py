"""Ways to answer a prompt from a model file: by PyTorch, or by the engine on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

Answer = Callable[[str], str]
MAX_TOKENS = 32


def answers(path: Path, backend: str) -> AbstractContextManager[Answer]:
    """`torch` means examples/tiny_llama.py; any other name is a backend."""
    return by_torch(path) if backend == "torch" else by_engine(path, backend)


@contextmanager
def by_engine(path: Path, backend: str) -> Iterator[Answer]:
    from backbay_engine import load

    with load(path, backend=backend) as llm:
        yield lambda prompt: llm.generate(prompt, max_tokens=MAX_TOKENS, temperature=0).text


@contextmanager
def by_torch(path: Path) -> Iterator[Answer]:
    """Computes the whole text anew in every step: slow, but independent of the engine."""
    import torch
    from tiny_gguf import read_gguf
    from tiny_llama import Shape, TinyLlama
    from tiny_training import Text

    shape, tensors, tokenizer = read_gguf(path)
    model, text = TinyLlama(Shape(**shape)), Text(tokenizer)
    model.load_tensors(tensors)

    @torch.no_grad()
    def answer(prompt: str) -> str:
        tokens = [text.begin, *tokenizer.encode(prompt).ids]
        asked = len(tokens)
        while len(tokens) < asked + MAX_TOKENS:
            token = int(model(torch.tensor([tokens]))[0, -1].argmax())
            if token == text.end:
                break
            tokens.append(token)
        return tokenizer.decode(tokens[asked:])

    yield answer
