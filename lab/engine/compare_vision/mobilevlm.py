"""Small random models of MobileVLM: llava of transformers, with the authors' projectors, which transformers lacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kinds import PATCH, SIDE, TEXT, VISION, Kind, llava, middle_squares, pooled
from torch import nn
from torchvision.models.mobilenetv3 import InvertedResidual, InvertedResidualConfig
from torchvision.ops.misc import SqueezeExcitation

WIDTH = TEXT["hidden_size"]
PUBLISHED = 24 * PATCH


class ChannelNorm(nn.LayerNorm):
    """timm's LayerNormAct2d without activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class First(nn.Module):
    """LDPNetProjector of MobileVLM 1."""

    def __init__(self, side: int) -> None:
        super().__init__()
        squeeze = partial(SqueezeExcitation, scale_activation=nn.Hardsigmoid)
        described = [(WIDTH, 3, WIDTH, WIDTH, True, "HS", stride, 1, 1) for stride in (1, 2)]
        blocks = [InvertedResidual(InvertedResidualConfig(*each), ChannelNorm, squeeze) for each in described]
        linear = nn.Linear(VISION["hidden_size"], WIDTH), nn.Linear(WIDTH, WIDTH)
        self.model = nn.Module()
        self.model.mlp = nn.Sequential(nn.Identity(), linear[0], nn.GELU(), linear[1])
        self.model.mb_block = nn.Sequential(nn.Identity(), *blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _rows(self.model.mb_block(_planes(self.model.mlp(x))))


class Second(nn.Module):
    """LDPNetV2Projector of MobileVLM 2, for any side of the grid."""

    def __init__(self, side: int) -> None:
        super().__init__()
        linear = nn.Linear(VISION["hidden_size"], WIDTH), nn.Linear(WIDTH, WIDTH)
        self.model = nn.Module()
        self.model.mlp = nn.Sequential(linear[0], nn.GELU(), linear[1])
        self.model.peg = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, 1, 1, bias=True, groups=WIDTH))
        few = side // PATCH // 2
        self.pool = nn.AdaptiveAvgPool2d((few, few))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(_planes(self.model.mlp(x)))
        return _rows(self.model.peg(x) + x)


def _planes(x: torch.Tensor) -> torch.Tensor:
    side = int(x.shape[1] ** 0.5)
    return x.permute(0, 2, 1).reshape(len(x), -1, side, side)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).permute(0, 2, 1)


def _made(projector: Callable[[int], nn.Module], side: int) -> Any:
    model = llava(side)
    model.model.multi_modal_projector = projector(side)
    return model


KINDS = {
    name: Kind(partial(_made, projector, side), partial(middle_squares, side), pooled, fitting=(side, side))
    for name, projector, side in (
        ("ldp", First, SIDE),
        ("ldpv2", Second, SIDE),
        ("ldp-published", First, PUBLISHED),
        ("ldpv2-published", Second, PUBLISHED),
    )
}
"""Small grids, and those of the published models, 24 by 24 patches: llama.cpp takes no others."""
