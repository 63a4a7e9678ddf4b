"""A context of llama.cpp, through its C interface, for several sequences in one cache, as its server has by default."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class LlamaCppContext:
    """A model and its cache; tokens are chosen greedily. `settings` are fields of llama_context_params."""

    def __init__(
        self, model: Path, *, cells: int, batch: int, sequences: int, threads: int, **settings: Any
    ) -> None:
        import llama_cpp as lib

        self.lib, self.batch = lib, batch
        self.quiet = lib.llama_log_callback(lambda level, message, data: None)
        lib.llama_log_set(self.quiet, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = cells, batch, batch
        params.n_seq_max, params.kv_unified = sequences, True
        params.n_threads = params.n_threads_batch = threads
        for name, value in settings.items():
            setattr(params, name, value)
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp makes no context with {settings}")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def clear(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def remove(self, sequence: int, begin: int) -> None:
        """Forget the tokens of a sequence from a position on."""
        self.lib.llama_memory_seq_rm(self.lib.llama_get_memory(self.context), sequence, begin, -1)

    def read(self, ids: Sequence[int], sequence: int = 0) -> None:
        """Read a prompt, and choose the next token."""
        for low in range(0, len(ids), self.batch):
            part = ids[low : low + self.batch]
            self._decode([(token, low + n, sequence) for n, token in enumerate(part)], last=True)
        self._chosen(-1)

    def step(self, tokens: Sequence[int], position: int) -> list[int]:
        """The next tokens of all sequences, after these at the same position."""
        self._decode([(token, position, sequence) for sequence, token in enumerate(tokens)])
        return [self._chosen(sequence) for sequence in range(len(tokens))]

    def _decode(self, items: list[tuple[int, int, int]], *, last: bool = False) -> None:
        """Tokens with their positions and sequences; logits of all, or of the last one."""
        batch = self.lib.llama_batch_init(len(items), 0, 1)
        batch.n_tokens = len(items)
        for n, (token, position, sequence) in enumerate(items):
            batch.token[n], batch.pos[n], batch.n_seq_id[n] = token, position, 1
            batch.seq_id[n][0] = sequence
            batch.logits[n] = not last or n == len(items) - 1
        if self.lib.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        self.lib.llama_batch_free(batch)

    def _chosen(self, index: int) -> int:
        logits = self.lib.llama_get_logits_ith(self.context, index)
        held = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self.vocab)).contents
        return int(np.frombuffer(held, np.float32).argmax())
