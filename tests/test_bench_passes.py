"""Normalisations and the like in the bench: everybody computes the definition; bytes are counted."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from relayout.bench.operands import difference, operands
from relayout.bench.ours import Ours
from relayout.bench.ours_passes import _forward
from relayout.bench.passes import NETWORKS, Pass, copying, passes
from relayout.bench.peers.primitives import all_peers

SMALL = [
    Pass("one", "batch_normalization", (3, 32, 5, 4), "nhwc"),
    Pass("two", "batch_normalization", (3, 32, 5, 4), "nChw16c", "relu"),
    Pass("three", "layer_normalization", (3, 5, 48), "abc"),
    Pass("four", "group_normalization", (3, 32, 5, 4), "nhwc", groups=4),
    Pass("five", "pooling", (3, 32, 9, 8), "nhwc", "max", window=3, stride=2, padding=1),
    Pass("six", "pooling", (3, 32, 9, 8), "nChw16c", "average", window=3, padding=1),
    Pass("seven", "softmax", (3, 5, 17), "abc"),
    Pass("eight", "eltwise", (3, 32, 5, 4), "nChw16c", "relu"),
    Pass("nine", "eltwise", (3, 5, 48), "abc", "gelu_erf"),
]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("work", SMALL, ids=str)
def test_everybody_computes_the_same(work, backward):
    work = Pass(**{**vars(work), "backward": backward})
    given = operands(work)
    made = Ours().prepare(work, given, 1)
    made.run()
    expected = made.result()
    if not backward:
        primitive = _forward(work)
        vectors = dict(zip(("scale", "shift"), work.vectors(), strict=True))
        arrays = {name: {"src": given.src, **vectors}[name] for name in primitive.inputs}
        found = primitive.reference(**arrays)
        defined = found if len(primitive.outputs) == 1 else found.dst
        assert difference(np.float32(defined), expected) is None
    assert expected.shape == (work.src_dims if backward else work.dst_dims)
    for peer in all_peers():
        if peer.available() is None or (other := peer.prepare(work, given, 1)) is None:
            continue
        other.run()
        assert difference(expected, other.result()) is None, peer.name


def test_layers_of_resnet():
    """53 normalisations, all but those of expansions and shortcuts with a ReLU."""
    for format in ("nhwc", "nChw16c"):
        found = [one for one in passes("ResNet-50 normalization", 2) if one.format == format]
        for backward in (False, True):
            layers = [one for one in found if one.backward == backward]
            assert sum(one.count for one in layers) == 53
            assert sum(one.count for one in layers if one.how == "relu") == 33
            assert len({(one.dims, one.how) for one in layers}) == len(layers)


def test_names_are_of_one_layer():
    for network in NETWORKS:
        found = [(one.way, one.name) for one in passes(network)]
        assert len(set(found)) == len(found)


def test_bytes():
    src, dst = 3 * 32 * 9 * 8, 3 * 32 * 5 * 4
    assert SMALL[4].bytes == 4 * (src + dst) + dst
    assert Pass(**{**vars(SMALL[4]), "backward": True}).bytes == 4 * (src + dst) + dst
    assert Pass(**{**vars(SMALL[1]), "backward": True}).bytes == 13 * prod(SMALL[1].dims)
    made = copying(SMALL[0], 1)
    made.run()
    assert made.flops == SMALL[0].bytes
