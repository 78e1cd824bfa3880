"""Recurrent layers: vanilla RNN, LSTM, GRU and AUGRU, both also linear before reset; oneDNN's semantics.

Sizes are called as oneDNN calls them: ``t`` time steps, ``n`` rows of the batch, ``c`` channels of the data,
``l`` layers, ``d`` directions, ``g`` gates, ``i`` and ``o`` what weights take and give ::

    src_layer           t, n, c         the data
    attention           t, n, 1         of an AUGRU: what weakens its update gate, from 0 to 1
    src_iter            l, d, n, c      the state that each layer begins with; zero without it
    src_iter_c          l, d, n, c      the same for the memory of an LSTM
    weights_layer       l, d, i, g, o   for the data
    weights_iter        l, d, i, g, o   for the state of the step before
    weights_peephole    l, d, g, o      of the gates i, f, o of an LSTM, for its memory
    weights_projection  l, d, i, o      from what an LSTM gives to its state
    bias                l, d, g, o      f32; linear before reset has a fourth one, which is added to U2 h
    dst_layer           t, n, c         the states of the last layer
    dst_iter            l, d, n, c      the states behind the last step
    dst_iter_c          l, d, n, c      the memory behind the last step
    workspace           all of it       f32; what a backward primitive needs, with ``workspace=True``

Gates have the order i, f, c, o (LSTM) and u, r, o (GRU). :mod:`relayout.ops.recurrent` has the formulas.

A direction is a stack of layers of its own: each layer is given what the layer below has made of the same
direction, so more than one layer needs as many channels of data as of the state. In ``dst_layer`` the last
layers of both directions lie side by side (``bidirectional_concat``) or are added up (``bidirectional_sum``).
PyTorch's layers and those of ONNX are given both directions of the layer below: that is a primitive for each.

Data and weights of bf16 are multiplied as they are, and states are rounded to bf16 before they meet weights;
all else is f32. With ``workspace=True``, and where one of them is of another type, weights are widened to f32
instead, and nothing is rounded.

``any`` becomes, for weights, what kernels read without reordering: blocks of output channels with all gates
side by side. Each product with the state reads them from end to end. In bf16 two neighbouring inputs are
innermost (``ldOIg16o2i``) where the processor multiplies pairs.

>>> import numpy as np
>>> import relayout as rl
>>> x = rl.MemoryDesc((35, 16, 64), "f32", "tnc")
>>> w = rl.MemoryDesc((1, 1, 64, 4, 128), "f32", rl.any)
>>> u = rl.MemoryDesc((1, 1, 128, 4, 128), "f32", rl.any)
>>> lstm = LSTM(x, w, u, dst_iter=True, dst_iter_c=True)
>>> lstm.inputs, lstm.outputs
(('src_layer', 'weights_layer', 'weights_iter'), ('dst_layer', 'dst_iter', 'dst_iter_c'))
>>> lstm.dst_layer, lstm.dst_iter
(MemoryDesc('f32:tnc:35x16x128'), MemoryDesc('f32:ldnc:1x1x16x128'))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from relayout.errors import LayoutError, Unsupported
from relayout.forking import locked
from relayout.jit.support import supported
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims
from relayout.ops import recurrent as ops
from relayout.ops.checks import check_descs, check_written
from relayout.ops.formats import finite, with_formats
from relayout.ops.functions import Function
from relayout.ops.recurrent import ACTIVATIONS, DIRECTIONS, GATES, LINEAR, MULTIPLIED, Workspace
from relayout.ops.slopes import SLOPES
from relayout.primitives.choosing import Choosing

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["AUGRU", "GRU", "LBRAUGRU", "LBRGRU", "LSTM", "Recurrent", "VanillaRNN"]

FLOATS = ("f32", "bf16", "f16")
ROUNDED = "bf16"  # the type in which data, weights and states are multiplied as they are
AXES = {"src_layer": 3, "attention": 3, "weights_layer": 5, "weights_iter": 5, "weights_projection": 4}
FORMATS = {
    "src_layer": "tnc",
    "attention": "tnc",
    "src_iter": "ldnc",
    "src_iter_c": "ldnc",
    "weights_layer": "ldigo",
    "weights_iter": "ldigo",
    "weights_projection": "ldio",
    "weights_peephole": "ldgo",
    "bias": "ldgo",
    "dst_layer": "tnc",
    "dst_iter": "ldnc",
    "dst_iter_c": "ldnc",
    "workspace": "a",
}
"""What ``any`` is where nothing else decides."""


class Recurrent(Choosing):
    """What the recurrent primitives share; see the subclasses.

    Attributes
    ----------
    backward : tuple of bool
        For each direction whether it begins at the last step.
    layers, units, outputs_of_state : int
        Layers, units of a gate, and channels of a state: fewer than units where it is projected.
    """

    operation: ops.Recurrent
    cell_kind: ClassVar[str] = ""

    def _decide(
        self,
        needed: Mapping[str, MemoryDesc],
        optional: Mapping[str, MemoryDesc | None],
        results: Mapping[str, MemoryDesc | bool | None],
        direction: str,
        activations: Sequence[Any] | None,
        clip: float | None,
        workspace: bool,
    ) -> None:
        """Check everything, and decide every ``any``."""
        check_descs(self.kind, needed, optional)
        if direction not in DIRECTIONS:
            raise LayoutError(f"{self.kind}: direction {direction!r} is none of {', '.join(DIRECTIONS)}")
        self.backward = DIRECTIONS[direction]
        given = {**needed, **{name: desc for name, desc in optional.items() if desc is not None}}
        for name, rank in AXES.items():
            if name in given and len(given[name].dims) != rank:
                raise LayoutError(f"{self.kind}: {name} {given[name]} must have {rank} axes")
        self.layers, directions, _, _, self.units = given["weights_iter"].dims
        projection = given.get("weights_projection")
        self.outputs_of_state = self.units if projection is None else projection.dims[3]
        sizes = self._sizes(given, direction, directions)
        wanted = {name: desc for name, desc in results.items() if desc is not None and desc is not False}
        found = {"dst_layer": needed["src_layer"].dtype, **dict.fromkeys(wanted, needed["src_layer"].dtype)}
        for name, dtype in found.items():
            desc = wanted.get(name, True)
            if desc is True:
                desc = MemoryDesc(sizes[name], "f32" if name == "dst_iter_c" else dtype, any_format)
            check_descs(self.kind, {name: desc}, {})
            assert isinstance(desc, MemoryDesc)
            given[name] = desc
        for name, desc in given.items():
            if desc.dims != sizes[name]:
                raise LayoutError(f"{self.kind}: {name} {desc} must be {spell_dims(sizes[name])}")
            if desc.dtype.name not in FLOATS:
                raise Unsupported(
                    f"{self.kind}: {name} {desc} is {desc.dtype}; there are {', '.join(FLOATS)}"
                )
            if name in found:
                check_written(self.kind, desc, name)
        self._given = given
        functions, bound = self._functions(activations), self._clip(clip)
        self._rounds = self._rounding(given, workspace)
        if workspace:
            self._check_differentiable(functions, bound)
            dims = (*needed["src_layer"].dims[:2], self.layers, directions, self.units, self.outputs_of_state)
            given["workspace"] = MemoryDesc((Workspace(self.cell_kind, *dims).size,), "f32", "a")
            found["workspace"] = given["workspace"].dtype
        decided = self._decided(given)
        self._settle(
            ops.Recurrent,
            {name: desc for name, desc in decided.items() if name not in found},
            {name: decided[name] for name in found},
            cell=self.cell_kind,
            direction=direction,
            activations=functions,
            clip=bound,
            rounds=self._rounds,
        )

    @staticmethod
    def _rounding(given: Mapping[str, MemoryDesc], workspace: bool) -> str:
        """The type to which states are rounded before they are multiplied; empty: they are not."""
        multiplied = [given[n] for n in given if n == "src_layer" or n in MULTIPLIED]
        return ROUNDED * (not workspace and all(desc.dtype.name == ROUNDED for desc in multiplied))

    def _check_differentiable(self, activations: Sequence[Function], clip: float) -> None:
        """Refuse a workspace for what there are no gradients of."""
        if clip:
            raise Unsupported(f"{self.kind}: there are no gradients of a layer with a clip; it is {clip}")
        for one in activations:
            if one.algorithm not in SLOPES or (one.algorithm == "relu" and one.alpha < 0):
                raise Unsupported(
                    f"{self.kind}: there are no gradients of a layer with the activation {one}; there are of "
                    f"{', '.join(SLOPES)} (alpha of relu at least 0)"
                )

    def _sizes(
        self, given: Mapping[str, MemoryDesc], direction: str, directions: int
    ) -> dict[str, tuple[int, ...]]:
        """The dims that all arguments must have."""
        time, batch, channels = given["src_layer"].dims
        layers, units, state = self.layers, self.units, self.outputs_of_state
        gates = GATES[self.cell_kind]
        if directions != len(self.backward):
            raise LayoutError(
                f"{self.kind}: weights_iter {given['weights_iter']} has {directions} directions; "
                f"{direction} has {len(self.backward)}"
            )
        if layers > 1 and channels != state:
            raise LayoutError(
                f"{self.kind}: {layers} layers, each of which is given the state of the layer below, so "
                f"src_layer {given['src_layer']} must have {state} channels"
            )
        side = 2 if direction == "bidirectional_concat" else 1
        both = (layers, directions)
        return {
            "src_layer": (time, batch, channels),
            "attention": (time, batch, 1),
            "src_iter": (*both, batch, state),
            "src_iter_c": (*both, batch, units),
            "weights_layer": (*both, channels, gates, units),
            "weights_iter": (*both, state, gates, units),
            "weights_peephole": (*both, 3, units),
            "weights_projection": (*both, units, state),
            "bias": (*both, gates + (self.cell_kind in LINEAR), units),
            "dst_layer": (time, batch, side * state),
            "dst_iter": (*both, batch, state),
            "dst_iter_c": (*both, batch, units),
        }

    def _functions(self, given: Sequence[Any] | None) -> tuple[Function, ...]:
        usual = ACTIVATIONS[self.cell_kind]
        if given is None:
            given = usual
        if isinstance(given, (str, Function)) or len(given) != len(usual):
            raise LayoutError(f"{self.kind}: activations are {len(usual)}, as {usual}, not {given!r}")
        return tuple(one if isinstance(one, Function) else Function(one) for one in given)

    def _clip(self, given: float | None) -> float:
        if given is None:
            return 0.0
        found = finite(f"{self.kind}: clip", given)
        if found <= 0:
            raise LayoutError(f"{self.kind}: clip must be positive; it is {given}")
        return found

    # -- formats --------------------------------------------------------------------------------------------

    @locked
    def _decided(self, given: Mapping[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        """Every ``any``: weights as kernels read them, the destination in the order of the source."""
        from relayout.primitives.recurrent_program import packed_for

        formats = dict(FORMATS)
        if supported():
            from relayout.targets.machine import host

            formats |= packed_for(self._rounds, host()).formats
        source = given["src_layer"]
        if source.layout is not None:
            steps, rows, _ = source.layout.ladders
            inside = steps and rows and abs(steps[0].stride) < abs(rows[0].stride)
            formats["dst_layer"] = "ntc" if inside else "tnc"
        return with_formats(given, formats)

    def _choices(self) -> Iterable[Mapping[str, str]]:
        return [{"src_layer": text, "dst_layer": text} for text in ("tnc", "ntc")]

    # -- what primitives give -------------------------------------------------------------------------------

    @locked
    def _estimate(self) -> tuple[float, str] | None:
        from relayout.primitives.recurrent_program import ForwardLayers

        return ForwardLayers.costs_of(self)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.recurrent_program import ForwardLayers

        return self._assembled(ForwardLayers.program_of(self))


class VanillaRNN(Recurrent):
    """A recurrent layer whose state is a function of the data and the state before, made once.

    Parameters
    ----------
    src_layer, weights_layer, weights_iter : MemoryDesc
        The module's docstring has the axes.
    bias, src_iter : MemoryDesc, optional
    dst_layer, dst_iter : MemoryDesc or bool, optional
        ``dst_iter`` is a result if it is given; True stands for the usual format.
    direction : str
        One of :data:`relayout.ops.recurrent.DIRECTIONS`.
    activation : str or Function
        ``relu``, ``tanh``, ``logistic`` as in oneDNN, or any other elementwise function.
    clip : float, optional
        What bounds the sum that it is applied to, on both sides.
    workspace : bool
        Whether there is a further result, with what the backward primitive needs.

    Raises
    ------
    LayoutError
        Sizes don't fit together.
    Unsupported
        A data type that is not f32, bf16 or f16; a workspace for a clip, or for activations that have no
        gradients here.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((3, 2, 4), "f32", "tnc")
    >>> rnn = VanillaRNN(x, *[rl.MemoryDesc((1, 1, 4, 1, 4), "f32", rl.any)] * 2, activation="relu")
    >>> rnn.dst_layer
    MemoryDesc('f32:tnc:3x2x4')
    """

    kind = "vanilla_rnn"
    cell_kind = "rnn"

    def __init__(
        self,
        src_layer: MemoryDesc,
        weights_layer: MemoryDesc,
        weights_iter: MemoryDesc,
        bias: MemoryDesc | None = None,
        *,
        src_iter: MemoryDesc | None = None,
        dst_layer: MemoryDesc | None = None,
        dst_iter: MemoryDesc | bool | None = None,
        direction: str = "left2right",
        activation: str | Function = "tanh",
        clip: float | None = None,
        workspace: bool = False,
    ) -> None:
        needed = {"src_layer": src_layer, "weights_layer": weights_layer, "weights_iter": weights_iter}
        optional = {"bias": bias, "src_iter": src_iter}
        results = {"dst_layer": dst_layer, "dst_iter": dst_iter}
        self._decide(needed, optional, results, direction, (activation,), clip, workspace)


class LSTM(Recurrent):
    """A long short-term memory, made once for its descriptors.

    Parameters
    ----------
    src_layer, weights_layer, weights_iter : MemoryDesc
        The module's docstring has the axes.
    bias, src_iter, src_iter_c : MemoryDesc, optional
    weights_peephole : MemoryDesc, optional
        With it, gates see the memory.
    weights_projection : MemoryDesc, optional
        With it, the state is a product with these weights, and as wide as they say.
    dst_layer, dst_iter, dst_iter_c : MemoryDesc or bool, optional
        ``dst_iter`` and ``dst_iter_c`` are results if they are given; True stands for the usual format.
    direction : str
        One of :data:`relayout.ops.recurrent.DIRECTIONS`.
    activations : sequence of str or Function, optional
        Of the gates i, f and o; of the gate c; of the memory. Usually logistic, tanh and tanh.
    clip : float, optional
        What bounds the sums of the gates, on both sides.
    workspace : bool
        Whether there is a further result, with what the backward primitive needs.

    Raises
    ------
    LayoutError
        Sizes don't fit together.
    Unsupported
        A data type that is not f32, bf16 or f16; a workspace for a clip, or for activations that have no
        gradients here.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> w = rl.MemoryDesc((1, 1, 3, 4, 5), "f32", rl.any)
    >>> u = rl.MemoryDesc((1, 1, 5, 4, 5), "f32", rl.any)
    >>> lstm = LSTM(rl.MemoryDesc((7, 2, 3), "f32", "ntc"), w, u)
    >>> rng = np.random.default_rng(0)
    >>> data = {name: rng.standard_normal(lstm.descs[name].dims) for name in lstm.inputs}
    >>> tensors = {name: rl.tensor(data[name], lstm.descs[name]) for name in data}
    >>> np.allclose(lstm(**tensors).numpy(), lstm.reference(**data), atol=1e-5)
    True
    """

    kind = "lstm"
    cell_kind = "lstm"

    def __init__(
        self,
        src_layer: MemoryDesc,
        weights_layer: MemoryDesc,
        weights_iter: MemoryDesc,
        bias: MemoryDesc | None = None,
        *,
        src_iter: MemoryDesc | None = None,
        src_iter_c: MemoryDesc | None = None,
        weights_peephole: MemoryDesc | None = None,
        weights_projection: MemoryDesc | None = None,
        dst_layer: MemoryDesc | None = None,
        dst_iter: MemoryDesc | bool | None = None,
        dst_iter_c: MemoryDesc | bool | None = None,
        direction: str = "left2right",
        activations: Sequence[str | Function] | None = None,
        clip: float | None = None,
        workspace: bool = False,
    ) -> None:
        needed = {"src_layer": src_layer, "weights_layer": weights_layer, "weights_iter": weights_iter}
        optional = {
            "bias": bias,
            "src_iter": src_iter,
            "src_iter_c": src_iter_c,
            "weights_peephole": weights_peephole,
            "weights_projection": weights_projection,
        }
        results = {"dst_layer": dst_layer, "dst_iter": dst_iter, "dst_iter_c": dst_iter_c}
        self._decide(needed, optional, results, direction, activations, clip, workspace)


class GRU(Recurrent):
    """A gated recurrent unit, made once for its descriptors.

    Parameters
    ----------
    src_layer, weights_layer, weights_iter : MemoryDesc
        The module's docstring has the axes.
    bias, src_iter : MemoryDesc, optional
    dst_layer, dst_iter : MemoryDesc or bool, optional
        ``dst_iter`` is a result if it is given; True stands for the usual format.
    direction : str
        One of :data:`relayout.ops.recurrent.DIRECTIONS`.
    activations : sequence of str or Function, optional
        Of the gates u and r, and of o. Usually logistic and tanh.
    clip : float, optional
        What bounds the sums of the gates, on both sides.
    workspace : bool
        Whether there is a further result, with what the backward primitive needs.

    Raises
    ------
    LayoutError
        Sizes don't fit together.
    Unsupported
        A data type that is not f32, bf16 or f16; a workspace for a clip, or for activations that have no
        gradients here.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((3, 2, 4), "f32", "tnc")
    >>> both = GRU(x, *[rl.MemoryDesc((1, 2, 4, 3, 4), "f32", rl.any)] * 2, direction="bidirectional_concat")
    >>> both.dst_layer
    MemoryDesc('f32:tnc:3x2x8')
    """

    kind = "gru"
    cell_kind = "gru"

    def __init__(
        self,
        src_layer: MemoryDesc,
        weights_layer: MemoryDesc,
        weights_iter: MemoryDesc,
        bias: MemoryDesc | None = None,
        *,
        src_iter: MemoryDesc | None = None,
        dst_layer: MemoryDesc | None = None,
        dst_iter: MemoryDesc | bool | None = None,
        direction: str = "left2right",
        activations: Sequence[str | Function] | None = None,
        clip: float | None = None,
        workspace: bool = False,
    ) -> None:
        needed = {"src_layer": src_layer, "weights_layer": weights_layer, "weights_iter": weights_iter}
        optional = {"bias": bias, "src_iter": src_iter}
        results = {"dst_layer": dst_layer, "dst_iter": dst_iter}
        self._decide(needed, optional, results, direction, activations, clip, workspace)


class LBRGRU(GRU):
    """A gated recurrent unit with linear before reset: the reset gate is a factor behind the product.

    Parameters are those of :class:`GRU`, but for the bias: it has four rows, the last of which is added to
    the product with the state in the gate o. This is PyTorch's GRU, and ONNX's with ``linear_before_reset``.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((3, 2, 4), "f32", "tnc")
    >>> weights = rl.MemoryDesc((1, 1, 4, 3, 4), "f32", rl.any)
    >>> LBRGRU(x, weights, weights, rl.MemoryDesc((1, 1, 4, 4), "f32", rl.any)).bias.dims
    (1, 1, 4, 4)
    """

    kind = "lbr_gru"
    cell_kind = "lbr_gru"


class AUGRU(Recurrent):
    """A gated recurrent unit with an attentional update gate, made once for its descriptors.

    An attention, a number for each step and row of the batch, weakens the update gate: where it is 1 the
    state before is forgotten, where it is 0 the cell is a GRU. It comes from "Deep Interest Evolution Network
    for Click-Through Rate Prediction" (Zhou et al., 2018), and is oneDNN's ``vanilla_augru``. All layers and
    both directions read the same attention, that of an element of the sequence.

    Parameters
    ----------
    src_layer, attention, weights_layer, weights_iter : MemoryDesc
        The module's docstring has the axes.
    bias, src_iter : MemoryDesc, optional
    dst_layer, dst_iter : MemoryDesc or bool, optional
        ``dst_iter`` is a result if it is given; True stands for the usual format.
    direction : str
        One of :data:`relayout.ops.recurrent.DIRECTIONS`; oneDNN has ``left2right`` alone, and one layer.
    activations : sequence of str or Function, optional
        Of the gates u and r, and of o. Usually logistic and tanh.
    clip : float, optional
        What bounds the sums of the gates, on both sides.
    workspace : bool
        Whether there is a further result, with what the backward primitive needs.

    Raises
    ------
    LayoutError
        Sizes don't fit together.
    Unsupported
        A data type that is not f32, bf16 or f16; a workspace for a clip, or for activations that have no
        gradients here.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> x, attention = (rl.MemoryDesc((3, 2, n), "f32", "tnc") for n in (4, 1))
    >>> augru = AUGRU(x, attention, *[rl.MemoryDesc((1, 1, 4, 3, 4), "f32", rl.any)] * 2)
    >>> augru.inputs
    ('src_layer', 'attention', 'weights_layer', 'weights_iter')
    >>> data = {name: np.ones(augru.descs[name].dims) for name in augru.inputs}
    >>> y = augru(**{name: rl.tensor(data[name], augru.descs[name]) for name in data})
    >>> np.allclose(y.numpy(), augru.reference(**data), atol=1e-5)
    True
    """

    kind = "augru"
    cell_kind = "augru"

    def __init__(
        self,
        src_layer: MemoryDesc,
        attention: MemoryDesc,
        weights_layer: MemoryDesc,
        weights_iter: MemoryDesc,
        bias: MemoryDesc | None = None,
        *,
        src_iter: MemoryDesc | None = None,
        dst_layer: MemoryDesc | None = None,
        dst_iter: MemoryDesc | bool | None = None,
        direction: str = "left2right",
        activations: Sequence[str | Function] | None = None,
        clip: float | None = None,
        workspace: bool = False,
    ) -> None:
        needed = {
            "src_layer": src_layer,
            "attention": attention,
            "weights_layer": weights_layer,
            "weights_iter": weights_iter,
        }
        optional = {"bias": bias, "src_iter": src_iter}
        results = {"dst_layer": dst_layer, "dst_iter": dst_iter}
        self._decide(needed, optional, results, direction, activations, clip, workspace)


class LBRAUGRU(AUGRU):
    """An :class:`AUGRU` with linear before reset: oneDNN's ``lbr_augru``.

    Parameters are those of :class:`AUGRU`, but for the bias: it has four rows, as that of :class:`LBRGRU`.

    Examples
    --------
    >>> import relayout as rl
    >>> x, attention = (rl.MemoryDesc((3, 2, n), "f32", "tnc") for n in (4, 1))
    >>> weights = rl.MemoryDesc((1, 1, 4, 3, 4), "f32", rl.any)
    >>> LBRAUGRU(x, attention, weights, weights, rl.MemoryDesc((1, 1, 4, 4), "f32", rl.any)).bias.dims
    (1, 1, 4, 4)
    """

    kind = "lbr_augru"
    cell_kind = "lbr_augru"
