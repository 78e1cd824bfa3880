"""Weights that are packed once, and watched.

A graph that is compiled with its weights is right as long as they are what they were. In each call it is
looked whether they still are:

* the same tensors: a module of the same class calls the same graph with weights of its own;
* in the same memory: ``p.data = other`` and ``load_state_dict(assign=True)``;
* of the same version: PyTorch counts writes in place, those of optimisers and of ``load_state_dict``;
* with the same samples: what is written through ``p.data`` is not counted. So some elements of each tensor
  are compared with what they were. That finds whatever changes a tensor as a whole (an optimiser, an average,
  noise); a single element that is set through ``p.data`` may be missed. ``p[i] = x`` without gradients never
  is, since it is counted.

All of that takes some 0.2 microseconds for each tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import torch

from relayout.errors import LayoutError
from relayout.importers.torch.arrays import array_of

__all__ = ["Watched", "watchable"]

SAMPLES: Final = 4
"""Elements of each weight that are compared."""

_version = attrgetter("_version")
_place = torch.Tensor.data_ptr  # found once: methodcaller would look it up for each


def watchable(tensor: Any) -> bool:
    """Whether a tensor can be watched.

    Writes to tensors of ``torch.inference_mode`` are not counted, and samples need elements in the memory of
    the CPU, of a data type that NumPy has or can be given: complex numbers are not, nor what is sparse.
    """
    if tensor.is_inference():
        return False
    try:
        array_of(tensor, "", lasting=False)
    except LayoutError:
        return False
    return True


class Watched:
    """The tensors with which something was compiled; they are not kept alive.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Those that writes are counted of (:func:`watchable`).
    gone : callable
        Called without arguments when one of them is no more.

    Attributes
    ----------
    alive : bool
        Whether all of them are still there.
    """

    def __init__(self, tensors: Sequence[Any], gone: Callable[[], object]) -> None:
        self.alive = True
        self._gone = gone
        self._ids = list(map(id, tensors))
        self._owners = [weakref.ref(one, self._end) for one in tensors]
        self._versions = list(map(_version, tensors))
        self._places = list(map(_place, tensors))
        views: dict[int, list[Any]] = {}
        for one in tensors:
            sample = _sample(one)
            views.setdefault(sample.itemsize, []).append(sample)
        self._views = tuple(views.values())
        self._samples = self._sampled()

    def are(self, given: Sequence[Any]) -> bool:
        """Whether these are the same tensors."""
        return self.alive and list(map(id, given)) == self._ids

    def unchanged(self, given: Sequence[Any]) -> bool:
        """Whether nobody has written to them, as far as that can be told; they have to be the same."""
        return (
            list(map(_version, given)) == self._versions
            and list(map(_place, given)) == self._places
            and self._sampled() == self._samples
        )

    def _sampled(self) -> list[bytes]:
        return [np.concatenate(several).tobytes() for several in self._views]

    def _end(self, _: object) -> None:
        if self.alive:
            self.alive = False
            self._views = ()
            self._gone()


def _sample(tensor: Any) -> Any:
    """A few elements along the longest axis, in the middle of the others, as integers in its memory."""
    whole = array_of(tensor, "", lasting=False)
    whole = whole.reshape(1) if not whole.ndim else whole
    axis = max(range(whole.ndim), key=whole.shape.__getitem__)
    step = -(-whole.shape[axis] // SAMPLES) or 1
    at = tuple(slice(None, None, step) if k == axis else n // 2 for k, n in enumerate(whole.shape))
    found = whole[at] if whole.size else whole.reshape(0)
    return found.view(f"u{found.itemsize}")
