"""Ways to answer a question about a picture: by PyTorch, or by the engine on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

Answer = Callable[[np.ndarray, str], str]
MAX_TOKENS = 8


def answers(text: Path, projector: Path, backend: str) -> AbstractContextManager[Answer]:
    """`torch` means examples/tiny_vision.py; any other name is a backend."""
    return by_torch(text, projector) if backend == "torch" else by_engine(text, projector, backend)


@contextmanager
def by_engine(text: Path, projector: Path, backend: str) -> Iterator[Answer]:
    from backbay_engine import load

    def answer(picture: np.ndarray, question: str) -> str:
        content = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
        return llm.chat(
            [{"role": "user", "content": content}], max_tokens=MAX_TOKENS, temperature=0
        ).text.strip()

    with load(text, projector=projector, backend=backend, context=128) as llm:
        yield answer


@contextmanager
def by_torch(text: Path, projector: Path) -> Iterator[Answer]:
    """Computes the whole text anew in every step: slow, but independent of the engine."""
    import torch
    from tiny_gguf import read_gguf
    from tiny_llama import Shape
    from tiny_vision import TinyVision, VisionShape, pixels_of
    from vision_gguf import read_projector
    from vision_training import Words

    shape, tensors, tokenizer = read_gguf(text)
    vision_shape, encoder = read_projector(projector)
    model, words = TinyVision(VisionShape(text=Shape(**shape), **vision_shape)), Words(tokenizer)
    model.load_tensors(tensors, encoder)

    @torch.no_grad()
    def answer(picture: np.ndarray, question: str) -> str:
        pixels, tokens = pixels_of(picture[None]), tokenizer.encode(question).ids
        asked = len(tokens)
        while len(tokens) < asked + MAX_TOKENS:
            token = int(
                model.logits(pixels, words.before(whole=True), torch.tensor([[tokens]]))[0, 0, -1].argmax()
            )
            if token == words.end:
                break
            tokens.append(token)
        return tokenizer.decode(tokens[asked:]).strip()

    yield answer
