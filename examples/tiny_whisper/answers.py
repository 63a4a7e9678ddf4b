"""Ways to write down what is said in a sound: by PyTorch, or by the engine on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from .speech import RATE, Sound

Answer = Callable[[Sound], str]


def answers(folder: Path, backend: str) -> AbstractContextManager[Answer]:
    """`torch` means network.py; any other name is a backend."""
    return by_torch(folder) if backend == "torch" else by_engine(folder, backend)


@contextmanager
def by_engine(folder: Path, backend: str) -> Iterator[Answer]:
    from backbay_engine import Audio, load

    with load(folder, backend=backend) as whisper:
        yield lambda sound: whisper.transcribe(
            Audio(sound, rate=RATE), timestamps=False, temperature=0
        ).text.strip()


@contextmanager
def by_torch(folder: Path) -> Iterator[Answer]:
    """Computes the whole text anew in every step, and hears one window: slow, but independent of the engine."""
    import torch

    from .folder import read_folder
    from .network import Shape, TinyWhisper, mel_of
    from .vocabulary import Words
    from .windows import ROWS_A_SECOND

    sizes, tensors, tokenizer = read_folder(folder)
    shape, words = Shape(**sizes), Words(tokenizer)
    model = TinyWhisper(shape)
    model.load_tensors(tensors)

    @torch.no_grad()
    def answer(sound: Sound) -> str:
        window = np.pad(sound, (0, shape.positions * RATE // ROWS_A_SECOND - len(sound)))
        rows = model.encoder(mel_of(torch.from_numpy(window)[None], shape.bins))
        tokens = [words.start, words.plain]
        while len(tokens) < shape.context:
            logits = model.decoder(rows, torch.tensor([tokens]))[0, -1]
            token = int(logits[: words.end + 1].argmax())
            if token == words.end:
                break
            tokens.append(token)
        return str(tokenizer.decode(tokens)).strip()

    yield answer
