"""Residual networks, from pictures to scores.

A residual block adds what it computes to what it was given (He and others, "Deep Residual Learning")::

    x ----> 1x1, relu ----> 3x3, relu ----> 1x1 ----> + ----> relu ---->
     `----------------( 1x1, if sizes change )--------^

The addition is a post-op of the last convolution, which so writes over what it adds to: the block needs no
memory for it, and no pass of its own. Batch normalisations are folded into the convolutions
(:mod:`relayout.networks.parameters`).

Layers are called as in PyTorch's ``torchvision``, so that its weights fit: ``conv1``, ``layer1.0.conv2``,
``layer2.0.downsample``, ``fc``. Pictures are halved in the 3 x 3 convolution of a block ("v1.5"), as there.
"""

from __future__ import annotations

from typing import NamedTuple

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.networks.layers import Layers
from relayout.networks.parameters import Parameters, folded, random
from relayout.primitives.sequence import Sequence
from relayout.primitives.values import Value

__all__ = ["NETWORKS", "Architecture", "build"]

EXPANSION = 4  # channels that a block gives for each channel of its stage


class Architecture(NamedTuple):
    """What tells one residual network from another."""

    depths: tuple[int, ...]
    """Blocks of each stage."""
    groups: int = 1
    """Of the 3 x 3 convolutions."""
    width: int = 64
    """Channels of the 3 x 3 convolutions in the first stage; each stage doubles them."""
    channels: int = 64
    """Of the first convolution and the first stage, whose blocks give four times as many; each stage doubles
    them."""


NETWORKS = {
    "resnet50": Architecture((3, 4, 6, 3)),
    "resnet101": Architecture((3, 4, 23, 3)),
    "resnet152": Architecture((3, 8, 36, 3)),
    "resnext101_32x4d": Architecture((3, 4, 23, 3), groups=32, width=128),
}
"""By the names of ``torchvision``."""


def build(
    network: str | Architecture,
    batch: int = 1,
    format: str | Format = "any",
    parameters: Parameters | None = None,
    *,
    size: int = 224,
    classes: int = 1000,
    dtype: str = "f32",
) -> Sequence:
    """A residual network as a sequence: input ``data``, of batch x 3 x size x size; output batch x classes.

    Parameters
    ----------
    network : str or Architecture
        One of :data:`NETWORKS`, or another one.
    batch, size, classes : int
        Pictures at a time, their height and width, and what there is to tell apart.
    format : str or Format
        ``"any"``, or the format of all activations; see :mod:`relayout.networks.layers`.
    parameters : callable, optional
        Where weights come from: :func:`~relayout.networks.parameters.from_file`, or
        :func:`~relayout.networks.parameters.random`, which is the default.
    dtype : str
        The data type of activations and weights; input and output are f32.

    Raises
    ------
    LayoutError
        There is no such network, a number is less than 1, the format is none of four axes, or parameters are
        missing or of other shapes.
    """
    if isinstance(network, str):
        if network not in NETWORKS:
            raise LayoutError(f"there is no network {network!r}; there are {', '.join(NETWORKS)}")
        network = NETWORKS[network]
    for name, number in (("batch", batch), ("size", size), ("classes", classes)):
        if number < 1:
            raise LayoutError(f"{name} must be at least 1, got {number}")
    return _Resnet(network, parameters or random(), Layers(format, dtype)).built(batch, size, classes)


class _Resnet:
    """Appends all layers of a network."""

    def __init__(self, architecture: Architecture, parameters: Parameters, layers: Layers) -> None:
        self.architecture, self.parameters, self.layers = architecture, parameters, layers

    def built(self, batch: int, size: int, classes: int) -> Sequence:
        """The whole network."""
        layers = self.layers
        x = layers.data((batch, 3, size, size))
        x = self._convolution(x, "conv1", "bn1", self.architecture.channels, 7, stride=2)
        x = layers.max_pool(x, 3, 2, 1, "maxpool")
        for stage, depth in enumerate(self.architecture.depths):
            for place in range(depth):
                x = self._block(x, f"layer{stage + 1}.{place}", stage, place == 0)
        x = layers.average_pool(x, "avgpool")
        weights = self.parameters("fc.weight", (classes, x.desc.dims[1]))
        x = layers.fully_connected(x, weights, self.parameters("fc.bias", (classes,)), "fc")
        layers.sequence.output(x, MemoryDesc(x.desc.dims, "f32", "nc"))
        return layers.sequence

    def _block(self, x: Value, name: str, stage: int, first: bool) -> Value:
        """Three convolutions, and what they are added to."""
        inner = self.architecture.width << stage
        outer = (self.architecture.channels * EXPANSION) << stage
        stride = 2 if first and stage > 0 else 1
        y = self._convolution(x, f"{name}.conv1", f"{name}.bn1", inner, 1)
        y = self._convolution(
            y, f"{name}.conv2", f"{name}.bn2", inner, 3, stride=stride, groups=self.architecture.groups
        )
        if first:
            around = f"{name}.downsample"
            x = self._convolution(x, f"{around}.0", f"{around}.1", outer, 1, stride=stride, relu=False)
        return self._convolution(y, f"{name}.conv3", f"{name}.bn3", outer, 1, added=x)

    def _convolution(
        self,
        x: Value,
        name: str,
        normalisation: str,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
        added: Value | None = None,
    ) -> Value:
        dims = (outputs, x.desc.dims[1] // groups, kernel, kernel)
        weights, bias = folded(self.parameters, name, normalisation, dims)
        return self.layers.convolution(
            x,
            weights,
            bias,
            name,
            stride=stride,
            padding=kernel // 2,
            groups=groups,
            relu=relu,
            added=added,
        )
