"""Runs scripts with llama.cpp's C functions, for results to compare with."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llama_cpp as lib
import numpy as np
from model_scripts import SEQUENCES, Action, Copy, Remove, Run
from numpy.typing import NDArray

CACHE = {"f32": 0, "f16": 1}
QUIET = lib.llama_log_callback(lambda level, message, data: None)
ROOM = 256  # the most tokens of a sequence


class LlamaCpp:
    """A model file, open in llama.cpp."""

    def __init__(self, path: Path, cache: str = "f16", *, embeds: bool = False) -> None:
        lib.llama_log_set(QUIET, None)
        lib.llama_backend_init()
        options = lib.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.embeds = embeds
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = SEQUENCES * ROOM
        params.n_seq_max, params.n_threads, params.n_threads_batch = SEQUENCES, 2, 2
        params.type_k = params.type_v = CACHE[cache]
        params.embeddings, params.kv_unified, params.swa_full = embeds, True, True
        self.context = lib.llama_init_from_model(self.model, params)
        vocabulary = lib.llama_model_get_vocab(self.model)
        self.words, self.width = lib.llama_vocab_n_tokens(vocabulary), lib.llama_model_n_embd(self.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)

    def run_script(self, script: Sequence[Action]) -> NDArray[np.float32]:
        """All logits of a script's tokens, in order."""
        memory, found, ends = lib.llama_get_memory(self.context), [], [0] * SEQUENCES
        lib.llama_memory_clear(memory, True)
        for action in script:
            match action:
                case Copy(source, target, length):
                    lib.llama_memory_seq_rm(memory, target, -1, -1)
                    lib.llama_memory_seq_cp(memory, source, target, 0, length)
                    ends[target] = length
                case Remove(sequence, begin, end):
                    lib.llama_memory_seq_rm(memory, sequence, begin, end)
                    lib.llama_memory_seq_add(memory, sequence, end, -1, begin - end)
                    ends[sequence] -= end - begin
                case Run(parts):
                    count = self._decode(parts, ends)
                    rows = (lib.llama_get_logits_ith(self.context, n) for n in range(count))
                    found += [_copied(row, self.words) for row in rows]
        return np.stack(found)

    def embeddings(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The pooled vector of each text."""
        self._decode(list(enumerate(texts)), [0] * len(texts))
        rows = (lib.llama_get_embeddings_seq(self.context, n) for n in range(len(texts)))
        return np.stack([_copied(row, self.width) for row in rows])

    def _decode(self, parts: Sequence[tuple[int, Sequence[int]]], ends: list[int]) -> int:
        batch, n = lib.llama_batch_init(sum(len(given) for _, given in parts), 0, 1), 0
        for sequence, given in parts:
            for token in given:
                batch.token[n], batch.pos[n], batch.logits[n] = token, ends[sequence], 1
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
                ends[sequence] += 1
                n += 1
        batch.n_tokens = n
        status = lib.llama_decode(self.context, batch)
        lib.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        return n


def quantize(source: Path, target: Path, kind: str, *, pure: bool = True) -> Path:
    """Quantize the model: all matrices to one type if `pure`, else to llama.cpp's mix of types with this name."""
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    params.pure, params.nthread = pure, 2
    lib.llama_log_set(QUIET, None)
    if lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot make {kind} of {source}")
    return target


def _copied(row: Any, count: int) -> NDArray[np.float32]:
    return np.ctypeslib.as_array(row, (count,)).copy()
