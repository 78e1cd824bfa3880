"""``relayout.cost``: what a format costs before anything is run.

A format decides how many cache lines and pages a kernel touches for what it reads together: a row of pixels,
all channels of one pixel, a window of 3x3. These are counted, not modelled: the places of the elements are
computed, for a buffer that begins on a page, at an index in the middle of the tensor.

Lines whose addresses are 4 KiB apart share a set of the first-level cache (with 64 lines of 64 bytes to a
page, which is how x86 processors index it). A set holds as many lines as the cache has ways; what is read
together and shares a set beyond that throws itself out. That is why sizes of large powers of two are slow.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, checked, spelled_seconds
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.records import dataclass
from relayout.reorder.axes import indexed_alike
from relayout.reorder.predict import seconds_to_move
from relayout.targets.machine import LINE, host

__all__ = ["Access", "Conversion", "Cost", "cost"]

PAGE = 4096  # bytes, of memory and of a way of the first-level cache
WINDOW = 3
MOST = 1 << 16  # elements of an axis that are looked at; a longer row is counted so far


@dataclass(frozen=True)
class Access:
    """What elements that are read together touch."""

    name: str
    """``row``, ``channels``, ``window`` (of one channel) or ``window of all channels``."""
    elements: int
    runs: int
    """Pieces of memory without gaps in between."""
    lines: int
    """Cache lines of 64 bytes."""
    least: int
    """Lines that as many elements side by side would take."""
    pages: int
    """Pages of 4 KiB."""
    colliding: int
    """Lines that find their set of the first-level cache full of others of the same access."""
    of: int = 0
    """Elements of the whole access; of an axis longer than 65,536 only so many in the middle are counted."""


@dataclass(frozen=True)
class Conversion:
    """What a conversion to another format moves."""

    desc: MemoryDesc
    same_bytes: bool
    """Whether a buffer of one is a buffer of the other, so that nothing is to be done."""
    read: int
    """Bytes of the source's elements."""
    written: int
    """Bytes of the destination, padding included."""
    seconds: float
    """How long a copy of as many bytes takes on this machine; 0 where nothing is to be done."""


@dataclass(frozen=True)
class Cost:
    """Sizes of a format, and what typical accesses touch."""

    desc: MemoryDesc
    bytes: int
    """From byte 0 of the buffer to the last place, padding included."""
    padding: int
    """Places that hold no element."""
    holes: int
    """Places in between that belong to somebody else."""
    alignment: int
    """Bytes: what the strides of all digits but the innermost are multiples of, at most a page."""
    accesses: tuple[Access, ...]
    conversion: Conversion | None
    """To the other format, where one was given."""

    @property
    def padding_share(self) -> float:
        """The part of all places that is padding."""
        room = prod(self.desc.layout.padded)
        return self.padding / room if room else 0.0

    def to_json(self) -> dict[str, Any]:
        """The same as dicts, lists, text and numbers."""
        to = self.conversion
        return {
            "desc": str(self.desc),
            "bytes": self.bytes,
            "padding": self.padding,
            "padding_share": self.padding_share,
            "holes": self.holes,
            "alignment": self.alignment,
            "accesses": [
                {
                    "name": one.name,
                    "elements": one.elements,
                    "runs": one.runs,
                    "lines": one.lines,
                    "least_lines": one.least,
                    "pages": one.pages,
                    "colliding_lines": one.colliding,
                    "of": one.of,
                }
                for one in self.accesses
            ],
            "conversion": None
            if to is None
            else {
                "desc": str(to.desc),
                "same_bytes": to.same_bytes,
                "read": to.read,
                "written": to.written,
                "seconds": to.seconds,
            },
        }

    def __str__(self) -> str:
        lines = [f"{self.desc}   {self.bytes:,} bytes"]
        lines.append(f"  padding    {self.padding:,} places, {100 * self.padding_share:.3g} %")
        if self.holes:
            lines.append(f"  holes      {self.holes:,} places of somebody else")
        lines.append(f"  alignment  {self.alignment:,} bytes")
        if self.accesses:
            wide = max(len(one.name) for one in self.accesses)
            heads = ("elements", "runs", "lines", "least", "pages", "colliding")
            lines.append(f"  {'':<{wide}}" + "".join(f"{head:>11}" for head in heads))
            for one in self.accesses:
                numbers = (one.elements, one.runs, one.lines, one.least, one.pages, one.colliding)
                lines.append(f"  {one.name:<{wide}}" + "".join(f"{number:>11,}" for number in numbers))
        lines += [
            f"  {one.name}: counted for {one.elements:,} of its {one.of:,} elements, those in the middle"
            for one in self.accesses
            if one.elements < one.of
        ]
        to = self.conversion
        if to is not None and to.same_bytes:
            lines.append(f"  to {to.desc}: same bytes, no conversion needed")
        elif to is not None:
            lines.append(
                f"  to {to.desc}: {to.read:,} bytes read, {to.written:,} written; a copy of as many takes "
                f"{spelled_seconds(to.seconds)} here"
            )
        return "\n".join(lines)


def cost(desc: MemoryDesc, to: MemoryDesc | None = None) -> Cost:
    """Count what a format costs: bytes, padding, and the cache lines and pages that are touched.

    Parameters
    ----------
    desc : MemoryDesc
        Dims, data type and format.
    to : MemoryDesc, optional
        Another format of the same tensor, to which it may be converted. Where both say what their axes mean,
        axes are matched by meaning.

    Returns
    -------
    Cost

    Raises
    ------
    LayoutError
        A descriptor has no layout yet, or the two are of different tensors.

    Examples
    --------
    All 64 channels of a pixel lie in 64 lines as ``nchw``, and in 4 as ``nhwc``:

    >>> import relayout as rl
    >>> for format in ("nchw", "nhwc", "nChw16c"):
    ...     found = cost(rl.MemoryDesc((1, 64, 56, 56), "f32", format))
    ...     print(format, [(one.name, one.lines, one.pages) for one in found.accesses][:2])
    nchw [('row', 4, 1), ('channels', 64, 64)]
    nhwc [('row', 56, 4), ('channels', 4, 1)]
    nChw16c [('row', 56, 2), ('channels', 4, 4)]
    >>> same = rl.MemoryDesc((2, 16, 5, 4), "f32", "nhwc")
    >>> cost(rl.MemoryDesc((2, 16, 5, 4), "f32", "nChw16c"), same).conversion.same_bytes
    True
    """
    layout = _layout(desc)
    room = prod(layout.padded)
    return Cost(
        desc=desc,
        bytes=desc.required_bytes,
        padding=room - layout.size,
        holes=max(0, layout.span - room),
        alignment=_alignment(layout, desc.dtype.bits),
        accesses=tuple(_accesses(desc, layout)) if layout.size else (),
        conversion=None if to is None else _conversion(desc, to),
    )


def _layout(desc: object) -> Layout:
    layout = checked(desc, MemoryDesc, "a descriptor", "a relayout.MemoryDesc").layout
    if layout is None:
        raise LayoutError(f"{desc} has no layout yet, so it costs nothing that could be counted")
    return layout


def _alignment(layout: Layout, bits: int) -> int:
    """What all strides but the shortest are multiples of, in bytes."""
    strides = sorted({abs(d.stride) for ladder in layout.ladders for d in ladder if d.extent > 1})
    common = gcd(PAGE * 8, *(stride * bits for stride in strides if stride != strides[0])) // 8
    return max(1, common if len(strides) > 1 else PAGE)


def _accesses(desc: MemoryDesc, layout: Layout) -> list[Access]:
    """What is read together, as far as there are axes for it."""
    rank, dims, roles = layout.rank, layout.dims, layout.roles or ()
    if not rank:
        return []
    last = roles.index("w") if "w" in roles else rank - 1
    above = roles.index("h") if "h" in roles else last - 1
    channel = next((roles.index(role) for role in ("c", "i") if role in roles), 1)
    images = rank >= 4 or "h" in roles
    wide = {"row": {last: dims[last]}}
    if (rank >= 4 or "c" in roles or "i" in roles) and channel != last:
        wide["channels"] = {channel: dims[channel]}
    if images and min(dims[above], dims[last]) >= WINDOW:
        wide["window"] = {above: WINDOW, last: WINDOW}
        wide["window of all channels"] = {above: WINDOW, last: WINDOW, channel: dims[channel]}
    return [_access(name, sizes, desc, layout) for name, sizes in wide.items()]


def _access(name: str, sizes: dict[int, int], desc: MemoryDesc, layout: Layout) -> Access:
    """Count what some elements touch, in the middle of the tensor."""
    spans: list[NDArray[np.int64]] = []
    for axis, size in enumerate(layout.dims):
        count = min(sizes.get(axis, 1), MOST)
        start = (size - count) // 2
        spans.append(np.arange(start, start + count))
    bits = desc.dtype.bits
    indices = np.stack(np.meshgrid(*spans, indexing="ij"), axis=-1).reshape(-1, layout.rank)
    places = np.sort(layout.offsets(indices))
    first, last = places * bits // 8, ((places + 1) * bits - 1) // 8
    lines = np.unique(np.concatenate([first // LINE, last // LINE]))
    sets = np.bincount(lines % (PAGE // LINE))
    ways = max(1, host().l1 // PAGE)
    return Access(
        name=name,
        elements=len(places),
        runs=1 + int(np.count_nonzero(np.diff(places) > 1)),
        lines=len(lines),
        least=-(-len(places) * bits // (8 * LINE)),
        pages=len(np.unique(lines // (PAGE // LINE))),
        colliding=int(np.maximum(sets - ways, 0).sum()),
        of=prod(sizes.values()),
    )


def _conversion(desc: MemoryDesc, to: MemoryDesc) -> Conversion:
    """What it takes to come from one format to another."""
    _layout(to)
    alike = indexed_alike(desc, to)
    if alike.dims != desc.dims:
        raise LayoutError(f"{desc} and {to} are different tensors: their dims differ")
    same = desc.dtype == to.dtype and desc.layout.same_bytes(alike.layout)
    read = desc.dtype.nbytes(desc.layout.size)
    written = to.required_bytes
    seconds = 0.0 if same else seconds_to_move(read + written)
    return Conversion(to, same, read, written, seconds)
