"""Whole networks as sequences of primitives.

>>> import numpy as np
>>> from relayout.networks import build
>>> seq = build("resnet50", batch=1, format="nhwc", size=64)
>>> [value.desc for value in seq.inputs + seq.outputs]
[MemoryDesc('f32:nhwc:1x3x64x64'), MemoryDesc('f32:nc:1x1000')]

``seq.compile()`` makes what runs it (:mod:`relayout.primitives.sequence`).

==============  =============================================================================================
``resnet``      ResNet-50, -101, -152 and ResNeXt-101 32x4d
``graphs``      the same as graphs, with batch normalisations: what :mod:`relayout.training` trains
``layers``      layers in a format that is chosen for all of them
``parameters``  weights: random ones, or those of a file; batch normalisation is folded into convolutions
==============  =============================================================================================
"""

from __future__ import annotations

from relayout.networks.graphs import graph
from relayout.networks.parameters import Parameters, from_file, random
from relayout.networks.resnet import NETWORKS, Architecture, build

__all__ = ["NETWORKS", "Architecture", "Parameters", "build", "from_file", "graph", "random"]
