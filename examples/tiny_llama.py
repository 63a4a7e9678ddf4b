"""A small Llama in PyTorch, with the layout and tensor names of GGUF's `llama` architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Widths are multiples of 32, so that q8_0 and q4_0 can hold every matrix."""

    width: int = 128
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 384
    vocabulary: int = 512
    context: int = 256
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def rotations(shape: Shape) -> Tensor:
    """The rotary angle of each position and pair, as unit complex numbers."""
    frequencies = shape.rope_base ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(shape.context).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)  # (context, head_dim / 2)


def rotate(x: Tensor, by: Tensor) -> Tensor:
    """Pairs are neighbours, as in llama.cpp for this architecture."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))  # (batch, tokens, heads, head_dim / 2)
    return torch.view_as_real(pairs * by[: x.shape[1], None]).flatten(-2)


def as_q4_0(weight: Tensor) -> Tensor:
    """The values rounded as in q4_0; gradients ignore the rounding."""
    blocks = weight.detach().unflatten(-1, (-1, 32))
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    step = (largest / -8).half().float()
    codes = (blocks / torch.where(step == 0, 1, step) + 8.5).floor().clamp(0, 15) - 8
    return weight + ((codes * step).flatten(-2) - weight).detach()


class Block(nn.Module):
    """One layer. With `rounded`, its matrices are rounded as in q4_0, so that training adapts to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.rounded = False
        self.attn_norm = nn.Parameter(torch.ones(shape.width))
        self.ffn_norm = nn.Parameter(torch.ones(shape.width))
        self.attn_qkv = _matrix((shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.width)
        self.attn_output = _matrix(shape.width, shape.width, scale=(2 * shape.layers) ** -0.5)
        self.ffn_gate_up = _matrix(2 * shape.hidden, shape.width)
        self.ffn_down = _matrix(shape.width, shape.hidden, scale=(2 * shape.layers) ** -0.5)

    def forward(self, x: Tensor, by: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(F.rms_norm(x, x.shape[-1:], self.attn_norm, self.shape.eps), by, mask)
        h = F.rms_norm(x, x.shape[-1:], self.ffn_norm, self.shape.eps)
        gate, up = self.linear(h, self.ffn_gate_up).chunk(2, -1)
        return x + self.linear(F.silu(gate) * up, self.ffn_down)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, as_q4_0(weight) if self.rounded else weight)

    def attention(self, x: Tensor, by: Tensor, mask: Tensor | None) -> Tensor:
        """Causal without a mask."""
        heads, kv = self.shape.heads, self.shape.kv_heads
        qkv = self.linear(x, self.attn_qkv).unflatten(
            -1, (-1, self.shape.head_dim)
        )  # (batch, tokens, heads, d)
        qk, value = qkv.split((heads + kv, kv), 2)
        query, key = rotate(qk, by).split((heads, kv), 2)
        key, value = (t.float().repeat_interleave(heads // kv, 2) for t in (key, value))
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        # In float32: PyTorch's backward pass of attention in bfloat16 takes six times as long here.
        with torch.autocast("cpu", enabled=False):
            y = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return self.linear(y.transpose(1, 2).flatten(2), self.attn_output)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by their names in a file; parts of a joint matrix are views."""
        shape = self.shape
        widths = [shape.heads * shape.head_dim, *[shape.kv_heads * shape.head_dim] * 2]
        query, key, value = self.attn_qkv.split(widths)
        gate, up = self.ffn_gate_up.chunk(2)
        return {
            "attn_norm": self.attn_norm,
            "attn_q": query,
            "attn_k": key,
            "attn_v": value,
            "attn_output": self.attn_output,
            "ffn_norm": self.ffn_norm,
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": self.ffn_down,
        }


def _matrix(out: int, inner: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(out, inner) * (scale * inner**-0.5))


class TinyLlama(nn.Module):
    """The logits of every position; the output matrix is the embedding."""

    by: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Parameter(torch.randn(shape.vocabulary, shape.width) * 0.05)
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.register_buffer("by", rotations(shape), persistent=False)

    @property
    def layers(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.through(F.embedding(tokens, self.token_embd), self.by)

    def through(self, x: Tensor, by: Tensor, mask: Tensor | None = None) -> Tensor:
        """The last states of embedded rows, which are turned `by` their positions' angles."""
        for block in self.layers:
            x = block(x, by, mask)
        return F.rms_norm(x, x.shape[-1:], self.output_norm, self.shape.eps)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.hidden(tokens), self.token_embd)

    def matrices(self) -> list[nn.Parameter]:
        """The matrices of the blocks."""
        return [weight for weight in self.blocks.parameters() if weight.ndim == 2]

    def round(self, rounded: bool) -> None:
        """Whether the blocks' matrices are rounded as in q4_0."""
        for block in self.layers:
            block.rounded = rounded

    def tensors(self) -> dict[str, np.ndarray]:
        """The weights by their names in a GGUF file."""
        return {name: weight.numpy().copy() for name, weight in self._weights().items()}

    def load_tensors(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Load the weights that `tensors` gave, or a file holds."""
        with torch.no_grad():
            for name, weight in self._weights().items():
                weight.copy_(torch.from_numpy(np.array(tensors[name], np.float32)))

    def _weights(self) -> dict[str, Tensor]:
        found = {"token_embd.weight": self.token_embd.data}
        for i, block in enumerate(self.layers):
            found |= {f"blk.{i}.{name}.weight": weight.data for name, weight in block.tensors().items()}
        return found | {"output_norm.weight": self.output_norm.data}
