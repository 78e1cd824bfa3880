"""The memory descriptors in the lines that oneDNN prints with ``ONEDNN_VERBOSE=1``.

::

    onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,
        src:f32::blocked:abcd::f0 dst:f32:p:blocked:aBcd16b::f0,,,1x17x56x56,0.012

Each argument is one word of fields between colons, in the third line of three versions::

    src_f32::blocked:abcd:f0          1.x, 2.x: no strides
    src_f32::blocked:abcd::f0         3.0
    src:f32::blocked:abcd::f0         later: a colon behind the argument's name

===========  =========================================================================================
field        meaning
===========  =========================================================================================
argument     src, wei, bia, dst, src_iter, ...; may be left out here
data type    f32, bf16, s8, ...
properties   a: created with ``any``; p: padded; o: begins inside a block; 0: an offset that is not 0
kind         blocked, or what is no layout: any, undef, wino, rnn_packed, opaque, sparse
tag          the format, in letters a, b, c, ...
strides      between outermost blocks, in elements, where they are not dense: 3200x100x10x1
flags        f0, or what oneDNN does besides: f8:zpm2 appends sums for the zero point
===========  =========================================================================================

The sizes stand elsewhere in the line. Here they may follow the descriptor as a last field:
``src:f32:p:blocked:aBcd16b::f0:1x17x56x56``.

Flags other than f0 are the weights of integer kernels (``dnnl_memory_extra_flags_t``). oneDNN appends one s32
for each output channel, the sum of its weights (``s8m1``, ``zpm1``: with the mask of axes), and may scale the
elements (``sa0.5``). A layout has no word for either, so such a descriptor is no format and no
:class:`MemoryDesc`; :attr:`Verbose.elements` describes the elements alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relayout.errors import LayoutError, UnknownFormat, Unsupported
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout

__all__ = ["Verbose", "read"]

_TYPES = "f64|f32|f16|bf16|f8_e5m2|f8_e4m3|f4_e2m1|f4_e3m0|e8m0|s64|s32|s16|s8|u8|s4|u4|boolean|undef"
_SIZES = r"(?:[0-9]{1,30}|\*)(?:x(?:[0-9]{1,30}|\*))*"
_WORD = re.compile(
    rf"(?:(?P<argument>[a-z][a-z0-9_]*?)[_:])?(?P<dtype>{_TYPES})"
    r":(?P<properties>[apo0]*):(?P<kind>[a-z_]+):(?P<tag>[A-Za-z][A-Za-z0-9]*|\*|)"
    rf"(?::(?P<strides>{_SIZES}|))?"
    r":(?P<flags>f[0-9]+(?::[a-z][a-z0-9]*[0-9.]*)*(?:_mask[0-9]+)?)"
    rf"(?::(?P<dims>{_SIZES}))?"
)
_KINDS = "blocked|any|undef|wino|rnn_packed|opaque|sparse|cublaslt_blocked"
_BEGINS = re.compile(
    rf"(?:[a-z][a-z0-9_]*?[_:])?(?:{_TYPES})?"
    rf":(?P<properties>[apo0*]*):(?P<kind>{_KINDS})(?P<rest>:.*)?",
    re.DOTALL,
)
_LINE = re.compile(r"(?:onednn|dnnl|mkldnn)_verbose\s*,")
_NO_LAYOUT = {"any": "leaves the format open", "undef": "is the descriptor of nothing"}
_WHY = {
    "0": "does not say at which offset its first element lies (property 0)",
    "o": "does not say how far inside a block it begins (property o)",
}


class Verbose(NamedTuple):
    """One memory descriptor of a verbose line, field by field."""

    text: str
    argument: str
    """``src``, ``wei``, ``dst``, ...; empty if it was left out."""
    dtype: str
    properties: str
    kind: str
    tag: str
    strides: tuple[int, ...] | None
    """Between outermost blocks, in elements; None where they are dense."""
    flags: str
    dims: tuple[int, ...] | None
    """The sizes, where they were written behind it."""

    @property
    def format(self) -> Format:
        """The format that the tag names, without sizes.

        Raises
        ------
        Unsupported
            It is no layout (``wino``), or the tag is not all there is to it: strides, an offset, or what
            oneDNN appends.

        Examples
        --------
        >>> read("src_f32::blocked:aBcd16b::f0").format
        Format('aBcd16b')
        """
        if self.strides is not None:
            raise Unsupported(
                f"{self.text!r} has strides, and a format has none; a MemoryDesc takes them, "
                f"and {self.tag!r} alone is the dense layout"
            )
        format = self._tag_format()
        return format.spelled(format.text or self.tag, "onednn", format.waits_for, self.dtype)

    @property
    def elements(self) -> Verbose:
        """The same without what oneDNN appends and scales: where its elements lie.

        Examples
        --------
        >>> read("wei_s8:p:blocked:ABcd4b16a4b::f8:zpm1").elements.format
        Format('ABcd4b16a4b')
        """
        return self._replace(flags="f0")

    @property
    def appended(self) -> str:
        """What oneDNN does besides placing the elements, ``f8:zpm1``; empty for nothing."""
        return "" if self.flags.split("_")[0] == "f0" else self.flags

    def desc(self, dims: tuple[int, ...] | None = None) -> MemoryDesc:
        """The descriptor of ``dims`` logical sizes (None: those that the text says).

        Raises
        ------
        LayoutError
            There are no sizes, or two that differ, or they do not fit the format.
        Unsupported
            It is no layout, not all of it is (flags), or the text does not say where it begins.

        Examples
        --------
        >>> read("dst:f32:p:blocked:aBcd16b::f0").desc((1, 17, 56, 56))
        MemoryDesc('f32:aBcd16b:1x17x56x56')
        >>> read("src:f32::blocked:ab:128x1:f0:4x100").desc().strides
        (128, 1)
        """
        sizes = self.dims if dims is None else dims
        if sizes is None:
            raise LayoutError(f"{self.text!r} does not say its sizes; they stand at the end of the line")
        if self.dims is not None and sizes != self.dims:
            raise LayoutError(f"{self.text!r} says other sizes than {'x'.join(map(str, sizes))}")
        format = self._tag_format()
        if self.strides is None:
            return MemoryDesc(sizes, self.dtype, format)
        return MemoryDesc(sizes, self.dtype, Layout(sizes, format, strides=self.strides))

    def _tag_format(self) -> Format:
        if self.kind != "blocked":
            raise Unsupported(
                f"{self.text!r} {_NO_LAYOUT.get(self.kind, f'is {self.kind}, which is no layout')}"
            )
        if not self.tag or self.tag == "*":
            raise Unsupported(f"{self.text!r} has strides that are known at run time only")
        if self.appended:
            raise Unsupported(
                f"{self.text!r} is more than a layout: flags {self.appended!r} say that oneDNN appends to "
                f"its elements or scales them; {self.tag!r} alone is where its elements lie"
            )
        for property in self.properties:
            if property in _WHY:
                raise Unsupported(f"{self.text!r} {_WHY[property]}")
        return Format(self.tag, "onednn")


def read(text: str) -> Verbose | None:
    """Read one descriptor of a verbose line; None if the text is none.

    Raises
    ------
    Unsupported
        What is no layout (``any``, ``undef``, ``wino``), and sizes or strides that are known at run time only
        (``*``).
    UnknownFormat
        A whole line, or a descriptor of which fields are missing.

    Examples
    --------
    >>> read("wei_s8:p:blocked:ABcd4b16a4b::f8:zpm3").flags
    'f8:zpm3'
    >>> read("nChw16c") is None
    True
    """
    found = _WORD.fullmatch(text)
    if found is None:
        _refuse(text)
        return None
    fields = found.groupdict(default="")
    return Verbose(
        text=text,
        argument=fields["argument"],
        dtype=fields["dtype"],
        properties=fields["properties"],
        kind=fields["kind"],
        tag=fields["tag"],
        strides=_numbers(text, fields["strides"]),
        flags=fields["flags"],
        dims=_numbers(text, fields["dims"]),
    )


def _refuse(text: str) -> None:
    """Say why what looks like part of a log is no descriptor of a layout."""
    if _LINE.match(text):
        words = (word for word in re.split(r"[\s,]+", text) if _WORD.fullmatch(word))
        named = " or ".join(repr(word) for word in words) or "'src:f32::blocked:abcd::f0'"
        raise UnknownFormat(f"this is a whole line of oneDNN's log; give one descriptor of it, as {named}")
    begins = _BEGINS.fullmatch(text)
    if begins is None:
        return
    kind, rest = begins["kind"], begins["rest"] or ""
    if kind != "blocked":
        raise Unsupported(f"{_shown(text)} {_NO_LAYOUT.get(kind, f'is {kind}, which is no layout')}")
    if "*" in begins["properties"] or "*" in rest:
        raise Unsupported(f"{_shown(text)} has sizes or strides that are known at run time only")
    raise UnknownFormat(
        f"{_shown(text)} is no whole descriptor of oneDNN's log, which is written 'src:f32::blocked:abcd::f0'"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _numbers(text: str, field: str) -> tuple[int, ...] | None:
    if not field:
        return None
    if "*" in field:
        raise Unsupported(f"{text!r} has sizes or strides that are known at run time only")
    return tuple(map(int, field.split("x")))
