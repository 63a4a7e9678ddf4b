"""Where llama.cpp's results differ from those of transformers, why, and the change with which they agree.

A reason is shown, not guessed: with the change, in the configuration or in the file, llama.cpp must agree; or it is the
message with which llama.cpp ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kind import Kind
from mixtures import YARN_OF_GPTOSS
from recurrent import with_own_head


@dataclass(frozen=True)
class Difference:
    """Why results differ, and what to change: entries of the configuration, or of config.json before it is converted."""

    why: str
    change: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    describe: Callable[[dict[str, Any]], None] | None = None
    prepare: Callable[[Any], None] | None = None

    def changed(self, kind: Kind) -> Kind | None:
        """The kind with the change; None if there is none that would show the reason."""
        if not self.change:
            return None
        return replace(
            kind,
            config={**kind.config, **self.config},
            describe=self.describe or kind.describe,
            prepare=self.prepare or kind.prepare,
        )


def _scored(config: dict[str, Any]) -> None:
    config["scoring_func"] = "sigmoid"


SOFTMAX = Difference(
    "transformers' config.json has no scoring_func, so the file has no expert_gating_func, and llama.cpp takes a softmax",
    "with scoring_func, as in the published models",
    describe=_scored,
)
CAP = Difference(
    "the file has no cap of logits; llama.cpp caps those of gemma4 at 30 then",
    "with final_logit_softcapping 30",
    {"final_logit_softcapping": 30.0},
)


DIFFERENCES = {
    "gemma4": CAP,
    "gemma4-moe": CAP,
    "gptoss": Difference(
        "truncate is false in the configuration: YaRN's corners are not rounded to whole pairs. No key of the file "
        "says so, and llama.cpp rounds them",
        "with truncate true",
        {"rope_parameters": {**YARN_OF_GPTOSS, "truncate": True}},
    ),
    "deepseek3": SOFTMAX,
    "deepseek3-groups": SOFTMAX,
    "deepseek3-yarn": SOFTMAX,
    "deepseek2-groups": Difference(
        "a group counts as much as its best expert; llama.cpp adds up its two best, as DeepSeek V3 does",
        "with one group",
        {"n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    ),
    "llama4": Difference(
        "chunks of attention and the scale of queries by position have lengths in the configuration; llama.cpp takes "
        "8192 for both, a constant",
        "with 8192 for both",
        {"attention_chunk_size": 8192, "floor_scale": 8192},
    ),
    "gemma-embedding": Difference(
        "all four blocks have a window: llama.cpp ends with GGML_ASSERT(buffer), for the mask of full attention, "
        "which nothing reads",
        "with six blocks, the last without a window",
        {"num_hidden_layers": 6},
    ),
    "gemma3n": Difference("it does not load the file: its widths of gemma3n are constants"),
    "deepseek2-lite": Difference(
        "it does not load the file: it knows models without q_lora_rank by their number of blocks",
        "with 27 blocks, and all experts in use, so that no rounding decides on one",
        {"num_hidden_layers": 27, "num_experts_per_tok": 8},
    ),
    "erniemoe": Difference("it does not load the file: it expects shared experts of another width"),
    "nemotronh": Difference(
        "it ends with GGML_ASSERT(hparams.n_expert_groups == 0), in a model without experts"
    ),
    "rwkv7": Difference(
        "heads of 16: ggml's rwkv_wkv7 reads past heads that are no multiple of 64 elements (AVX-512)",
        "with heads of 64",
        {"hidden_size": 128, "head_dim": 64},
    ),
    "t5": Difference(
        "the tied head: transformers divides the decoder's output by the root of the width, llama.cpp does not",
        "with a head of its own",
        {"tie_word_embeddings": False},
        prepare=with_own_head,
    ),
}
"""By kind."""
