"""Jina BERT v2, and Nomic BERT with experts, in torch: transformers lacks them. Written from their papers and code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class RelativeConfig:
    """The entries of config.json that the converter reads."""

    vocab_size: int = 64
    hidden_size: int = 32
    intermediate_size: int = 48
    num_hidden_layers: int = 4
    num_attention_heads: int = 6
    type_vocab_size: int = 2
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12
    num_experts: int = 0
    experts_per_token: int = 2


def slopes(heads: int) -> list[float]:
    """ALiBi's slopes, as Jina's code computes them."""
    power = 2 ** (heads.bit_length() - 1)
    start = 2 ** (-(2 ** -(power.bit_length() - 1 - 3)))
    found = [start * start**n for n in range(power)]
    if power < heads:
        found += slopes(2 * power)[0::2][: heads - power]
    return found


class Relative(nn.Module):
    """Attention, norm, feed-forward, norm; the parameters have the names of the checkpoints."""

    config_class = RelativeConfig
    name = ""

    def __init__(self, config: RelativeConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.embeddings = nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.embeddings.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.encoder = nn.Module()

    def norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.config.hidden_size, eps=self.config.layer_norm_eps)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """(tokens, width) of each, split into heads."""
        heads = self.config.num_attention_heads
        q, k, v = (each.unflatten(-1, (heads, -1)).transpose(0, 1) for each in (q, k, v))
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores if bias is None else scores + bias
        return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.embeddings.word_embeddings(ids) + self.embeddings.token_type_embeddings.weight[0]

    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.hidden(ids[0])[None])

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
        described = {"architectures": [self.name], "model_type": "bert", **asdict(self.config)}
        (folder / "config.json").write_text(json.dumps(described))


class JinaBertModel(Relative):
    """ALiBi in both directions; gate and up in one matrix."""

    name = "JinaBertModel"

    def __init__(self, config: RelativeConfig) -> None:
        super().__init__(config)
        width, hidden = config.hidden_size, config.intermediate_size
        self.embeddings.LayerNorm = self.norm()
        self.encoder.layer = nn.ModuleList(nn.Module() for _ in range(config.num_hidden_layers))
        for layer in self.encoder.layer:
            layer.attention, layer.mlp = nn.Module(), nn.Module()
            own, output = nn.Module(), nn.Module()
            layer.attention.self, layer.attention.output = own, output
            own.query, own.key, own.value = (nn.Linear(width, width) for _ in range(3))
            output.dense, output.LayerNorm = nn.Linear(width, width), self.norm()
            layer.mlp.gated_layers = nn.Linear(width, 2 * hidden, bias=False)
            layer.mlp.wo, layer.mlp.layernorm = nn.Linear(hidden, width), self.norm()

    def hidden(self, ids: Tensor) -> Tensor:
        x, place = self.embeddings.LayerNorm(self.embedded(ids)), torch.arange(len(ids))
        each = torch.tensor(slopes(self.config.num_attention_heads))[:, None, None]
        bias = -each * (place[:, None] - place).abs()
        for layer in self.encoder.layer:
            own, output, mlp = layer.attention.self, layer.attention.output, layer.mlp
            a = self.attend(own.query(x), own.key(x), own.value(x), bias)
            x = output.LayerNorm(x + output.dense(a))
            gate, up = mlp.gated_layers(x).chunk(2, -1)
            x = mlp.layernorm(x + mlp.wo(F.gelu(gate) * up))
        return x


class NomicBertModel(Relative):
    """Rotary positions; experts in every other layer, weighted by their odds among all."""

    name = "NomicBertModel"

    def __init__(self, config: RelativeConfig) -> None:
        super().__init__(config)
        width, hidden, experts = config.hidden_size, config.intermediate_size, config.num_experts
        self.emb_ln = self.norm()
        self.encoder.layers = nn.ModuleList(nn.Module() for _ in range(config.num_hidden_layers))
        for n, layer in enumerate(self.encoder.layers):
            layer.attn, layer.mlp = nn.Module(), nn.Module()
            layer.attn.Wqkv, layer.attn.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            layer.norm1, layer.norm2 = self.norm(), self.norm()
            if n % 2 == 0:
                layer.mlp.fc1, layer.mlp.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
                continue
            layer.mlp.router, layer.mlp.experts = nn.Module(), nn.Module()
            layer.mlp.router.layer = nn.Linear(width, experts, bias=False)
            layer.mlp.experts.mlp = nn.Module()
            layer.mlp.experts.mlp.w1 = nn.Parameter(torch.zeros(experts * hidden, width))
            layer.mlp.experts.mlp.w2 = nn.Parameter(torch.zeros(experts * hidden, width))

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.emb_ln(self.embedded(ids))
        for n, layer in enumerate(self.encoder.layers):
            q, k, v = layer.attn.Wqkv(x).chunk(3, -1)
            a = self.attend(self.turned(q), self.turned(k), v, None)
            x = layer.norm1(x + layer.attn.out_proj(a))
            mlp = layer.mlp
            y = self.mixed(mlp, x) if n % 2 else mlp.fc2(F.gelu(mlp.fc1(x)))
            x = layer.norm2(x + y)
        return x

    def turned(self, x: Tensor) -> Tensor:
        """(tokens, width), each head rotated by the tokens' positions."""
        heads = x.unflatten(-1, (self.config.num_attention_heads, -1))
        half = heads.shape[-1] // 2
        angles = torch.arange(len(x))[:, None] / 10000 ** (torch.arange(half) / half)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        left, right = heads[..., :half], heads[..., half:]
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).flatten(1)

    def mixed(self, mlp: nn.Module, x: Tensor) -> Tensor:
        experts = self.config.num_experts
        odds = mlp.router.layer(x).softmax(-1)
        shares, chosen = odds.topk(self.config.experts_per_token, -1)
        into, out = (w.unflatten(0, (experts, -1)) for w in (mlp.experts.mlp.w1, mlp.experts.mlp.w2))
        every = torch.einsum("eth,ehw->tew", F.gelu(torch.einsum("tw,ehw->eth", x, into)), out)
        return (every.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1])) * shares[..., None]).sum(1)
