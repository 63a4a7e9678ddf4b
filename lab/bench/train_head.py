"""Trains a head that predicts the token after the next one for the small model of examples, whose weights stay as they are.

    python lab/bench/train_head.py tiny-head.gguf --minutes 8

Needs PyTorch and tokenizers, as examples/train_tiny.py does. The head learns what the model would say, on its own tasks.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from random import Random

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
sys.path += [str(EXAMPLES), str(ROOT / "apps/engine/tests/inputs")]

from model_files import changed  # noqa: E402
from tiny_gguf import read_gguf  # noqa: E402
from tiny_llama import Block, Shape, TinyLlama  # noqa: E402
from tiny_training import Text  # noqa: E402

MODEL = EXAMPLES / "models" / "backbay-tiny-f16.gguf"
ROWS, WARM_UP, RATE = 4, 50, 2e-3
DEPTH = 2  # guesses in a row that it learns, the later ones from its own rows


class Head(nn.Module):
    """A block of the model's kind, for tokens and the rows before them; it begins as the model's last block."""

    def __init__(self, model: TinyLlama) -> None:
        super().__init__()
        width = model.shape.width
        self.model = (model,)  # in a tuple, so that its weights are not the head's
        self.block = Block(model.shape)
        self.block.load_state_dict(model.layers[-1].state_dict())
        self.join = nn.Parameter(torch.eye(width).repeat(1, 2) / 2)
        self.enorm, self.hnorm, self.shared_head_norm = (nn.Parameter(torch.ones(width)) for _ in range(3))

    def forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """The rows after these tokens, (batch, tokens, width), by the rows before them."""
        (model,), eps = self.model, self.block.shape.eps
        tokens = F.embedding(tokens, model.token_embd)
        parts = [F.rms_norm(x, x.shape[-1:], w, eps) for x, w in ((tokens, self.enorm), (rows, self.hnorm))]
        x = self.block(F.linear(torch.cat(parts, -1), self.join), model.by)
        return F.rms_norm(x, x.shape[-1:], self.shared_head_norm, eps)

    def tensors(self, layer: int) -> dict[str, np.ndarray]:
        """The weights by their names in a file."""
        names = {name: getattr(self, name) for name in ("enorm", "hnorm", "shared_head_norm")}
        found = {f"nextn.{name}": weight for name, weight in {**names, "eh_proj": self.join}.items()}
        found |= self.block.tensors()
        return {f"blk.{layer}.{name}.weight": weight.detach().numpy() for name, weight in found.items()}


def loss_of(head: Head, tokens: Tensor, learned: Tensor) -> tuple[Tensor, list[float]]:
    """How far the head is from what the model says at `learned` places, and how often its guesses are the model's."""
    (model,), total, right = head.model, torch.zeros(()), list[float]()
    with torch.no_grad():
        rows = model.hidden(tokens)
        said = F.linear(rows, model.token_embd).log_softmax(-1)
    for depth in range(1, DEPTH + 1):
        rows = head(tokens[:, depth:], rows[:, :-1])
        chosen = learned[:, depth:]
        guessed = F.linear(rows[chosen], model.token_embd).log_softmax(-1)
        wanted = said[:, depth:][chosen]
        total = total + F.kl_div(guessed, wanted, log_target=True, reduction="batchmean") / depth
        right.append((guessed.argmax(-1) == wanted.argmax(-1)).float().mean().item())
    return total, right


def train(minutes: float) -> dict[str, np.ndarray]:
    shape, tensors, tokenizer = read_gguf(MODEL)
    model, text = TinyLlama(Shape(**shape)), Text(tokenizer)
    model.load_tensors(tensors)
    model.requires_grad_(False)
    head = Head(model)
    head.requires_grad_(True)
    optimizer = torch.optim.AdamW(head.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    begun, step, share = time.process_time(), 0, 0.0
    while share < 1:
        share = min(1.0, (time.process_time() - begun) / (60 * minutes))
        optimizer.param_groups[0]["lr"] = RATE * min((step + 1) / WARM_UP, 1 - share)
        batch = text.pack(Random(f"head {step}"), ROWS, model.shape.context)
        loss, right = loss_of(head, batch.tokens, batch.targets != -100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or share == 1:
            told = " ".join(f"{each:.1%}" for each in right)
            print(f"{share:4.0%}  step {step}  loss {loss.item():.3f}  right {told}", flush=True)
        step += 1
    return head.tensors(model.shape.layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="the file to write")
    parser.add_argument("--minutes", type=float, default=8, help="of one thread")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = gguf.GGUFReader(MODEL).fields["llama.block_count"].contents()
    keys = {"llama.block_count": blocks + 1, "llama.nextn_predict_layers": 1}
    changed(MODEL, options.path, tensors=train(options.minutes), metadata=keys)


if __name__ == "__main__":
    main()
