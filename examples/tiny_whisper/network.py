"""A small Whisper in PyTorch, with the names of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbay_engine.sound.mel import FLOOR, HOP, RANGE, WINDOW, mel_filters


@dataclass(frozen=True)
class Shape:
    """The sizes; `positions` are rows of a window of sound."""

    vocabulary: int
    bins: int = 80
    positions: int = 250
    width: int = 96
    heads: int = 3
    layers: int = 2
    hidden: int = 384
    context: int = 48


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(shape.width, shape.width) for _ in range(3))
        self.k_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, seen: Tensor, *, causal: bool = False) -> Tensor:
        query, key, value = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.q_proj(x), self.k_proj(seen), self.v_proj(seen))
        )
        found = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        projected: Tensor = self.out_proj(found.transpose(1, 2).flatten(2))
        return projected


class Layer(nn.Module):
    """A layer of the encoder, or of the decoder, which also attends to the rows of a sound."""

    def __init__(self, shape: Shape, *, decodes: bool) -> None:
        super().__init__()
        self.decodes = decodes
        self.self_attn, self.self_attn_layer_norm = Attention(shape), nn.LayerNorm(shape.width)
        if decodes:
            self.encoder_attn, self.encoder_attn_layer_norm = Attention(shape), nn.LayerNorm(shape.width)
        self.fc1, self.fc2 = nn.Linear(shape.width, shape.hidden), nn.Linear(shape.hidden, shape.width)
        self.final_layer_norm = nn.LayerNorm(shape.width)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        h = self.self_attn_layer_norm(x)
        x = x + self.self_attn(h, h, causal=self.decodes)
        if rows is not None:
            x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), rows)
        h = F.gelu(self.fc1(self.final_layer_norm(x)))
        after: Tensor = x + self.fc2(h)
        return after


class Encoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(shape.bins, shape.width, 3, padding=1)
        self.conv2 = nn.Conv1d(shape.width, shape.width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding.from_pretrained(_waves(shape.positions, shape.width))
        self.layers = nn.ModuleList(Layer(shape, decodes=False) for _ in range(shape.layers))
        self.layer_norm = nn.LayerNorm(shape.width)

    def forward(self, mel: Tensor) -> Tensor:
        """(sounds, bins, frames) to (sounds, positions, width)"""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        x = x + self.embed_positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        rows: Tensor = self.layer_norm(x)
        return rows


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.embed_positions = nn.Embedding(shape.context, shape.width)
        for table in (self.embed_tokens, self.embed_positions):
            nn.init.normal_(table.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(shape, decodes=True) for _ in range(shape.layers))
        self.layer_norm = nn.LayerNorm(shape.width)

    def forward(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """The logits of each position of texts, (texts, length, vocabulary)."""
        x = self.embed_tokens(tokens) + self.embed_positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, rows)
        return F.linear(self.layer_norm(x), self.embed_tokens.weight)


class TinyWhisper(nn.Module):
    """The logits of texts about sounds. While it learns, its rows name their words too: that teaches the encoder."""

    def __init__(self, shape: Shape, words: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.encoder, self.decoder = Encoder(shape), Decoder(shape)
        self.names = nn.Linear(shape.width, 1 + words)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        logits: Tensor = self.decoder(self.encoder(mel), tokens)
        return logits

    def matrices(self) -> list[nn.Parameter]:
        """The matrices of all layers."""
        layers = [*self.encoder.layers.parameters(), *self.decoder.layers.parameters()]
        return [weight for weight in layers if weight.ndim == 2]

    def tensors(self) -> dict[str, Tensor]:
        """The weights by their names in a folder of transformers."""
        state = self.state_dict()
        return {f"model.{name}": state[name] for name in state if not name.startswith("names.")}

    def load_tensors(self, tensors: Mapping[str, np.ndarray]) -> None:
        with torch.no_grad():
            for name, weight in self.tensors().items():
                weight.copy_(torch.from_numpy(tensors[name].astype(np.float32)))


def _waves(count: int, width: int) -> Tensor:
    """Sines, then cosines, of each position."""
    rates = torch.exp(torch.arange(width // 2) * (-np.log(10000) / (width // 2 - 1)))
    angles = torch.arange(count)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def mel_of(sounds: Tensor, bins: int) -> Tensor:
    """Log-mel spectrograms of sounds of one length, (sounds, bins, frames), as the engine makes them one by one."""
    lines = torch.stft(sounds, WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True)[..., :-1]
    filters = torch.tensor(mel_filters(bins), dtype=torch.float32)
    decades = (filters @ lines.abs().square()).clamp(min=FLOOR).log10()
    highest = decades.amax((1, 2), keepdim=True)
    return (torch.maximum(decades, highest - RANGE) + 4) / 4
