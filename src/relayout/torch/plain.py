"""Which tensors lie in memory as they say, with nobody else to be told when they are copied.

A ``torch.Tensor`` may be much besides elements at strides: on another device, sparse, quantised, negated by a
bit, named, batched by ``vmap``, wrapped by a subclass. And somebody may be watching: a mode that sees every
operator, a tracer, ``torch.func``. PyTorch's dispatcher knows all of it, as bits: those of the tensor, and
those of the thread. A tensor is *plain* if both are those of the plainest tensor there is, in a thread that
nobody watches. So what a later version adds is not plain until it is known here.

Two things have no bit: modes that see functions (``torch.set_default_device`` is one), and derivatives that
are carried forward. They are counted elsewhere.

>>> import torch
>>> x = torch.ones(2, 3)
>>> is_plain(x), is_plain(x.to_sparse()), is_plain(x.to("meta"))
(True, False, False)
>>> torch.func.vmap(lambda row: (print(is_plain(row)), row)[1])(x).shape
False
torch.Size([2, 3])
"""

from __future__ import annotations

from threading import Thread
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["TYPES", "is_plain", "is_watched"]

TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
"""The classes that tensors may have; any other may see its own calls."""

_TENSORS = set[int]()
_THREADS = set[int]()


def _note() -> None:
    """Note the bits of plain tensors and threads."""
    for inference in (False, True):
        with torch.inference_mode(inference):
            _TENSORS.add(torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr())
            _THREADS.add(torch._C._dispatch_tls_local_include_set().raw_repr())


try:  # none of it is a public interface
    _modes, _tracing = torch._C._len_torch_function_stack, torch._C._get_tracing_state
    _bits, _bits_of_thread = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set
    _level = forward_ad._current_level
except AttributeError:
    _known = False
else:
    _known = True
    _clean = Thread(target=_note)  # nobody watches a new thread, whoever watches the one that imports this
    _clean.start()
    _clean.join()


def is_plain(x: Any) -> bool:
    """Whether all there is to copying a tensor is to read its memory.

    Where the installed PyTorch does not tell, nothing is plain.
    """
    return (
        type(x) in TYPES
        and _known
        and not _modes()
        and _bits(x).raw_repr() in _TENSORS
        and _bits_of_thread().raw_repr() in _THREADS
        and forward_ad._current_level < 0
    )


def is_watched() -> bool:
    """Whether even a call that does nothing must reach PyTorch, for a function mode or ``torch.jit``."""
    return not _known or bool(_modes()) or _tracing() is not None
