"""What may be chosen about the back end."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from relayout.errors import LayoutError, described
from relayout.forking import lock
from relayout.reorder.conversion import check_threads

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """What ``torch.compile(model, backend="relayout", options={...})`` takes.

    Attributes
    ----------
    format : str or None
        The one format that images shall have inside (``"nhwc"``); None: whatever costs least.
    threads : int or None
        How many threads may work; None: as many as ``torch.get_num_threads()`` says at the call.
    kept : int
        For how many sets of weights and sizes a graph is kept compiled, each with packed weights of its own.
    freeze : bool
        Whether weights are packed when a graph is compiled, and watched for changes. Otherwise they are read
        anew in each call: slower, and right whoever writes to them by whatever means.
    training : bool
        Whether forward and backward passes are compiled where gradients are wanted. Otherwise PyTorch runs
        them.
    precision : str or None
        ``"bf16"`` or ``"f16"``: the type in which convolutions and matrix products of f32 are computed, and
        what follows them: activations, sums, pools, normalisations, softmax
        (:mod:`relayout.graph.passes.precision`). Sums of products, averages and statistics are added up in
        f32 within. In f32 stay reductions, exponentials, powers and losses (in f16 recurrent layers); what
        goes into a part that Relayout takes and what comes out of it, and all that is compiled for gradients.
        ``"f32"`` or None: as the model has it.
    algorithm : str
        ``"auto"``: 3x3 convolutions without gradients may be done with fewer products, of transformed tiles,
        where an estimate says that this takes less time; results differ in their last bits then, and of tiles
        with infinities or NaN (:class:`~relayout.primitives.convolution.Convolution`). ``"direct"``: they are
        never. ``"winograd"``: wherever it is possible.

    Raises
    ------
    LayoutError
        A value is of another kind, or out of range.
    """

    format: str | None = None
    threads: int | None = None
    kept: int = 8
    freeze: bool = True
    training: bool = True
    precision: str | None = None
    algorithm: str = "auto"

    def __post_init__(self) -> None:
        if self.format is not None or self.precision is not None:
            with lock():  # a part that is kept needs nothing that plans
                from relayout.graph.passes.precision import check_precision
                from relayout.graph.plan import image_format

            image_format(self.format)
            check_precision(self.precision)
        if self.algorithm != "auto":
            with lock():
                from relayout.graph.plan import check_algorithm

            check_algorithm(self.algorithm)
        check_threads(self.threads)
        if type(self.kept) is not int or self.kept < 1:
            raise LayoutError(f"kept is a number of graphs from 1 on, got {described(self.kept)}")
        for name in ("freeze", "training"):
            if type(given := getattr(self, name)) is not bool:
                raise LayoutError(f"{name} is True or False, got {described(given)}")

    def changed(self, given: Mapping[str, Any]) -> Options:
        """With some of them given by name.

        >>> Options().changed({"format": "nhwc"})  # doctest: +NORMALIZE_WHITESPACE
        Options(format='nhwc', threads=None, kept=8, freeze=True, training=True, precision=None,
                algorithm='auto')
        >>> Options().changed({"formats": "nhwc"})
        Traceback (most recent call last):
        relayout.errors.LayoutError: the back end has no option 'formats'; did you mean 'format'?
        """
        known = [one.name for one in fields(self)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise LayoutError(f"the back end has no option {name!r}; {hint}")
        return replace(self, **given)
