"""Relayout: the memory formats of tensors, described, shown, translated and converted.

>>> import relayout as rl
>>> x = rl.Layout((1, 17, 2, 2), "nChw8c")
>>> x.offset(0, 9, 1, 0), x.padded_dims
(49, (1, 24, 2, 2))
>>> rl.Format("nChw16c").name("openvino")
'b_fs_yx_fsv16'

Four values, each built on the one before: :class:`Format` (an order of digits), :class:`Layout` (with sizes),
:class:`MemoryDesc` (with a data type) and :class:`Tensor` (with bytes). :func:`reorder` converts between any
two of the last.
"""

from typing import TYPE_CHECKING

from relayout import notation as notation
from relayout.dtypes import DType, dtype
from relayout.environment import LOADED as _LOADED  # noqa: F401 - notes when the package is imported
from relayout.errors import AmbiguousFormat, LayoutError, UnknownFormat, Unsupported
from relayout.forking import later as _later
from relayout.layout.descriptor import MemoryDesc, undef
from relayout.layout.descriptor import any_format as any
from relayout.layout.format import Format
from relayout.layout.layout import Layout
from relayout.notation import dialects
from relayout.reorder import reorder
from relayout.tensor import Tensor, from_buffer, tensor

if TYPE_CHECKING:
    from relayout import dask as dask
    from relayout import draw as draw
    from relayout import files as files
    from relayout import graph as graph
    from relayout import logs as logs
    from relayout import networks as networks
    from relayout import primitives as primitives
    from relayout import pytorch as pytorch
    from relayout import stores as stores
    from relayout import torch as torch
    from relayout import training as training
    from relayout.importers.loading import load as load
    from relayout.inspecting.costs import cost as cost
    from relayout.inspecting.guessing import guess as guess
    from relayout.inspecting.verification import verify as verify
    from relayout.layout import views as views
    from relayout.primitives.reorder import Reorder as Reorder
    from relayout.stores.opening import open as open

_LATER = (
    *("dask", "draw", "files", "graph", "logs", "networks", "primitives", "pytorch", "stores", "torch"),
    "training",
    "layout.views",
)
"""Modules that are loaded when they are first asked for, so that importing relayout stays cheap."""

__version__ = "0.1.0"

__all__ = [
    "AmbiguousFormat",
    "DType",
    "Format",
    "Layout",
    "LayoutError",
    "MemoryDesc",
    "Reorder",
    "Tensor",
    "UnknownFormat",
    "Unsupported",
    "any",
    "cost",
    "dask",
    "dialects",
    "draw",
    "dtype",
    "files",
    "from_buffer",
    "graph",
    "guess",
    "load",
    "logs",
    "networks",
    "notation",
    "open",
    "primitives",
    "pytorch",
    "reorder",
    "stores",
    "tensor",
    "torch",
    "training",
    "undef",
    "verify",
    "views",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = _later(
        __name__,
        *_LATER,
        Reorder="primitives.reorder",
        load="importers.loading",
        open="stores.opening",
        cost="inspecting.costs",
        guess="inspecting.guessing",
        verify="inspecting.verification",
    )
