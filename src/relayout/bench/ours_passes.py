"""Relayout's normalisations, pooling, softmax and activations, for :mod:`relayout.bench.passes`."""

from __future__ import annotations

from functools import partial
from typing import Any

import relayout as rl
from relayout import primitives
from relayout.bench.operands import Floats, Operands
from relayout.bench.passes import EPSILON, Pass
from relayout.bench.peers.primitives.contestant import Computation
from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.processors import limited
from relayout.tensor import Tensor, allocate

__all__ = ["prepared"]


def prepared(work: Pass, operands: Operands, threads: int) -> Computation:
    """Make a primitive, and run the forward pass before a backward one.

    Raises
    ------
    LayoutError
        Relayout has a definition of it, and no kernel.
    """
    with limited(threads):  # everybody plans for the threads that will work
        forward = _forward(work)
        made = getattr(primitives, f"{type(forward).__name__}Backward")(forward) if work.backward else forward
        if made.implementation.startswith("definition"):
            raise LayoutError("Relayout has a definition of it, and no kernel")
        made.tune()  # as its first calls would
    arrays = dict(zip(("scale", "shift"), work.vectors(), strict=True)) | {"src": operands.src}
    if operands.diff is not None:
        arrays["diff_dst"] = operands.diff
    known = {
        name: rl.tensor(array).reorder(desc)
        for name, array in arrays.items()
        if (desc := forward.descs.get(name, made.descs.get(name))) is not None
    }
    if work.backward:
        several = forward(*(known[name] for name in forward.inputs))
        several = (several,) if len(forward.outputs) == 1 else several
        known |= dict(zip(forward.outputs, several, strict=True))
    targets = {name: Tensor(made.descs[name], allocate(made.descs[name])) for name in made.outputs}
    first = made.outputs[0]
    out = targets[first] if len(targets) == 1 else targets
    run = partial(made, *(known[name] for name in made.inputs), out=out, threads=threads)
    return Computation(run, partial(_array, targets[first]), made.implementation)


def _forward(work: Pass) -> Any:
    """The primitive of the forward pass, as training wants it."""
    src = MemoryDesc(work.src_dims, "f32", work.format)
    relu = work.how == "relu"
    if work.kind == "batch_normalization":
        return primitives.BatchNormalization(
            *(src, None, EPSILON),
            use_scale=True,
            use_shift=True,
            use_global_stats=False,
            fuse_relu=relu,
            workspace=relu,
        )
    if work.kind == "layer_normalization":
        return primitives.LayerNormalization(src, True, True, epsilon=EPSILON, statistics=True)
    if work.kind == "group_normalization":
        return primitives.GroupNormalization(
            src, True, True, groups=work.groups, epsilon=EPSILON, statistics=True
        )
    if work.kind == "softmax":
        return primitives.Softmax(src, -1)
    if work.kind == "eltwise":
        return primitives.Eltwise(src, work.how)
    largest = work.how == "max"
    algorithm = "max" if largest else "average_include_padding"
    numbers = work.window, work.stride, work.padding
    return primitives.Pooling(src, algorithm, *numbers, workspace=largest)


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.numpy(copy=True)
    return array
