"""RWKV 7 in torch, which transformers lacks: the recurrence of the paper, a token at a time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

MIXED = "rwkvag"


@dataclass
class Rwkv7Config:
    """The entries of config.json that the converter reads."""

    vocab_size: int = 64
    hidden_size: int = 32
    intermediate_size: int = 64
    num_hidden_layers: int = 3
    head_dim: int = 16
    norm_eps: float = 1e-5
    decay_low_rank_dim: int = 8
    a_low_rank_dim: int = 8
    v_low_rank_dim: int = 4
    gate_low_rank_dim: int = 12


def vector(size: int, value: float = 0.0) -> nn.Parameter:
    return nn.Parameter(torch.full((size,), value))


def matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(rows, columns))


def shifted(x: Tensor) -> Tensor:
    """The token before each token, (tokens, width)."""
    return F.pad(x, (0, 0, 1, 0))[:-1]


class TimeMix(nn.Module):
    def __init__(self, config: Rwkv7Config, layer: int) -> None:
        super().__init__()
        width, self.layer, self.head = config.hidden_size, layer, config.head_dim
        for each in MIXED:
            setattr(self, f"x_{each}", nn.Parameter(torch.full((1, 1, width), 0.5)))
        ranks = {
            "w": config.decay_low_rank_dim,
            "a": config.a_low_rank_dim,
            "v": config.v_low_rank_dim,
            "g": config.gate_low_rank_dim,
        }
        for each, rank in ranks.items():
            if each != "v" or layer:
                setattr(self, f"{each}1", matrix(width, rank))
                setattr(self, f"{each}2", matrix(rank, width))
                if each != "g":
                    setattr(self, f"{each}0", vector(width))
        self.k_k, self.k_a = vector(width, 0.85), vector(width, 1.0)
        self.r_k = matrix(width // self.head, self.head)
        for each in ("receptance", "key", "value", "output"):
            setattr(self, each, nn.Linear(width, width, bias=False))
        self.ln_x = nn.GroupNorm(width // self.head, width, eps=64e-5)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        before = shifted(x)
        r, w, k, v, a, g = (x + (before - x) * getattr(self, f"x_{each}")[0] for each in MIXED)
        decay = torch.exp(-torch.exp(-F.softplus(-(self.w0 + torch.tanh(w @ self.w1) @ self.w2)) - 0.5))
        gate = torch.sigmoid(g @ self.g1) @ self.g2
        rate = torch.sigmoid(self.a0 + a @ self.a1 @ self.a2)
        r, k, value = self.receptance(r), self.key(k), self.value(v)
        if first is not None:
            value = value + (first - value) * torch.sigmoid(self.v0 + v @ self.v1 @ self.v2)
        heads = (-1, x.shape[1] // self.head, self.head)
        removed = F.normalize((k * self.k_k).view(heads), dim=-1)
        k = (k * (1 + (rate - 1) * self.k_a)).view(heads)
        r, decay, rate, values = (t.view(heads) for t in (r, decay, rate, value))
        state, outputs = torch.zeros(heads[1], self.head, self.head), []  # (heads, value, key)
        for t in range(len(x)):
            known = state @ -removed[t, :, :, None]
            state = (
                state * decay[t, :, None]
                + known @ (removed * rate)[t, :, None]
                + values[t, :, :, None] @ k[t, :, None]
            )
            outputs.append((state @ r[t, :, :, None]).flatten())
        y = self.ln_x(torch.stack(outputs))
        bonus = (r * k * self.r_k).sum(-1, keepdim=True) * values
        return self.output((y + bonus.flatten(1)) * gate), first if first is not None else value


class ChannelMix(nn.Module):
    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__()
        self.x_k = vector(config.hidden_size, 0.5)
        self.key = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.value = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(torch.relu(self.key(x + (shifted(x) - x) * self.x_k)) ** 2)


class Block(nn.Module):
    def __init__(self, config: Rwkv7Config, layer: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = (nn.LayerNorm(config.hidden_size, eps=config.norm_eps) for _ in range(2))
        self.attention, self.feed_forward = TimeMix(config, layer), ChannelMix(config)


class Rwkv7ForCausalLM(nn.Module):
    config_class = Rwkv7Config

    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(config.vocab_size, width)
        self.model.pre_ln = nn.LayerNorm(width, eps=config.norm_eps)
        self.model.layers = nn.ModuleList(Block(config, n) for n in range(config.num_hidden_layers))
        self.model.ln_out = nn.LayerNorm(width, eps=config.norm_eps)
        self.head = nn.Linear(width, config.vocab_size, bias=False)

    def forward(self, ids: Tensor, use_cache: bool = False) -> Any:
        x, first = self.model.pre_ln(self.model.embeddings(ids[0])), None
        for block in self.model.layers:
            y, first = block.attention(block.ln1(x), first)
            x = x + y
            x = x + block.feed_forward(block.ln2(x))
        return SimpleNamespace(logits=self.head(self.model.ln_out(x))[None])

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: t.contiguous() for name, t in self.state_dict().items()}, folder / "model.safetensors"
        )
        described = {"architectures": ["Rwkv7ForCausalLM"], "model_type": "rwkv7", **asdict(self.config)}
        (folder / "config.json").write_text(json.dumps(described))
