"""Residual networks as graphs, with their batch normalisations: what is trained.

For inference :func:`relayout.networks.build` folds these into convolutions; training needs them apart, since
their statistics are those of each batch. Constants are called as PyTorch's ``torchvision`` calls parameters,
so that what was learned fits there, and into :func:`~relayout.networks.build`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.networks.parameters import EPSILON, Parameters, random
from relayout.networks.resnet import EXPANSION, NETWORKS, Architecture

__all__ = ["graph"]

STATISTICS = ("weight", "bias", "running_mean", "running_var")
"""What a batch normalisation is given, in the order in which the operator takes it."""


def graph(
    network: str | Architecture,
    parameters: Parameters | None = None,
    *,
    size: int = 224,
    classes: int = 1000,
) -> Graph:
    """A residual network as a graph: input ``data``, of batch x 3 x size x size; output ``scores``.

    Parameters
    ----------
    network : str or Architecture
        One of :data:`~relayout.networks.NETWORKS`, or another one.
    parameters : callable, optional
        Where weights come from: :func:`~relayout.networks.from_file`, or :func:`~relayout.networks.random`,
        which is the default.
    size, classes : int
        Height and width of pictures, and what there is to tell apart.

    Raises
    ------
    LayoutError
        There is no such network, a number is less than 1, or parameters are missing or of other shapes.

    Examples
    --------
    >>> small = graph(Architecture((1, 1, 1, 1), width=4, channels=4), size=32, classes=10)
    >>> small.inputs[0].dims, small.outputs[0].dims, len(small.constants)
    (('batch', 3, 32, 32), ('batch', 10), 87)
    """
    if isinstance(network, str):
        if network not in NETWORKS:
            raise LayoutError(f"there is no network {network!r}; there are {', '.join(NETWORKS)}")
        network = NETWORKS[network]
    for name, number in (("size", size), ("classes", classes)):
        if number < 1:
            raise LayoutError(f"{name} must be at least 1, got {number}")
    return _Building(network, parameters or random()).built(size, classes)


class _Building:
    """Nodes and constants, while the network grows; values are known by name and channels."""

    def __init__(self, architecture: Architecture, parameters: Parameters) -> None:
        self.architecture, self.parameters = architecture, parameters
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    def built(self, size: int, classes: int) -> Graph:
        data = Value("data", ("batch", 3, size, size), np.dtype(np.float32))
        channels = self.architecture.channels
        x = self._relu(self._normalized("data", "conv1", "bn1", 3, channels, 7, stride=2), "relu")
        pads = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
        x = self._node("MaxPool", (x,), "maxpool", **pads)
        for stage, depth in enumerate(self.architecture.depths):
            for place in range(depth):
                x, channels = self._block(x, f"layer{stage + 1}.{place}", stage, place == 0, channels)
        x = self._node("Flatten", (self._node("GlobalAveragePool", (x,), "avgpool"),), "flatten")
        weights, bias = self._take("fc.weight", (classes, channels)), self._take("fc.bias", (classes,))
        self._node("Gemm", (x, weights, bias), "scores", transB=1)
        return inferred(Graph((data,), ("scores",), tuple(self.nodes), self.constants, name="resnet"))

    def _block(self, x: str, name: str, stage: int, first: bool, channels: int) -> tuple[str, int]:
        """Three convolutions, what they are added to, and how many channels come out."""
        inner = self.architecture.width << stage
        outer = (self.architecture.channels * EXPANSION) << stage
        stride = 2 if first and stage > 0 else 1
        groups = self.architecture.groups
        y = self._relu(
            self._normalized(x, f"{name}.conv1", f"{name}.bn1", channels, inner, 1), f"{name}.relu1"
        )
        y = self._normalized(y, f"{name}.conv2", f"{name}.bn2", inner, inner, 3, stride=stride, groups=groups)
        y = self._relu(y, f"{name}.relu2")
        y = self._normalized(y, f"{name}.conv3", f"{name}.bn3", inner, outer, 1)
        if first:
            around = f"{name}.downsample"
            x = self._normalized(x, f"{around}.0", f"{around}.1", channels, outer, 1, stride=stride)
        return self._relu(self._node("Add", (y, x), f"{name}.sum"), name), outer

    def _normalized(
        self,
        x: str,
        name: str,
        normalisation: str,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
    ) -> str:
        """A convolution, and the batch normalisation behind it."""
        weights = self._take(f"{name}.weight", (outputs, inputs // groups, kernel, kernel))
        windows = {"strides": (stride,) * 2, "pads": (kernel // 2,) * 4, "group": groups}
        y = self._node("Conv", (x, weights), name, **windows)
        given = [self._take(f"{normalisation}.{one}", (outputs,)) for one in STATISTICS]
        return self._node("BatchNormalization", (y, *given), normalisation, epsilon=EPSILON)

    def _relu(self, x: str, name: str) -> str:
        return self._node("Relu", (x,), name)

    def _take(self, name: str, dims: tuple[int, ...]) -> str:
        self.constants[name] = self.parameters(name, dims)
        return name

    def _node(self, operator: str, inputs: tuple[str, ...], name: str, **attributes: Any) -> str:
        self.nodes.append(Node(operator, inputs, (name,), attributes, name))
        return name
