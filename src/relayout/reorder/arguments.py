"""Arguments of a call: what each must be, and the checks of what is given for it.

An :class:`Argument` is a descriptor with a label for messages. Reorders, primitives and compiled sequences
check their tensors and buffers with it, one by one and then all together: what is written must lie apart from
everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, counted
from relayout.exchange import pytorch
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, plain
from relayout.tensor import Tensor, as_bytes, check_addresses, located, of_torch, same_bytes, tensor

__all__ = ["Argument", "bound", "check_apart", "check_out", "span_of"]


class Argument:
    """What one argument of a call must be.

    Attributes
    ----------
    label : str
        What messages call it: ``convolution: src``.
    desc : MemoryDesc
        Its descriptor.

    Raises
    ------
    TooLarge
        No process can address its bytes.
    """

    __slots__ = ("_span", "desc", "label")

    def __init__(self, label: str, desc: MemoryDesc) -> None:
        check_addresses(desc, label)
        self.label, self.desc = label, desc
        self._span: tuple[int, int] | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The first byte of the tensor, and the one behind its last, counted from its address."""
        if self._span is None:
            self._span = span_of(self.desc)
        return self._span

    def read(self, given: Any) -> Tensor:
        """The tensor to read from; arrays are taken as logical ones.

        Raises
        ------
        LayoutError
            It has another descriptor, or its buffer is too short.
        """
        if not isinstance(given, Tensor) and not pytorch.is_tensor(given):
            try:
                given = tensor(given)
            except (LayoutError, TypeError, ValueError) as error:
                raise LayoutError(f"{self.label} is no tensor of {self.desc}: {error}") from None
        return Tensor(self.desc, self.buffer(given)[0])

    def written(self, given: Any) -> Tensor:
        """The tensor to write to; arrays are taken as physical bytes.

        Raises
        ------
        LayoutError
            It has another descriptor, or its buffer is too short or read-only.
        """
        check_out(given, self.desc)
        return Tensor(self.desc, as_bytes(self.buffer(given, writing=True, lasting=True)[0]))

    def buffer(self, given: Any, *, writing: bool = False, lasting: bool = False) -> tuple[NDArray[Any], int]:
        """The memory of a tensor of this descriptor, or of a buffer of physical bytes, and its address.

        The array is for this call alone: another thread may assign a tensor's ``buffer`` at any time. It
        keeps the memory alive until the call is over.

        Raises
        ------
        LayoutError
            A tensor has another descriptor, an array another data type; the buffer is too short, or it is
            read-only and ``writing``.
        """
        desc = self.desc
        if pytorch.is_tensor(given):
            given = of_torch(given, desc, self.label, writing=writing, lasting=lasting)
        if isinstance(given, Tensor):
            if given.desc is not desc and not same_bytes(given.desc, desc):
                raise LayoutError(f"{self.label} must be {desc}, but {given.desc} was given")
        elif (
            isinstance(given, np.ndarray)
            and given.dtype.kind not in "uV"
            and desc.dtype.bits >= 8
            and given.dtype != desc.dtype.numpy
        ):
            raise LayoutError(
                f"{self.label} is {desc}, but an array of {given.dtype} was given; give {desc.dtype} or bytes"
            )
        try:
            data, at = located(given)
        except LayoutError as error:
            raise LayoutError(f"{self.label} is {desc}: {error}") from None
        if data.nbytes < self.span[1]:
            raise LayoutError(f"{self.label} {desc} needs {self.span[1]} bytes; its buffer has {data.nbytes}")
        if writing and not data.flags.writeable:
            raise LayoutError(f"{self.label} {desc} is written, but its buffer is read-only")
        return data, at


def bound(names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any], what: str) -> list[Any]:
    """What was given for each of some inputs, by place or by name; ``what`` takes them, for errors.

    >>> bound(("x", "y"), (1,), {"y": 2}, "the sequence")
    [1, 2]
    """
    if len(given) > len(names):
        raise LayoutError(f"{what} takes {', '.join(names)}; got {counted(len(given), 'tensor')}")
    found = dict(zip(names, given, strict=False))
    for name, data in named.items():
        if name not in names or name in found:
            why = "was given twice" if name in found else f"is none of {', '.join(names)}"
            raise LayoutError(f"{what}: the argument {name!r} {why}")
        found[name] = data
    missing = [name for name in names if name not in found]
    if missing:
        raise LayoutError(f"{what} needs {', '.join(missing)}")
    return [found[name] for name in names]


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
                raise LayoutError(
                    f"{what}: {name} and {output} overlap in memory: {other} and {desc}; "
                    f"give {output} memory of its own"
                )


def check_out(out: Any, desc: MemoryDesc) -> None:
    """An array is taken as physical bytes; refuse one that looks as if it were meant as a logical array."""
    if not isinstance(out, np.ndarray):
        return
    if out.dtype != np.uint8 and desc.dtype.bits >= 8 and out.dtype != desc.dtype.numpy:
        raise LayoutError(
            f"out is an array of {out.dtype}, but the destination is {desc}; give bytes or {desc.dtype}"
        )
    if out.ndim < 2 or out.shape != desc.dims:
        return
    if not desc.layout.same_bytes(Layout._dense(desc.dims, plain(desc.rank))):
        raise LayoutError(
            f"out has the shape of the logical array, but is filled with the physical bytes of {desc}; "
            "give out.reshape(-1) if that is meant, or rl.tensor(out) to fill the array by its own strides"
        )


@lru_cache(maxsize=256)
def _meet(src: MemoryDesc, dst: MemoryDesc, distance: int) -> bool:
    """Whether a source and a destination, so many bytes behind it, have elements in common.

    Their ranges may overlap where they don't: parts of one tensor, such as channels of ``nhwc``.
    """
    with lock():
        from relayout.reorder.overlap import overlap
    return overlap(src, 0, dst, distance)


def span_of(desc: MemoryDesc) -> tuple[int, int]:
    """The first byte of a tensor, and the one behind its last, counted from its address."""
    bits = desc.dtype.bits
    low, high = desc.layout.bounds() if desc.layout.size else (0, -1)
    return low * bits // 8, -(-(high + 1) * bits // 8)
