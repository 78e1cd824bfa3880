"""Primitives whose definition is given arrays in their data types: see :mod:`relayout.ops.native`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relayout.jit.floating import Usual
from relayout.primitives.primitive import Primitive
from relayout.reorder import reorder
from relayout.tensor import Tensor, tensor

if TYPE_CHECKING:
    from relayout.ops import native as ops

__all__ = ["Native"]


class Native(Primitive):
    """A primitive of a :class:`relayout.ops.native.Native` operation."""

    operation: ops.Native

    def _define(self, tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        what = self.operation
        with Usual():
            made = what.results([what.native(one, tensors[one.name].numpy()) for one in what.inputs])
            for name, target in targets.items():
                data = made[name].view(np.uint8) if made[name].dtype == bool else made[name]
                reorder(tensor(data, dtype=target.dtype), target.desc, axes="position", out=target)
