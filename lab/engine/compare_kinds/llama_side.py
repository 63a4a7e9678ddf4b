"""llama.cpp's results for a model file, in a process of its own: a model that it cannot run may end the process.

    python llama_side.py MODEL POOLING < tokens, a list in JSON on each line

Prints the results of each line as a line of JSON. Needs llama-cpp-python. Caches are f32, without flash attention.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from typing import Any

import llama_cpp as lib
import numpy as np

CONTEXT = 256
POOLING = {"none": 0, "mean": 1, "first": 2, "last": 3, "rank": 4}
LOGITS = "logits"


class LlamaCpp:
    """A model, which computes each sequence in one step. `text` is what an encoder before a decoder sees."""

    def __init__(self, path: str, pooling: str, text: Sequence[int]) -> None:
        said: list[str] = []
        self._log = lib.llama_log_callback(lambda level, message, data: said.append(message.decode().strip()))
        lib.llama_log_set(self._log, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not self.model:
            raise SystemExit(
                next((text for text in said if "error" in text), "llama.cpp does not load the file")
            )
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = lib.GGML_TYPE_F32
        params.flash_attn_type, self.pooling, self.text = 0, pooling, text
        if pooling != LOGITS:
            params.embeddings, params.pooling_type = True, POOLING[pooling]
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp makes no context")

    def __call__(self, tokens: Sequence[int]) -> list[list[float]]:
        """The logits of all tokens, or the vectors of a text."""
        if memory := lib.llama_get_memory(self.context):
            lib.llama_memory_clear(memory, True)
        if lib.llama_model_has_encoder(self.model) and lib.llama_model_has_decoder(self.model):
            self._run(lib.llama_encode, self.text)
        self._run(lib.llama_decode, tokens)
        if self.pooling == LOGITS:
            words = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
            return self._rows(lib.llama_get_logits_ith, range(len(tokens)), words)
        width = lib.llama_model_n_embd(self.model)
        if self.pooling == "none":
            return self._rows(lib.llama_get_embeddings_ith, range(len(tokens)), width)
        width = lib.llama_model_n_cls_out(self.model) if self.pooling == "rank" else width
        return self._rows(lib.llama_get_embeddings_seq, [0], width)

    def _run(self, function: Any, tokens: Sequence[int]) -> None:
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for n, token in enumerate(tokens):
            batch.token[n], batch.pos[n], batch.logits[n] = token, n, 1
            batch.n_seq_id[n], batch.seq_id[n][0] = 1, 0
        status = function(self.context, batch)
        lib.llama_batch_free(batch)
        if status:
            raise SystemExit(f"llama.cpp fails with {status}")

    def _rows(self, get: Any, places: Sequence[int], width: int) -> list[list[float]]:
        found = [ctypes.cast(get(self.context, n), ctypes.POINTER(ctypes.c_float)) for n in places]
        return [np.ctypeslib.as_array(row, (width,)).tolist() for row in found]


def main() -> None:
    path, pooling, text = sys.argv[1:]
    model = LlamaCpp(path, pooling, json.loads(text))
    for line in sys.stdin:
        print(json.dumps(model(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
