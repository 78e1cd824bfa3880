"""What is written through a view is written to what it is a view of.

A graph of values has no memory. So a write through a view becomes a new value of the whole, with the part in
its place, and whoever reads another view of it afterwards takes it from there::

    y = x * 2               mul       y
    part = y.view(-1)[3:]   view      slice
    part.zero_()            view of slice_scatter(view, zeros)        is y from then on
    y.sum(), part           sum(y)    slice(view(y))

That is what AOTAutograd does, too. Views that overlap themselves (``expand``), and those that are described
by strides (``as_strided``), are left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

__all__ = ["View"]


class View(NamedTuple):
    """How a view was made.

    Attributes
    ----------
    base : torch.Tensor
        What it is a view of.
    func : torch._ops.OpOverload
        The operator.
    args, kwargs : tuple, dict
        Its other arguments.
    made : torch.Tensor or sequence of torch.Tensor
        All that it returned.
    place : int or None
        Which of several results the view is; None: the operator returns one.
    """

    base: Any
    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: Any
    place: int | None

    def written(self, value: Any) -> Any:
        """The whole with other elements where the view is, as a new tensor; None: that is not known here.

        Parameters
        ----------
        value : torch.Tensor
            The elements of the view.
        """
        rule = RULES.get(self.func)
        if rule is None:
            return None
        names = [one.name for one in self.func._schema.arguments[1:]]
        defaults = {one.name: one.default_value for one in self.func._schema.arguments[1:]}
        return rule(self, value, **{**defaults, **dict(zip(names, self.args, strict=False)), **self.kwargs})


def _sliced(view: View, value: Any, dim: int, start: Any, end: Any, step: int) -> Any:
    return _aten.slice_scatter.default(view.base, value, dim, start, end, step)


def _selected(view: View, value: Any, dim: int, index: int) -> Any:
    return _aten.select_scatter.default(view.base, value, dim, index)


def _split(view: View, value: Any, dim: int, **_: Any) -> Any:
    assert view.place is not None
    start = sum(one.shape[dim] for one in view.made[: view.place])
    return _aten.slice_scatter.default(view.base, value, dim, start, start + value.shape[dim])


def _unbound(view: View, value: Any, dim: int) -> Any:
    assert view.place is not None
    return _aten.select_scatter.default(view.base, value, dim, view.place)


def _reshaped(view: View, value: Any, **_: Any) -> Any:
    return value.reshape(view.base.shape)


def _permuted(view: View, value: Any, dims: Sequence[int]) -> Any:
    axes = [axis % value.dim() for axis in dims]
    return value.permute(sorted(range(len(axes)), key=axes.__getitem__))


def _transposed(view: View, value: Any, dim0: int, dim1: int) -> Any:
    return value.transpose(dim0, dim1)


def _turned(view: View, value: Any) -> Any:
    return value.t()


def _same(view: View, value: Any) -> Any:
    return value


_aten = torch.ops.aten
RULES: Final[Mapping[Any, Callable[..., Any]]] = {
    _aten.slice.Tensor: _sliced,
    _aten.select.int: _selected,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.unbind.int: _unbound,
    _aten.view.default: _reshaped,
    _aten.unsqueeze.default: _reshaped,
    _aten.squeeze.default: _reshaped,
    _aten.squeeze.dim: _reshaped,
    _aten.squeeze.dims: _reshaped,
    _aten.permute.default: _permuted,
    _aten.transpose.int: _transposed,
    _aten.t.default: _turned,
    _aten.alias.default: _same,
    _aten.detach.default: _same,
}
"""For an operator that makes views, what writes through one."""
