"""A residual network in PyTorch, with the names of ``torchvision``: what training is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from relayout.networks.resnet import EXPANSION, Architecture


class Block(nn.Module):
    """Three convolutions, and what they are added to."""

    def __init__(self, channels: int, inner: int, outer: int, stride: int, groups: int, first: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer)
        self.downsample = None
        if first:
            around = nn.Conv2d(channels, outer, 1, stride, bias=False)
            self.downsample = nn.Sequential(around, nn.BatchNorm2d(outer))

    def forward(self, x: Any) -> Any:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        y = self.bn3(self.conv3(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class Resnet(nn.Module):
    """The network that :func:`relayout.networks.graph` builds."""

    def __init__(self, architecture: Architecture, classes: int) -> None:
        super().__init__()
        channels = architecture.channels
        self.conv1, self.bn1 = nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.stages = len(architecture.depths)
        for stage, depth in enumerate(architecture.depths):
            inner, outer = architecture.width << stage, (architecture.channels * EXPANSION) << stage
            blocks = []
            for place in range(depth):
                stride = 2 if place == 0 and stage > 0 else 1
                blocks.append(Block(channels, inner, outer, stride, architecture.groups, place == 0))
                channels = outer
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))

    def load(self, constants: dict[str, Any]) -> None:
        """Take parameters and statistics from arrays of these names."""
        known = {name: torch.tensor(data) for name, data in constants.items()}
        counts = {name: one for name, one in self.state_dict().items() if name.endswith("tracked")}
        self.load_state_dict({**known, **counts})
