"""Backward primitives of recurrent layers; :mod:`relayout.primitives.recurrent` has the arguments.

The forward primitive is made with ``workspace=True``. Its workspace is read here in place of its results and
of the initial states; the bias is not needed either. Each gradient has the name of what it is the gradient
of, with ``diff_`` in front: read are those of the results that the forward primitive has, written are those
of everything that it read.

>>> import relayout as rl
>>> from relayout.primitives import GRU
>>> x = rl.MemoryDesc((3, 2, 4), "f32", "tnc")
>>> forward = GRU(x, *[rl.MemoryDesc((1, 1, 4, 3, 4), "f32", rl.any)] * 2, workspace=True)
>>> made = GRUBackward(forward)
>>> made.inputs
('src_layer', 'weights_layer', 'weights_iter', 'diff_dst_layer', 'workspace')
>>> made.outputs
('diff_src_layer', 'diff_weights_layer', 'diff_weights_iter')

``any`` becomes, for weights, what the backward pass reads without reordering; for their gradients, what the
products write: ``ldigo``, ``ldio`` and ``ldgo``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.jit.support import supported
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward.recurrent import RecurrentBackward
from relayout.ops.formats import with_formats
from relayout.primitives.backward.base import Backward
from relayout.primitives.choosing import Choosing
from relayout.primitives.recurrent import (
    AUGRU,
    FLOATS,
    FORMATS,
    GRU,
    LBRAUGRU,
    LBRGRU,
    LSTM,
    Recurrent,
    VanillaRNN,
)

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = [
    "AUGRUBackward",
    "GRUBackward",
    "LBRAUGRUBackward",
    "LBRGRUBackward",
    "LSTMBackward",
    "VanillaRNNBackward",
]

READ = ("src_layer", "attention", "weights_layer", "weights_iter", "weights_peephole", "weights_projection")


class _OfForward:
    """A constructor's signature: what the forward primitive has, and by ``diff_`` its gradients."""

    def __get__(self, made: object, kind: Any) -> Signature:
        return _signature(kind)


@cache
def _signature(kind: Any) -> Signature:
    forward = kind.hint.__signature__.parameters
    known = [name for name in FORMATS if name in forward and name != "workspace"]
    names = [name for name in READ if name in known]
    names += [f"diff_{name}" for name in sorted(known, key=lambda name: not name.startswith("dst"))]
    others = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation="MemoryDesc | bool | None")
        for name in names
    ]
    return Signature([Parameter("forward", Parameter.POSITIONAL_OR_KEYWORD, annotation=kind.hint), *others])


class GradientsOfLayers(Backward, Choosing):
    """What the backward primitives share. Their arguments follow from those of the forward primitive."""

    __signature__ = _OfForward()
    hint: ClassVar[type[Recurrent]] = Recurrent
    operation: RecurrentBackward
    forward: Recurrent

    def __init__(self, forward: Any, **given: MemoryDesc | bool | None) -> None:
        self._made_for(forward)
        if "workspace" not in forward.outputs:
            raise LayoutError(f"{self.kind}: forward must be made with workspace=True")
        made = forward.descs
        inputs = {name: self._like(name, given.get(name), made[name]) for name in READ if name in made}
        outputs = {}
        for name in forward.outputs:
            diff, one = f"diff_{name}", given.get(f"diff_{name}")
            if name != "workspace" and one is not False:
                inputs[diff] = self._like(diff, one, made[name])
        for name in forward.inputs:
            diff, one = f"diff_{name}", given.get(f"diff_{name}")
            if one is not False:
                outputs[diff] = self._like(diff, one, made[name], True)
        for name, desc in given.items():
            which = name.removeprefix("diff_")
            if desc is not None and desc is not False and which not in made:
                raise LayoutError(f"{self.kind}: there is no {name}, since forward has no {which}")
        if not outputs:
            raise LayoutError(f"{self.kind}: no gradient is asked for; each of them is False")
        if not any(name.startswith("diff_") for name in inputs):
            raise LayoutError(f"{self.kind}: no gradient comes in; each of them is False")
        for name, desc in (inputs | outputs).items():
            if desc.dtype.name not in FLOATS:
                raise LayoutError(
                    f"{self.kind}: {name} {desc} is {desc.dtype}; there are {', '.join(FLOATS)}"
                )
        inputs["workspace"] = made["workspace"]
        self.backward = forward.backward
        self.layers, self.units = forward.layers, forward.units
        self.outputs_of_state = forward.outputs_of_state
        self._settle(
            RecurrentBackward,
            self._decided(inputs),
            self._decided(outputs),
            cell=forward.cell_kind,
            direction=forward.direction,
            activations=forward.activations,
        )

    @locked
    def _decided(self, given: Mapping[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        """Every ``any``: weights as kernels read them; all else as it is written plainly."""
        from relayout.primitives.backward.recurrent_program import packed

        formats = {f"diff_{name}": text for name, text in FORMATS.items()} | FORMATS
        if supported():
            from relayout.kernels.conv.tile import lanes_of
            from relayout.targets.machine import host

            formats |= packed(lanes_of(host()))
        return with_formats(given, formats)

    def _choices(self) -> tuple[Mapping[str, str], ...]:
        return ()

    @locked
    def _estimate(self) -> tuple[float, str] | None:
        from relayout.primitives.backward.recurrent_program import BackwardLayers

        return BackwardLayers.costs_of(self)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.backward.recurrent_program import BackwardLayers

        return self._assembled(BackwardLayers.program_of(self))


def _check_cell(made: GradientsOfLayers, forward: Any) -> None:
    """Refuse a subclass of what is wanted: linear before reset where it is not."""
    if forward.cell_kind != made.kind.removesuffix("_backward"):
        raise LayoutError(f"{made.kind}: forward is a {type(forward).__name__}")


class VanillaRNNBackward(GradientsOfLayers):
    """The gradients of a :class:`~relayout.primitives.VanillaRNN`.

    Parameters
    ----------
    forward : VanillaRNN
        Made with ``workspace=True``.
    src_layer, weights_layer, weights_iter : MemoryDesc, optional
        Inputs, which may have other formats than in the forward pass.
    diff_dst_layer, diff_dst_iter : MemoryDesc or False, optional
        The gradients that come in, as forward has results. False: it is zero, and no input.
    diff_src_layer, diff_src_iter, diff_weights_layer, diff_weights_iter, diff_bias : optional
        MemoryDesc or False: the gradients that go out, as forward has inputs. False: it is not wanted.

    Raises
    ------
    LayoutError
        ``forward`` has no workspace, or sizes are others than in the forward pass.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import VanillaRNN
    >>> x = rl.MemoryDesc((3, 2, 4), "f32", "tnc")
    >>> forward = VanillaRNN(x, *[rl.MemoryDesc((1, 1, 4, 1, 4), "f32", "ldigo")] * 2, workspace=True)
    >>> VanillaRNNBackward(forward, diff_src_layer=False).outputs
    ('diff_weights_layer', 'diff_weights_iter')
    """

    kind = "vanilla_rnn_backward"
    hint: ClassVar[type[Recurrent]] = VanillaRNN


class GRUBackward(VanillaRNNBackward):
    """The gradients of a :class:`~relayout.primitives.GRU`; parameters as in :class:`VanillaRNNBackward`.

    Examples
    --------
    The module's docstring has one.
    """

    kind = "gru_backward"
    hint = GRU

    def _made_for(self, forward: Any) -> None:
        super()._made_for(forward)
        _check_cell(self, forward)


class LBRGRUBackward(GRUBackward):
    """The gradients of a :class:`~relayout.primitives.LBRGRU`; parameters as in :class:`VanillaRNNBackward`.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import LBRGRU
    >>> x = rl.MemoryDesc((3, 2, 4), "f32", "tnc")
    >>> weights = rl.MemoryDesc((1, 1, 4, 3, 4), "f32", "ldigo")
    >>> bias = rl.MemoryDesc((1, 1, 4, 4), "f32", "ldgo")
    >>> LBRGRUBackward(LBRGRU(x, weights, weights, bias, workspace=True)).diff_bias.dims
    (1, 1, 4, 4)
    """

    kind = "lbr_gru_backward"
    hint = LBRGRU


class AUGRUBackward(GradientsOfLayers):
    """The gradients of an :class:`~relayout.primitives.AUGRU`.

    Parameters
    ----------
    forward : AUGRU
        Made with ``workspace=True``.
    src_layer, attention, weights_layer, weights_iter : MemoryDesc, optional
        Inputs, which may have other formats than in the forward pass.
    diff_dst_layer, diff_dst_iter : MemoryDesc or False, optional
        The gradients that come in, as forward has results. False: it is zero, and no input.
    diff_src_layer, diff_attention, diff_src_iter, diff_weights_layer, diff_weights_iter, diff_bias : optional
        MemoryDesc or False: the gradients that go out, as forward has inputs. False: it is not wanted. That
        of the attention is the sum over all units, layers and directions.

    Raises
    ------
    LayoutError
        ``forward`` has no workspace, or sizes are others than in the forward pass.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import AUGRU
    >>> x, attention = (rl.MemoryDesc((3, 2, n), "f32", "tnc") for n in (4, 1))
    >>> weights = rl.MemoryDesc((1, 1, 4, 3, 4), "f32", "ldigo")
    >>> AUGRUBackward(AUGRU(x, attention, weights, weights, workspace=True), diff_src_layer=False).outputs
    ('diff_attention', 'diff_weights_layer', 'diff_weights_iter')
    """

    kind = "augru_backward"
    hint = AUGRU

    def _made_for(self, forward: Any) -> None:
        super()._made_for(forward)
        _check_cell(self, forward)


class LBRAUGRUBackward(AUGRUBackward):
    """The gradients of a :class:`~relayout.primitives.LBRAUGRU`; parameters as in :class:`AUGRUBackward`.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import LBRAUGRU
    >>> x, attention = (rl.MemoryDesc((3, 2, n), "f32", "tnc") for n in (4, 1))
    >>> weights = rl.MemoryDesc((1, 1, 4, 3, 4), "f32", "ldigo")
    >>> LBRAUGRUBackward(LBRAUGRU(x, attention, weights, weights, workspace=True)).diff_attention.dims
    (3, 2, 1)
    """

    kind = "lbr_augru_backward"
    hint = LBRAUGRU


class LSTMBackward(GradientsOfLayers):
    """The gradients of a :class:`~relayout.primitives.LSTM`.

    Parameters
    ----------
    forward : LSTM
        Made with ``workspace=True``.
    src_layer, weights_layer, weights_iter, weights_peephole, weights_projection : MemoryDesc, optional
        Inputs, which may have other formats than in the forward pass.
    diff_dst_layer, diff_dst_iter, diff_dst_iter_c : MemoryDesc or False, optional
        The gradients that come in, as forward has results. False: it is zero, and no input.
    diff_src_layer, diff_src_iter, diff_src_iter_c, diff_weights_layer, diff_weights_iter : optional
        MemoryDesc or False: the gradients that go out, as forward has inputs. False: it is not wanted.
    diff_weights_peephole, diff_weights_projection, diff_bias : MemoryDesc or False, optional
        More of them.

    Raises
    ------
    LayoutError
        ``forward`` has no workspace, or sizes are others than in the forward pass.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> from relayout.primitives import LSTM
    >>> x = rl.MemoryDesc((3, 2, 4), "f32", "tnc")
    >>> w, u = (rl.MemoryDesc((1, 1, n, 4, 5), "f32", "ldigo") for n in (4, 5))
    >>> forward = LSTM(x, w, u, workspace=True)
    >>> x, w, u = (rl.tensor(np.full(desc.dims, 0.1), desc) for desc in (x, w, u))
    >>> y, workspace = forward(x, w, u)
    >>> dy = rl.tensor(np.ones(y.desc.dims), y.desc)
    >>> found = LSTMBackward(forward)(x, w, u, dy, workspace)
    >>> found.diff_weights_iter.desc.dims
    (1, 1, 5, 4, 5)
    """

    kind = "lstm_backward"
    hint = LSTM
