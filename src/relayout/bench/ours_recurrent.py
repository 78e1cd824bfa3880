"""Relayout's recurrent layers, for :mod:`relayout.bench.recurrent`."""

from __future__ import annotations

from functools import partial
from typing import Any

import relayout as rl
from relayout import primitives
from relayout.bench.operands import Floats, Operands
from relayout.bench.peers.primitives.contestant import Computation
from relayout.bench.peers.primitives.recurrent import arguments, joined
from relayout.bench.recurrent import Recurrent
from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.processors import limited
from relayout.tensor import Tensor, allocate

__all__ = ["layer"]

NAMES = {"lstm": "LSTM", "lbr_gru": "LBRGRU"}


def layer(work: Recurrent, operands: Operands, threads: int) -> Computation:
    """A layer with weights in the formats that it chooses; backward these are others than forward.

    Raises
    ------
    LayoutError
        Relayout has a definition of it, and no kernel.
    """
    data = arguments(operands)
    with limited(threads):  # everybody plans for the threads that will work
        descs = {key: MemoryDesc(one.shape, "f32", rl.any) for key, one in data.items()}
        descs["src_layer"] = MemoryDesc(work.src_dims, "f32", "tnc")
        forward = getattr(primitives, NAMES[work.cell])(**descs, workspace=work.way != "inference")
        made: Any = forward
        if work.way == "backward":
            free = dict.fromkeys(("weights_layer", "weights_iter"), rl.any)
            free |= {f"diff_{key}": rl.any for key in free}
            made = getattr(primitives, f"{NAMES[work.cell]}Backward")(forward, **free)
        if made.implementation.startswith("definition"):
            raise LayoutError("Relayout has a definition of it, and no kernel")
        made.tune()  # as its first calls would
    known = {key: rl.tensor(data[key]).reorder(made.descs[key]) for key in data if key in made.inputs}
    if work.way == "backward":
        before = (rl.tensor(data[key]).reorder(forward.descs[key]) for key in forward.inputs)
        known["workspace"] = forward(*before).workspace
        known["diff_dst_layer"] = rl.tensor(operands.src)
    targets = {key: Tensor(made.descs[key], allocate(made.descs[key])) for key in made.outputs}
    out = targets["dst_layer"] if len(targets) == 1 else targets

    def result() -> Floats:
        if work.way == "backward":
            return joined({key: one.numpy(copy=True) for key, one in targets.items()})
        found: Floats = targets["dst_layer"].numpy(copy=True)
        return found

    run = partial(made, *(known[key] for key in made.inputs), out=out, threads=threads)
    return Computation(run, result, f"{made.implementation} {made.descs['weights_iter'].tag}")
