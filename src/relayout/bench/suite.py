"""The cases: which tensors go from which format to which.

A :class:`Case` is one reorder, written on one line that can be copied and pasted::

    $ relayout bench reorder --case "u8:nhwc -> f32:nChw16c 64x3x224x224 src_scale@1 src_zero_point@1"

``src_scale@1`` is an attribute with one value for each index of axis 1, ``src_scale`` one with a single
value. What the values are does not matter for the speed; :meth:`Case.attribute_values` makes sensible ones.

=============  ======================================================================================
group          what it stands for
=============  ======================================================================================
ResNet-50      activations between layers: nchw, nhwc, nChw8c and nChw16c, each to each
MobileNet      the same, with narrow and deep layers
U-Net          the same, with large pictures
ViT            patches, tokens to matrices, heads split off
weights        weights packed for convolutions and matrix products, VNNI and AMX among them
images         pictures of bytes to normalised floats: scale and shift for each channel
transposition  the 57-case benchmark of :mod:`relayout.bench.transposition`
quantise       f32 to s8 and u8 and back: scales for the tensor or for each channel, zero points
convert        f32 to bf16, f16 and back
4-bit          s4 and u4: moved, quantised, dequantised
small          what fits the L1 caches, where calls and not bytes count
odd blocks     blocks that do not divide each other, or the channels
odd sizes      pixels and rows that are no whole lines: 9x9, 41x41, 299x299, 3001x3001
caches         what about fills the first, the second and half of the L3 cache of a usual processor
packed         matrices and filters of 8 and 16 bits in blocks for VNNI and AMX, and back
=============  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import prod
from typing import TYPE_CHECKING, Any

from relayout.bench.transposition import MIB, transpositions
from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["GROUPS", "Case", "cases"]

ACTIVATION_FORMATS = ("nchw", "nhwc", "nChw8c", "nChw16c")
SCALE, ZERO_POINT = 0.05, {"u8": 128, "u4": 8}


@dataclass(frozen=True)
class Case:
    """One reorder.

    Attributes
    ----------
    group : str
        What it stands for.
    dims : tuple of int
        The logical sizes.
    src, dst : str
        The formats, as oneDNN's tags.
    src_dtype, dst_dtype : str
        The data types.
    attributes : tuple of (str, int or None)
        Names of attributes, and the logical axis that their values lie along (None: one value).

    Examples
    --------
    >>> case = Case("mine", (2, 3, 4, 4), "nchw", "nhwc", "f32", "s8", (("dst_scale", 1),))
    >>> str(case), case.bytes
    ('f32:nchw -> s8:nhwc 2x3x4x4 dst_scale@1', 240)
    """

    group: str
    dims: tuple[int, ...]
    src: str
    dst: str
    src_dtype: str
    dst_dtype: str
    attributes: tuple[tuple[str, int | None], ...] = ()

    @cached_property
    def source(self) -> MemoryDesc:
        """The descriptor of the source."""
        return MemoryDesc(self.dims, self.src_dtype, self.src)

    @cached_property
    def target(self) -> MemoryDesc:
        """The descriptor of the destination."""
        return MemoryDesc(self.dims, self.dst_dtype, self.dst)

    @property
    def bytes(self) -> int:
        """Bytes of the copy that the reorder is held against: half of those read and written together."""
        return (self.source.required_bytes + self.target.required_bytes) // 2

    @property
    def copied(self) -> MemoryDesc:
        """The descriptor of either side of that copy."""
        return MemoryDesc((self.bytes,), "u8", "a")

    @property
    def has_nibbles(self) -> bool:
        """Whether two elements share a byte on either side."""
        return min(self.source.dtype.bits, self.target.dtype.bits) < 8

    def attribute_values(self) -> dict[str, Any]:
        """The attributes as :class:`relayout.Reorder` takes them: numbers, or ``(values, axis)``.

        >>> case = Case("mine", (2, 3), "ab", "ab", "u8", "f32", (("src_zero_point", None),))
        >>> case.attribute_values()
        {'src_zero_point': 128}
        """
        return {
            name: self._numbers(name, 1).item()
            if axis is None
            else (self._numbers(name, self.dims[axis]), axis)
            for name, axis in self.attributes
        }

    def _numbers(self, name: str, count: int) -> NDArray[Any]:
        import numpy as np

        turn = np.arange(count) % 8
        if name.endswith("scale"):
            return (SCALE * (1 + turn / 16)).astype(np.float32)
        side = self.src_dtype if name.startswith("src") else self.dst_dtype
        return (ZERO_POINT.get(side, 3) - turn).astype(np.int32)

    def source_part(self) -> NDArray[np.uint8]:
        """Bytes to fill the source with, again and again.

        Floats are ordinary numbers that quantising leaves within range: NaN and subnormal numbers would slow
        some down, and take other paths. Integers are any bits.
        """
        import numpy as np

        from relayout.convert import convert

        generator = np.random.default_rng(1)
        kind = self.source.dtype
        if kind.is_float:
            return convert(generator.normal(0, 2, 1 << 18).astype(np.float32), kind).view(np.uint8)
        return generator.integers(0, 256, 1 << 20, dtype=np.uint8)

    def __str__(self) -> str:
        words = [f"{name}{'' if axis is None else f'@{axis}'}" for name, axis in self.attributes]
        sides = f"{self.src_dtype}:{self.src} -> {self.dst_dtype}:{self.dst}"
        return " ".join([sides, "x".join(map(str, self.dims)), *words])


def cases(
    quick: bool = False,
    groups: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    texts: Sequence[str] = (),
    several: Sequence[Case] | None = None,
) -> list[Case]:
    """Choose cases from the suite.

    Parameters
    ----------
    quick : bool
        A small suite with smaller tensors; every group is in it.
    groups, dtypes : sequence of str
        Only these groups, only cases with one of these data types on either side; empty: all.
    texts : sequence of str
        Only cases whose line has one of these texts in it; empty: all.
    several : sequence of Case, optional
        To choose from these rather than from the suite; they are of no group.

    Raises
    ------
    LayoutError
        There is no such group, or no case is left.

    Examples
    --------
    >>> [str(case) for case in cases(groups=["weights"], dtypes=["s8"])][-1]
    's8:ab -> s8:BA16a64b4a 4096x4096'
    """
    for group in groups:
        if group not in GROUPS:
            raise LayoutError(f"there is no group {group!r}; the groups are {', '.join(GROUPS)}")
    found = list(several or ())
    if several is None:
        taken = [(group, make) for group, make in GROUPS.items() if not groups or group in groups]
        found = [case for group, make in taken for case in make(group, quick)]
    chosen = [
        case
        for case in found
        if (not dtypes or {case.src_dtype, case.dst_dtype} & set(dtypes))
        and (not texts or any(text in str(case) for text in texts))
    ]
    if not chosen:
        wanted = ", ".join([*dtypes, *map(repr, texts)])
        raise LayoutError(f"none of {len(found)} cases has {wanted} in it; --list prints them")
    return chosen


def _activations(group: str, quick: bool) -> Iterator[Case]:
    sizes: dict[str, list[tuple[int, ...]]] = {
        "ResNet-50": [(32, 64, 112, 112), (32, 256, 56, 56), (32, 2048, 7, 7)],
        "MobileNet": [(32, 96, 56, 56), (32, 160, 14, 14)],
        "U-Net": [(4, 64, 256, 256)],
        "ViT": [(32, 768, 14, 14)],
    }
    small = {
        "ResNet-50": [(4, 256, 56, 56)],
        "MobileNet": [(4, 96, 28, 28)],
        "U-Net": [(1, 64, 128, 128)],
        "ViT": [(4, 768, 14, 14)],
    }
    dtypes = ("f32",) if quick and group != "ResNet-50" else ("f32", "s8") if quick else ("f32", "bf16", "s8")
    pairs = list(permutations(ACTIVATION_FORMATS, 2))
    if quick and group != "ResNet-50":
        pairs = [("nchw", "nhwc"), ("nChw16c", "nhwc")]
    for dims, dtype, (src, dst) in product((small if quick else sizes)[group], dtypes, pairs):
        yield Case(group, dims, src, dst, dtype, dtype)
    if group == "ResNet-50" and not quick:
        for dtype, (src, dst) in product(("f16", "u8"), pairs):
            yield Case(group, (32, 256, 28, 28), src, dst, dtype, dtype)
    if group == "ViT":
        batch = 4 if quick else 32
        for dtype in dtypes:
            yield Case(group, (batch, 197, 768), "abc", "acb", dtype, dtype)
            yield Case(group, (batch, 197, 12, 64), "abcd", "acbd", dtype, dtype)


def _weights(group: str, quick: bool) -> Iterator[Case]:
    convolutions = [(512, 512, 3, 3), (256, 64, 1, 1), (64, 3, 7, 7)][: 1 if quick else 3]
    packed: dict[str, tuple[str, ...]] = {
        "f32": ("hwio", "OIhw8i8o", "OIhw16i16o"),
        "bf16": ("hwio", "OIhw8i16o2i", "OIhw16i16o2i"),
        "s8": ("hwio", "OIhw4i16o4i", "OIhw16i16o4i"),
    }
    for dims, (dtype, formats) in product(convolutions, packed.items()):
        for dst in formats[1:] if quick else formats:
            yield Case(group, dims, "oihw", dst, dtype, dtype)
        if not quick:
            yield Case(group, dims, "hwio", formats[-1], dtype, dtype)
    tiles: dict[str, tuple[str, ...]] = {
        "f32": ("ba", "BA16a64b"),
        "bf16": ("ba", "BA16a16b2a", "BA16a64b2a"),
        "s8": ("ba", "BA16a16b4a", "BA16a64b4a"),
    }
    for sizes, (dtype, tiled) in product([(1024, 3072), (4096, 4096)][: 1 if quick else 2], tiles.items()):
        for dst in tiled[-1:] if quick else tiled:
            yield Case(group, sizes, "ab", dst, dtype, dtype)


def _images(group: str, quick: bool) -> Iterator[Case]:
    normalise = (("src_scale", 1), ("src_zero_point", 1))
    one_shift = (("src_scale", 1), ("src_zero_point", None))  # all that oneDNN 3.2 has
    for dims in [(8, 3, 224, 224)] if quick else [(64, 3, 224, 224), (1, 3, 1080, 1920)]:
        for dtype, dst in product(("f32", "bf16"), ("nchw", "nChw16c")):
            yield Case(group, dims, "nhwc", dst, "u8", dtype, normalise)
        yield Case(group, dims, "nhwc", "nchw", "u8", "f32", one_shift)
        yield Case(group, dims, "nhwc", "nchw", "u8", "u8")
        if not quick:
            yield Case(group, dims, "nhwc", "nchw", "f32", "f32")
            yield Case(group, dims, "nchw", "nhwc", "f32", "f32")
            yield Case(group, dims, "nchw", "nChw16c", "f32", "f32")


def _transpositions(group: str, quick: bool) -> Iterator[Case]:
    for case in transpositions(16 * MIB if quick else 200 * MIB):
        if not quick or (case.shape == "even" and case.permutation[::-1] == tuple(range(len(case.sizes)))):
            yield Case(group, case.dims, *case.formats, "f32", "f32")


def _quantise(group: str, quick: bool) -> Iterator[Case]:
    dims = (4, 256, 28, 28) if quick else (32, 256, 28, 28)
    formats = [("nchw", "nchw"), ("nchw", "nChw16c")] if quick else [("nchw", f) for f in ACTIVATION_FORMATS]
    for dtype, axis, (plain, other) in product(("s8", "u8"), (None, 1), formats):
        points = dtype == "u8"  # s8 is quantised symmetrically, as oneDNN advises
        to = (("dst_scale", axis), *([("dst_zero_point", None)] if points else []))
        back = (("src_scale", axis), *([("src_zero_point", None)] if points else []))
        yield Case(group, dims, plain, other, "f32", dtype, to)
        yield Case(group, dims, other, plain, dtype, "f32", back)
    yield Case(group, (512, 512, 3, 3), "oihw", "OIhw4i16o4i", "f32", "s8", (("dst_scale", 0),))
    if not quick:
        yield Case(group, (4096, 4096), "ab", "BA16a64b4a", "f32", "s8", (("dst_scale", 1),))


def _conversions(group: str, quick: bool) -> Iterator[Case]:
    dims = (4, 256, 28, 28) if quick else (32, 256, 28, 28)
    for narrow, dst in product(("bf16", "f16"), ("nchw",) if quick else ACTIVATION_FORMATS):
        yield Case(group, dims, "nchw", dst, "f32", narrow)
        yield Case(group, dims, dst, "nchw", narrow, "f32")
    if not quick:
        yield Case(group, (512, 512, 3, 3), "oihw", "OIhw8i16o2i", "f32", "bf16")
        yield Case(group, (4096, 4096), "ab", "BA16a64b2a", "f32", "bf16")


def _nibbles(group: str, quick: bool) -> Iterator[Case]:
    dims = (512, 1024) if quick else (4096, 4096)
    for dtype in ("s4", "u4"):
        yield Case(group, dims, "ab", "ab", "f32", dtype, (("dst_scale", 0),))
        yield Case(group, dims, "ab", "ab", dtype, "f32", (("src_scale", 0),))
        if not quick:
            yield Case(group, dims, "ab", "ab", dtype, "s8" if dtype == "s4" else "u8")
            yield Case(group, dims, "ab", "ab", dtype, "bf16", (("src_scale", 0),))
            yield Case(group, dims, "ab", "BA16a64b", "f32", dtype, (("dst_scale", 1),))
    yield Case(group, dims, "ab", "ba", "s4", "s4")
    yield Case(group, dims, "ab", "BA8a8b", "s4", "s4")


def _small(group: str, quick: bool) -> Iterator[Case]:
    sizes = [(1, 16, 8, 8), (1, 64, 7, 7), (1, 32, 14, 14), (8, 16, 16, 16)]
    pairs = [
        ("nchw", "nhwc"),
        ("nhwc", "nchw"),
        ("nchw", "nChw16c"),
        ("nChw16c", "nhwc"),
        ("nChw8c", "nChw16c"),
    ]
    for dims, (src, dst) in product(sizes[:1] if quick else sizes, pairs[:3] if quick else pairs):
        for dtype in ("f32",) if quick else ("f32", "s8"):
            yield Case(group, dims, src, dst, dtype, dtype)
    if not quick:
        yield Case(group, (1, 3, 32, 32), "nhwc", "nchw", "u8", "f32", (("src_scale", None),))
        yield Case(group, (64, 64, 1, 1), "oihw", "OIhw16i16o", "f32", "f32")


def _odd_blocks(group: str, quick: bool) -> Iterator[Case]:
    sizes = {
        (4 if quick else 16, 96, 28, 28): [("nChw48c", "nChw32c"), ("nChw32c", "nChw48c")],
        (4 if quick else 16, 100, 28, 28): [
            ("nchw", "nChw16c"),
            ("nChw16c", "nchw"),
            ("nhwc", "nChw16c"),
            ("nChw48c", "nChw32c"),
        ],
        (2 if quick else 8, 17, 56, 56): [("nchw", "nChw8c"), ("nChw8c", "nhwc")],
    }
    for dims, pairs in sizes.items():
        for dtype, (src, dst) in product(("f32",) if quick else ("f32", "bf16", "s8"), pairs):
            yield Case(group, dims, src, dst, dtype, dtype)


WIDTHS = {"s8": 1, "bf16": 2, "f32": 4}
"""A data type of each size that networks move about, with its bytes."""


def _odd_sizes(group: str, quick: bool) -> Iterator[Case]:
    plain = [("nchw", "nhwc"), ("nhwc", "nchw")]
    blocked = [("nchw", "b_fs_yx_fsv16"), ("b_fs_yx_fsv16", "nchw"), ("NCHW4", "nhwc"), ("nhwc", "NCHW4")]
    by_batch = [("nchw", "CHWN4"), ("CHWN4", "nchw")]
    sizes: dict[tuple[int, ...], list[tuple[str, str]]] = {
        (24, 192, 41, 41): plain + blocked,
        (64, 256, 9, 9): plain + blocked + by_batch,
        (2, 64, 299, 299): plain + blocked[:2],
        (3001, 3001): [("ab", "ba")],
        (3001, 77): [("ab", "ba"), ("ba", "ab")],
    }
    if quick:
        sizes = {(2, 192, 41, 41): plain, (16, 256, 9, 9): plain + by_batch[:1], (1001, 1001): [("ab", "ba")]}
    for (dims, pairs), dtype in product(sizes.items(), WIDTHS):
        for src, dst in pairs:
            yield Case(group, dims, src, dst, dtype, dtype)


def _caches(group: str, quick: bool) -> Iterator[Case]:
    pictures = {
        (32, 12, 12): 18 << 10,
        (128, 28, 28): 400 << 10,
        (256, 56, 56): 6 << 20,
    }  # to bytes of a side
    pairs = [(one, two) for one, two in permutations(("nchw", "nhwc", "nChw16c"), 2)]
    for (rest, size), (dtype, width) in product(pictures.items(), WIDTHS.items()):
        batch = max(1, round(size / prod(rest) / width))
        for src, dst in pairs[:1] + pairs[2:3] if quick else pairs:
            yield Case(group, (batch, *rest), src, dst, dtype, dtype)


def _packed(group: str, quick: bool) -> Iterator[Case]:
    forms = [
        ("s8", (256, 256, 3, 3), "oihw", "OIhw4i16o4i"),
        ("bf16", (256, 256, 3, 3), "oihw", "OIhw8i16o2i"),
        ("s8", (1000, 2052), "ab", "BA16a64b4a"),
        ("bf16", (1000, 2052), "ab", "BA16a64b2a"),
        ("s8", (1024, 1024), "ab", "BA16a64b4a"),
        ("s8", (2048, 2048, 1, 1), "oihw", "OIhw4i16o4i"),
        ("bf16", (2048, 1024, 1, 1), "oihw", "OIhw8i16o2i"),
        ("s8", (1000, 2052), "ba", "BA16a64b4a"),
    ]
    for dtype, dims, plain, packed in forms[: 3 if quick else None]:
        yield Case(group, dims, plain, packed, dtype, dtype)
        yield Case(group, dims, packed, plain, dtype, dtype)


GROUPS: dict[str, Callable[[str, bool], Iterator[Case]]] = {
    "ResNet-50": _activations,
    "MobileNet": _activations,
    "U-Net": _activations,
    "ViT": _activations,
    "weights": _weights,
    "images": _images,
    "transposition": _transpositions,
    "quantise": _quantise,
    "convert": _conversions,
    "4-bit": _nibbles,
    "small": _small,
    "odd blocks": _odd_blocks,
    "odd sizes": _odd_sizes,
    "caches": _caches,
    "packed": _packed,
}
"""The groups, and what makes their cases."""
