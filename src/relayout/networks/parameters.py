"""Where a network's weights come from, and what becomes of batch normalisation.

Parameters are asked for by the names that PyTorch's networks give them, as safetensors files have them::

    conv1.weight                    layer1.0.conv1.weight           layer1.0.downsample.0.weight
    bn1.weight  bn1.bias            layer1.0.bn1.running_mean       layer1.0.downsample.1.bias
    bn1.running_mean  ..._var       ...                             fc.weight  fc.bias

For inference a batch normalisation is a scale and a shift of each channel, and a convolution in front of it
can do both ::

    gamma (conv(x) - mean) / sqrt(variance + epsilon) + beta   =   conv'(x) + bias'
    weights' = weights gamma / sqrt(variance + epsilon)            bias' = beta - mean gamma / sqrt(...)

so no network here has one left (:func:`folded`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.forking import lock
from relayout.layout.layout import spell_dims

__all__ = ["EPSILON", "Parameters", "folded", "from_file", "random"]

EPSILON = 1e-5  # what PyTorch adds to a variance
BRANCH = 0.3  # how much of what it computes a residual block adds to what it was given

Floats = NDArray[np.float32]

Parameters = Callable[[str, Sequence[int]], Floats]
"""A function from a name and sizes to an array."""


def random(seed: int = 0) -> Parameters:
    """Random parameters, the same for the same seed and name, whatever else is asked for.

    They are scaled so that activations keep their magnitude from layer to layer: weights by the square root
    of two over the number of products in a sum (He and others, "Delving Deep into Rectifiers"), the last
    normalisation of a residual block by a third, since its results are added up.

    >>> make = random(1)
    >>> bool((make("fc.bias", (3,)) == make("fc.bias", (3,))).all())
    True
    """

    def make(name: str, dims: Sequence[int]) -> Floats:
        chance = np.random.default_rng([seed, zlib.crc32(name.encode())])
        values = chance.standard_normal(tuple(dims), dtype=np.float32)
        products = int(np.prod(dims[1:]))
        kind = name.rpartition(".")[2]
        if len(dims) > 1:
            values *= np.float32(np.sqrt((2 if len(dims) > 2 else 1) / max(1, products)))
        elif kind in ("weight", "running_var"):
            values = np.float32(1) + np.clip(values, -3, 3) / 10
            if name.endswith(".bn3.weight"):
                values *= np.float32(BRANCH)
        else:
            values /= 10
        return values.astype(np.float32)

    return make


def from_file(path: str | PathLike[str]) -> Parameters:
    """The parameters of a safetensors or npz file.

    Raises
    ------
    LayoutError
        When an array is asked for: it is not there, or of another shape.
    OSError
        The file can't be read.
    """
    with lock():
        from relayout import files

    def read(name: str, dims: Sequence[int]) -> Floats:
        array: NDArray[Any] = files.read(path, name=name).numpy()
        if array.shape != tuple(dims):
            raise LayoutError(
                f"{fspath(path)}: {name} is {spell_dims(array.shape)}, but the network has {spell_dims(dims)}"
            )
        return np.asarray(array.astype(np.float32))

    return read


def folded(
    parameters: Parameters, convolution: str, normalisation: str, dims: Sequence[int]
) -> tuple[Floats, Floats]:
    """Weights and bias of a convolution that does the batch normalisation behind it, too.

    Parameters
    ----------
    parameters : callable
        Where arrays come from.
    convolution, normalisation : str
        What the two layers are called: ``"layer1.0.conv1"``, ``"layer1.0.bn1"``.
    dims : sequence of int
        Sizes of the weights, output channels first.

    Returns
    -------
    weights, bias : ndarray of float32
        Computed in double precision.
    """
    weights = parameters(f"{convolution}.weight", dims).astype(np.float64)
    gamma, beta, mean, variance = (
        parameters(f"{normalisation}.{name}", dims[:1]).astype(np.float64)
        for name in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gamma / np.sqrt(variance + EPSILON)
    each = scale.reshape(-1, *(1 for _ in dims[1:]))
    return (weights * each).astype(np.float32), (beta - mean * scale).astype(np.float32)
