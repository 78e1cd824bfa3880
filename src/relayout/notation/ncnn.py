"""ncnn's ``Mat``: ``dims`` and ``elempack``.

ncnn, Tencent's inference framework for phones, keeps every blob in a ``Mat`` of one to four dims. It has no
letters for layouts; three members say everything. The outermost axis is *packed*: ``elempack`` of its
elements lie side by side and count as one::

    dims=1   w           w//P, w%P
    dims=2   h w         h//P, w, h%P
    dims=3   c h w       c//P, h, w, c%P             P = elempack: 1, 4, 8, 16
    dims=4   c d h w     c//P, d, h, w, c%P

There is no batch. (In ncnn itself the ``Mat`` holds the packed count, c/P, and packs only what P divides;
here dims are logical, so c = 3 in packs of 4 leaves one place empty.)

The channel step
================

With three or four dims, each channel (each pack of channels) starts on a multiple of 16 bytes. ncnn
computes the distance as

    cstep = align(w * h * elemsize, 16) / elemsize

where ``elemsize`` counts the bytes of a *pack*: 4 for f32 alone, 16 for f32 in packs of 4. So rows and
columns together are one number that is rounded up to a multiple of 16 / elemsize. It is a fused term of two
digits::

    f32, elempack=1     c, (h w)//4, (h w)%4               elemsize=4: w * h rounded up to 4
    f16, elempack=4     c//4, (h w)//2, (h w)%2, c%4       elemsize=8: to 2
    f32, elempack=4     c//4, h, w, c%4                    elemsize=16: nothing to round

A f32 blob of 3 x 5 x 5 has cstep = 28: channel 1 starts at element 28, not 25.

The text therefore waits for the data type. Until that is known (a layout without one) the rounding is left
out. To include it anyway, write the third member: ``dims=3 elempack=4 elemsize=8``.

Grammar: ``[dims=D] elempack=P [elemsize=B]``; ``pack4`` is short for ``elempack=4``. Without ``dims`` the
rank decides.
"""

from __future__ import annotations

import re
from math import prod

from relayout.dtypes import dtype as data_type
from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format

TITLE = "ncnn"

__all__ = ["TITLE", "attested", "names", "parse", "render"]

_NUMBER = r"([0-9]{1,6})"
_TEXT = re.compile(
    rf"(?:dims\s*=\s*{_NUMBER}[\s,]+)?(?:elempack\s*=\s*|pack){_NUMBER}"
    rf"(?:[\s,]+elemsize\s*=\s*{_NUMBER})?(?:\s*\(pack{_NUMBER}\))?"
)
_AXES = {1: ("w",), 2: ("h", "w"), 3: ("c", "h", "w"), 4: ("c", "d", "h", "w")}
_ALIGNMENT = 16  # bytes, of every channel
_PACKS = (1, 4, 8, 16)  # of x86 and Arm


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read ``dims=3 elempack=4``; it waits for the data type, and without ``dims`` for the rank.

    Raises
    ------
    LayoutError
        Numbers that ncnn can't have: more than four dims, a pack that is no power of two, an elemsize that
        isn't whole bytes for each element.
    Unsupported
        The data type is narrower than a byte.

    Examples
    --------
    >>> parse("dims=3 elempack=4").digits_text()
    'chw -> c//4, h, w, c%4'
    >>> parse("dims=3 elempack=4", dtype="f16").digits_text()
    'chw -> c//4, (h w)//2, (h w)%2, c%4'
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    dims, pack, elemsize, again = (None if group is None else int(group) for group in match.groups())
    if pack is None or not _is_power_of_two(pack):
        raise LayoutError(
            f"{text!r}: elempack is {pack}; it must be a power of two (ncnn packs 1, 4, 8 or 16)"
        )
    if again not in (None, pack):
        raise LayoutError(f"{text!r}: elempack={pack} contradicts pack{again}")
    if elemsize is not None and (elemsize % pack or not _is_power_of_two(elemsize)):
        raise LayoutError(
            f"{text!r}: elemsize is {elemsize}; it counts the bytes of a pack of {pack}, "
            f"so it must be {pack}, {2 * pack}, {4 * pack}, ..."
        )
    count = rank if dims is None else dims
    if count is None:
        return Format.waiting(text, "ncnn", ("rank", "dtype"))
    if count not in _AXES:
        raise LayoutError(f"{text!r}: a blob of ncnn has 1 to 4 dims (there is no batch), got {count}")
    waits = {"rank"} if dims is None else set()
    if elemsize is None and count > 2:
        waits.add("dtype")
        elemsize = _elemsize(pack, dtype)
    return _make(count, pack, elemsize or _ALIGNMENT).spelled(text, "ncnn", waits)


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _elemsize(pack: int, dtype: str | None) -> int:
    if dtype is None:
        return _ALIGNMENT
    bits = data_type(dtype).bits
    if bits < 8:
        raise Unsupported(f"ncnn has no elements of {bits} bits ({dtype}); its elemsize counts whole bytes")
    return pack * bits // 8


def _make(count: int, pack: int, elemsize: int) -> Format:
    axes = _AXES[count]
    packed, rest = axes[0], axes[1:]
    step = max(1, _ALIGNMENT // elemsize) if count > 2 else 1
    digits: list[tuple[str | tuple[str, ...], int, int | None]] = [(packed, pack, None)]
    if step > 1:
        digits += [(rest, step, None), (rest, 1, step)]
    else:
        digits += [(axis, 1, None) for axis in rest]
    if pack > 1:
        digits.append((packed, 1, pack))
    return Format.from_digits(axes, digits)


def render(format: Format) -> str | None:
    """Spell a format whose axes are those of a blob, with ``elemsize`` where the channel step is rounded up.

    >>> render(Format("chw -> c//8, h, w, c%8"))
    'dims=3 elempack=8'
    >>> render(Format("chw -> c, (h w)//4, (h w)%4"))
    'dims=3 elempack=1 elemsize=4'
    """
    if format.rank not in _AXES or format.roles != _AXES[format.rank]:
        return None
    pack = format.blocks[0]
    fused = [radices for term, radices in zip(format.terms, format.radices, strict=True) if len(term) > 1]
    step = prod(fused[0]) if fused else 1
    elemsize = 0 if _ALIGNMENT % step else _ALIGNMENT // step
    if not _is_power_of_two(pack) or (step > 1 and (not elemsize or elemsize % pack)):
        return None
    if _make(format.rank, pack, elemsize) != format:
        return None
    return f"dims={format.rank} elempack={pack}" + (f" elemsize={elemsize}" if step > 1 else "")


def names() -> tuple[str, ...]:
    """Blobs of one to four dims in the packs of x86 and Arm."""
    return tuple(f"dims={dims} elempack={pack}" for dims in _AXES for pack in _PACKS)


def attested(name: str) -> bool:
    """Whether ncnn packs so many elements: 1, 4, 8 or 16.

    >>> attested("dims=3 elempack=8"), attested("dims=3 elempack=32")
    (True, False)
    """
    match = _TEXT.fullmatch(name)
    return match is not None and int(match[2]) in _PACKS
