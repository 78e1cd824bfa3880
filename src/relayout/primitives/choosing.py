"""Primitives that choose formats: kinds that compute much, and read some formats faster than others.

Where time is that of reading and writing, ``any`` follows the formats that are given
(:mod:`relayout.ops.formats`). Convolutions, products of matrices, recurrent layers and their gradients ask
their kernels instead, and offer others too, for planners to compare::

    _given          the descriptors as the caller gave them, some of them ``any``
    _decided        the same with every ``any`` decided: what the primitive is made with
    _choices        formats worth trying for what was left open
      _alternatives   the primitive in each of them
    _estimate       what it costs, if there is a kernel
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from relayout.jit.support import supported
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.formats import with_formats
from relayout.primitives.candidates import DEFINED
from relayout.primitives.primitive import DEFINITION, Primitive

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Choosing"]


class Choosing(Primitive):
    """Base of the kinds that choose formats; the module's docstring says what a subclass gives."""

    _sides: ClassVar[tuple[str, str]] = ("src", "dst")
    """The arguments whose formats are tried: what kernels read as their source, and the other large one."""
    _given: dict[str, MemoryDesc]
    """The descriptors as they were given, before every ``any`` was decided."""

    def _decided(self, given: Mapping[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        """The descriptors with every ``any`` decided."""
        raise NotImplementedError

    def _formats(self, name: str) -> tuple[str, ...]:
        """The formats that are tried for one of the sides, the best one first."""
        return ()

    def _choices(self) -> Iterable[Mapping[str, str]]:
        """Formats worth trying together, by the names of arguments; what the caller has decided stays."""
        free = [name for name in self._sides if self._given[name].layout is None]
        for texts in product(*map(self._formats, free)):
            yield dict(zip(free, texts, strict=True))

    def _estimate(self) -> tuple[float, str] | None:
        """About how many seconds a call takes, and how it is done; None: there is no kernel."""
        raise NotImplementedError

    def _alternatives(self) -> list[Self]:
        made = []
        for formats in self._choices():
            descs = self.descs | self._decided(with_formats(self._given, formats))
            if descs != self.descs:
                one = copy(self)
                one.descs = descs
                made.append(one)
        return made

    def _cost(self) -> tuple[float, str]:
        found = self._estimate() if supported() else None
        return (self.flops / DEFINED, DEFINITION) if found is None else found
