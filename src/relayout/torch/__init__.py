"""Relayout for programs that use PyTorch: conversions, batches, an audit of formats, a compiler's back end.

=============================  =============================================================================
``contiguous``, ``to``         conversions of memory format and data type, with PyTorch's own results
``convert_model``              the weights of a model in a memory format
``Collate``                    batches of pictures for a ``DataLoader``, normalised and in a format
``audit``                      where a model loses its format, and what that costs
``compile``, ``explain``       ``torch.compile`` with Relayout behind it, and what it took
=============================  =============================================================================

What needs no PyTorch stays elsewhere: :mod:`relayout.pytorch` has the rules of strides, and ``rl.tensor`` and
``Tensor.torch()`` exchange tensors.

The names are loaded when they are first asked for, and PyTorch with them: neither ``import relayout`` nor
``import relayout.torch`` imports it. No name may be that of a module of this package, since importing a
module binds its name here: so :mod:`~.auditing` defines ``audit``, and :mod:`~.compiling` ``compile``.

Here ``import torch`` means PyTorch: all imports are absolute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.errors import Unsupported as _Unsupported
from relayout.forking import later as _later

if TYPE_CHECKING:
    from relayout.torch.auditing import audit as audit
    from relayout.torch.batches import Collate as Collate
    from relayout.torch.compiling import compile as compile
    from relayout.torch.compiling import explain as explain
    from relayout.torch.conversion import contiguous as contiguous
    from relayout.torch.conversion import to as to
    from relayout.torch.models import convert_model as convert_model

_WHERE = {
    "Collate": "batches",
    "audit": "auditing",
    "compile": "compiling",
    "contiguous": "conversion",
    "convert_model": "models",
    "explain": "compiling",
    "to": "conversion",
}
"""The module that defines a name, one line each."""

__all__ = [
    "Collate",
    "audit",
    "compile",
    "contiguous",
    "convert_model",
    "explain",
    "to",
]

if not TYPE_CHECKING:
    _find, __dir__ = _later(__name__, **_WHERE)

    def __getattr__(name: str) -> Any:
        """Import a name when it is first asked for."""
        try:
            return _find(name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            raise _Unsupported(
                f"relayout.torch.{name} needs PyTorch, which can't be imported ({error}); "
                "pip install torch, or as pytorch.org says"
            ) from error
