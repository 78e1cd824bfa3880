"""Arguments of a call: what each must be, and the checks of what is given for it.

An :class:`Argument` is a descriptor with a label for messages. Primitives and compiled sequences check their
tensors with it, one by one and then all together: what is written must lie apart from everything else.

Several results are returned as a named tuple:

>>> found = results(("dst", "workspace"), (1, 2))
>>> found.workspace, found
(2, Results(dst=1, workspace=2))
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, type_name
from relayout.exchange import pytorch
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.checks import alike
from relayout.reorder.overlap import overlap
from relayout.reorder.plan import check_out
from relayout.tensor import Tensor, as_array, as_bytes, located, of_torch, tensor

__all__ = [
    *("Argument", "by_name", "check_apart", "logical", "results"),
    "span_of",
]


@dataclass(frozen=True)
class Argument:
    """What one argument of a call must be.

    Attributes
    ----------
    label : str
        What messages call it: ``convolution: src``.
    desc : MemoryDesc
        Its descriptor.
    """

    label: str
    desc: MemoryDesc

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first byte of the tensor, and the one behind its last, counted from its address."""
        return span_of(self.desc)

    def read(self, given: Any) -> Tensor:
        """The tensor to read from; arrays are taken as logical ones.

        Raises
        ------
        LayoutError
            It has another descriptor, or its buffer is too short.
        """
        made = self._tensor(given)
        self._check_size(made.buffer)
        return made

    def written(self, given: Any) -> Tensor:
        """The tensor to write to; arrays are taken as physical bytes.

        Raises
        ------
        LayoutError
            It has another descriptor, or its buffer is too short or read-only.
        """
        if pytorch.is_tensor(given):
            made = of_torch(given, self.desc, self.label, writing=True, lasting=True)
        else:
            check_out(given, self.desc)
            made = self._tensor(given if isinstance(given, Tensor) else Tensor(self.desc, as_bytes(given)))
        self._check_size(made.buffer)
        if not made.buffer.flags.writeable:
            raise LayoutError(f"{self.label} {self.desc} is written, but its buffer is read-only")
        return made

    def _tensor(self, given: Any) -> Tensor:
        """A tensor of the descriptor, for this call alone.

        Another thread may assign the caller's ``buffer`` at any time. This one keeps the buffer that is
        checked, and so keeps its memory alive until the call is over.
        """
        if pytorch.is_tensor(given):
            return of_torch(given, self.desc, self.label)
        try:
            made = given if isinstance(given, Tensor) else tensor(given)
        except (LayoutError, TypeError, ValueError) as error:
            raise LayoutError(f"{self.label} is no tensor of {self.desc}: {error}") from None
        if made.desc is not self.desc and not alike(made.desc, self.desc):
            raise LayoutError(f"{self.label} must be {self.desc}, but {made.desc} was given")
        return Tensor(made.desc, located(made)[0])

    def _check_size(self, data: NDArray[Any]) -> None:
        if data.nbytes < self.span[1]:
            raise LayoutError(
                f"{self.label} {self.desc} needs {self.span[1]} bytes; its buffer has {data.nbytes}"
            )


def check_apart(
    arguments: Mapping[str, Argument],
    addresses: Mapping[str, int],
    written: Sequence[str],
    in_place: Mapping[str, Sequence[str]],
    what: str,
) -> None:
    """Refuse outputs that overlap an input or another output in memory.

    Parameters
    ----------
    arguments : mapping of str to Argument
        All arguments.
    addresses : mapping of str to int
        Where their buffers begin.
    written : sequence of str
        The names of the outputs.
    in_place : mapping of str to sequence of str
        For an output the inputs that may begin just where it does.
    what : str
        How the message begins.
    """
    ranges = {
        name: (addresses[name] + one.span[0], addresses[name] + one.span[1])
        for name, one in arguments.items()
    }
    for k, output in enumerate(written):
        begin, (low, high) = addresses[output], ranges[output]
        desc = arguments[output].desc
        for name, (start, stop) in ranges.items():
            if not (start < high and low < stop) or name == output or name in written[:k]:
                continue
            if addresses[name] == begin and name in in_place.get(output, ()):
                continue
            other = arguments[name].desc
            if _meet(other, desc, begin - addresses[name]) or (
                name in written and _meet(desc, other, addresses[name] - begin)
            ):
                raise LayoutError(f"{what}: {name} and {output} overlap in memory, and {output} is written")


def by_name(what: str, names: Sequence[str], out: Any) -> dict[str, Any]:
    """What was given as ``out`` for each of some outputs: one, a mapping by name, or a sequence.

    >>> by_name("pooling", ("dst", "workspace"), {"workspace": 1})
    {'workspace': 1}
    """
    if out is None:
        return {}
    listed = ", ".join(names)
    if isinstance(out, Mapping):
        unknown = [name for name in out if name not in names]
        if unknown:
            raise LayoutError(f"{what} has no output {unknown[0]!r}; it has {listed}")
        found = dict(out)
    else:
        several = out if isinstance(out, (tuple, list)) else [out]
        if several is not out and len(names) > 1:
            raise LayoutError(
                f"{what} has {len(names)} outputs, {listed}, so out must be a mapping by name, or a tuple "
                f"or list of as many tensors, not one {type_name(out)}"
            )
        if len(several) != len(names):
            raise LayoutError(f"{what} has {len(names)} outputs, {listed}, but out has {len(several)}")
        found = dict(zip(names, several, strict=True))
    return {name: one for name, one in found.items() if one is not None}


def results(names: tuple[str, ...], values: Iterable[Any]) -> Any:
    """One result as itself, several as a named tuple; it can be pickled."""
    several = tuple(values)
    return several[0] if len(names) == 1 else _results_type(names)._make(several)


@lru_cache(maxsize=256)
def _results_type(names: tuple[str, ...]) -> Any:
    def again(self: tuple[Any, ...]) -> tuple[Any, ...]:
        return results, (names, tuple(self))

    return type("Results", (namedtuple("Results", names),), {"__slots__": (), "__reduce__": again})


@lru_cache(maxsize=256)
def _meet(src: MemoryDesc, dst: MemoryDesc, distance: int) -> bool:
    """Whether a source and a destination, so many bytes behind it, have elements in common.

    Their ranges may overlap where they don't: parts of one tensor, such as channels of ``nhwc``.
    """
    return overlap(src, 0, dst, distance)


def logical(data: Any) -> NDArray[np.float64]:
    """A logical array in double precision."""
    array = data.numpy() if isinstance(data, Tensor) else as_array(data, lasting=False)
    return np.asarray(array.astype(np.float64))


def span_of(desc: MemoryDesc) -> tuple[int, int]:
    """The first byte of a tensor, and the one behind its last, counted from its address."""
    bits = desc.dtype.bits
    low, high = desc.layout.bounds() if desc.layout.size else (0, -1)
    return low * bits // 8, -(-(high + 1) * bits // 8)
