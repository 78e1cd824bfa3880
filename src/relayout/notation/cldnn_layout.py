"""clDNN's ``layout``: dims, data type, format and pads, with the answers that the plugin gives.

A ``cldnn::layout`` is more than a format with sizes: it may have *pads*, room in front of the elements and
behind them that a convolution can read without asking for borders. Three things about it are surprising:

**Pads come before blocks.** The buffer is the dense layout of the *padded* sizes, blocks and all, and the
tensor is a part of it. So 4 features with 16 in front are 20 features, two slices of ``b_fs_yx_fsv16``:

>>> x = CldnnLayout((2, 4, 1, 1), "f32", "b_fs_yx_fsv16", lower=(1, 16, 0, 0), upper=(1, 0, 0, 0))
>>> x.buffer.padded_dims, x.offset(0, 0, 0, 0), x.nbytes
((4, 32, 1, 1), 48, 512)

**Pitches ignore blocks.** ``get_pitches()`` multiplies up the padded sizes in the order of the format as if
no axis were cut. For a blocked format these numbers are no strides of anything; the plugin only compares
them with each other. Take strides from :attr:`CldnnLayout.layout`.

>>> CldnnLayout((2, 33, 3, 5), "f32", "b_fs_yx_fsv16").pitches
(495, 15, 5, 1)

**Compatible is not "the same bytes".** ``compatible()`` decides whether the plugin reads one buffer as the
other or inserts a reorder. It says yes more often, as plain row-major tensors of any two shapes are one to it
(a reshape), and less often, as it compares blocked formats by their names::

    bfyx 1x2x3x4            bfyx 4x3x2x1                compatible, other shape
    b_fs_yx_fsv16 1x2x1x1   b_fs_zyx_fsv16 1x2x1x1x1    not compatible, same bytes

Whether a reorder is *needed* is the question of ``Layout.same_bytes``. Where they differ, time can be saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from relayout.dtypes import DType, DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.layout import views
from relayout.layout.format import Format
from relayout.layout.layout import Layout, check_dims, spell_dims
from relayout.notation import openvino, parse

__all__ = ["CldnnLayout", "transform_shape"]


@dataclass(frozen=True, init=False)
class CldnnLayout:
    """Dims, data type, format and pads: what ``cldnn::layout`` holds, with its questions.

    Parameters
    ----------
    dims : sequence of int
        The logical sizes in the default order of the axes (b f .. z y x or g o i z y x). Missing last sizes
        are 1, as in clDNN: ``(10, 20)`` in ``bfyx`` is 10x20x1x1.
    dtype : str, numpy.dtype or DType
        The data type, by any name (``"f16"``, ``"i8"``).
    format : str or Format
        A format that clDNN has a name for.
    lower, upper : sequence of int, optional
        Pads in front of and behind each axis, in elements, in the order of the dims; missing last ones are 0.

    Raises
    ------
    LayoutError
        Too many dims, a negative pad, or a format that clDNN can't say.

    Examples
    --------
    >>> x = CldnnLayout((1, 15, 5, 5), "f32", "byxf", lower=(0, 1, 3, 2), upper=(0, 1, 3, 2))
    >>> x.padded_dims, x.pitches
    ((1, 17, 11, 9), (1683, 1, 153, 17))
    >>> x.layout
    Layout('1x15x5x5 (n, c, h, w) strides 1683x1x153x17+494')
    """

    dims: tuple[int, ...]
    dtype: DType
    format_name: str
    lower: tuple[int, ...]
    upper: tuple[int, ...]

    def __init__(
        self,
        dims: Sequence[int],
        dtype: DTypeLike,
        format: str | Format,
        lower: Sequence[int] = (),
        upper: Sequence[int] = (),
    ) -> None:
        kind = as_dtype(dtype)
        read = _read(format, kind)
        put = object.__setattr__
        put(self, "dims", _filled("dims", check_dims(dims), read, 1))
        put(self, "dtype", kind)
        put(self, "format_name", read.text)
        put(self, "lower", _filled("lower pads", check_dims(lower), read, 0))
        put(self, "upper", _filled("upper pads", check_dims(upper), read, 0))

    # -- where things lie -------------------------------------------------------------------------------

    @property
    def format(self) -> Format:
        """The format, read for this data type (three names mean something else for 4-bit elements)."""
        return parse(self.format_name, "openvino", dtype=self.dtype.name)

    @property
    def axes(self) -> str:
        """The letters of the axes in clDNN, in the order of the dims: ``"bfyx"``, ``"goizyx"``."""
        return openvino.axes_of(self.format) or ""

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """The sizes with pads, not rounded up to blocks (``get_padded_dims()``)."""
        return tuple(map(sum, zip(self.lower, self.dims, self.upper, strict=True)))

    @property
    def buffer(self) -> Layout:
        """The layout of the whole buffer, pads included."""
        return Layout(self.padded_dims, self.format)

    @property
    def layout(self) -> Layout:
        """The layout of the tensor alone, a part of the buffer.

        Raises
        ------
        LayoutError
            A pad in front cuts blocks at uneven places, so that no digits describe the part; ``offset`` does.
        """
        return views.submemory(self.buffer, self.dims, self.lower)

    def offset(self, *index: int) -> int:
        """Where an element lies in the buffer, in elements. An index may reach into the pads: -1 is before 0.

        Raises
        ------
        LayoutError
            The index lies outside of the pads too.
        """
        if len(index) != len(self.lower):
            raise LayoutError(f"index {index} has {len(index)} numbers, {self} has {len(self.lower)} axes")
        return self.buffer.offset(*(i + pad for i, pad in zip(index, self.lower, strict=True)))

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer, with pads and blocks (``bytes_count()``)."""
        return self.dtype.nbytes(self.buffer.span)

    @property
    def pitches(self) -> tuple[int, ...]:
        """What ``get_pitches()`` answers: products of padded sizes in the order of the axes, blocks left out.

        In elements, in the order of the dims. For a plain format they are its strides, for a blocked one
        they are no strides of anything (see the head of this module).
        """
        sizes = self.padded_dims
        pitches = [1] * len(sizes)
        step = 1
        for axis in reversed(_order(self.format)):
            pitches[axis] = step
            step *= sizes[axis]
        return tuple(pitches)

    # -- sameness ---------------------------------------------------------------------------------------

    def identical(self, other: CldnnLayout) -> bool:
        """Whether all fields are equal; the same as ``==``. The format counts by name: bfyx is not oiyx."""
        return self == other

    def compatible(self, other: CldnnLayout) -> bool:
        """Whether the plugin lets one buffer be read as the other without a reorder (``layout::compatible``).

        The data types and the sizes of the buffers must be equal, and one of these must hold:

        * no pads, and both formats are default ones (bfyx, bfzyx, oiyx, ...): the shapes may differ;
        * no pads, and both are one-dimensional along the features, which fill their blocks;
        * byxf and b_fs_yx_fsv16 or fsv32 with exactly one block of features: then both are byxf;
        * the same sizes, the same blocked format or two plain ones, the same pitches (those of axes of size 1
          not counted), and the first element at the same place.

        Source: OpenVINO's GPU plugin, ``layout.cpp``.

        Examples
        --------
        >>> x = CldnnLayout((2, 32, 1, 1), "f16", "bfyx")
        >>> x.compatible(CldnnLayout((2, 32, 1, 1), "f16", "b_fs_yx_fsv16"))
        True
        >>> x.compatible(CldnnLayout((2, 32, 1, 1), "f16", "yxfb"))
        False
        """
        if self == other:
            return True
        if self.dtype != other.dtype or self.buffer.span != other.buffer.span:
            return False
        if not (self._is_padded or other._is_padded):
            if self._is_default and other._is_default:
                return True
            if _flat_along_features(self, other) or _one_slice_of_features(self, other):
                return True
        if self._sizes() != other._sizes():
            return False
        if (self._blocks or other._blocks) and self.format_name != other.format_name:
            return False
        return self._used_pitches() == other._used_pitches() and self._origin == other._origin

    @property
    def _is_padded(self) -> bool:
        return any(self.lower) or any(self.upper)

    @property
    def _is_default(self) -> bool:
        return self.format_name == self.axes

    @property
    def _blocks(self) -> list[tuple[int, int]]:
        """The inner digits as (axis, extent); the first axis of fused ones."""
        format = self.format
        return [(format.terms[d.term][0], d.extent) for d in format.digits if d.extent is not None]

    @property
    def _origin(self) -> int:
        return self.offset(*(0 for _ in self.dims)) if 0 not in self.dims else 0

    def _sizes(self) -> dict[str, int]:
        """The sizes by axis, those of 1 left out; o and i of weights count as b and f."""
        return {axis: size for axis, size in zip(self._data_axes, self.dims, strict=True) if size != 1}

    def _used_pitches(self) -> dict[str, int]:
        sizes = self._sizes()
        pitches = zip(self._data_axes, self.pitches, strict=True)
        return {axis: pitch for axis, pitch in pitches if axis in sizes}

    @property
    def _data_axes(self) -> str:
        return self.axes.translate({ord("o"): "b", ord("i"): "f"})

    def __str__(self) -> str:
        pads = f" pads {spell_dims(self.lower)} {spell_dims(self.upper)}" if self._is_padded else ""
        return f"{self.dtype}:{self.format_name}:{spell_dims(self.dims)}{pads}"


def transform_shape(dims: Sequence[int], source: str | Format, target: str | Format) -> tuple[int, ...]:
    """Write sizes in the order of another format (``layout::transform``).

    Here, and nowhere else, sizes stand in the order in which the *name* of the format has its axes: 1, 2, 3,
    4 of ``yxfb`` are y, x, f, b. An axis that the target lacks is multiplied into the next one (v into u into
    w into z into y), or else into the target's last one; an axis that the source lacks is 1.

    Parameters
    ----------
    dims : sequence of int
        Sizes in the order of ``source``; missing last ones are 1.
    source, target : str or Format
        Formats of data (not of weights).

    Returns
    -------
    tuple of int
        Sizes in the order of ``target``.

    Raises
    ------
    LayoutError
        More sizes than axes, or formats of weights.

    Examples
    --------
    >>> transform_shape((1, 2, 3, 4), "yxfb", "bfyx")
    (4, 3, 1, 2)
    >>> transform_shape((1, 2, 3, 4, 5), "bfzyx", "bfyx")
    (1, 2, 12, 5)
    """
    written, wanted = _written_axes(source), _written_axes(target)
    sizes = check_dims(dims)
    if len(sizes) > len(written):
        raise LayoutError(f"{spell_dims(sizes)} are {len(sizes)} sizes; {source} has {' '.join(written)}")
    out = dict.fromkeys(wanted, 1)
    for axis, size in zip(written, sizes, strict=False):
        while axis not in out:
            within = _WITHIN.get(axis)
            axis = within if within is not None else wanted[-1]
        out[axis] *= size
    return tuple(out[axis] for axis in wanted)


_WITHIN = {"v": "u", "u": "w", "w": "z", "z": "y"}


def _written_axes(format: str | Format) -> str:
    read = Format(format, dialect="openvino") if isinstance(format, str) else format
    axes = openvino.axes_of(read) or ""
    if not axes.startswith("b"):
        raise LayoutError(f"{format} is no format of data in clDNN; only shapes of data can be transformed")
    return "".join(axes[axis] for axis in _order(read))


def _order(format: Format) -> list[int]:
    """The axes in memory order, blocks ignored."""
    return [axis for term, level in format.order if level == 0 for axis in format.terms[term]]


def _read(format: str | Format, dtype: DType) -> Format:
    """A format that clDNN names, as its name is read for a data type."""
    if isinstance(format, str):
        return parse(format, "openvino", dtype=dtype.name)
    known = format.resolve(dtype=dtype.name)
    name = known.text if known.dialect == "openvino" else openvino.render(known)
    read = parse(name, "openvino", dtype=dtype.name) if name is not None else None
    if read is None or read != known:
        raise LayoutError(
            f"format {format} has no name in clDNN for {dtype}: it names data (n c .. h w) and weights "
            "([g] o i .. h w) only, and three names mean another layout for 4-bit elements"
        )
    return read


def _filled(what: str, numbers: tuple[int, ...], format: Format, rest: int) -> tuple[int, ...]:
    rank = format.rank or 0
    if len(numbers) > rank:
        raise LayoutError(f"{what} {spell_dims(numbers)} are {len(numbers)}, format {format} has {rank} axes")
    return numbers + (rest,) * (rank - len(numbers))


def _flat_along_features(one: CldnnLayout, two: CldnnLayout) -> bool:
    """Whether only features are left, or batches of whole feature blocks, so that cutting changes nothing."""
    blocks = one._blocks + two._blocks
    if max(len(one._blocks), len(two._blocks)) > 1 or prod(one.dims) != prod(two.dims):
        return False
    features = one.dims[1]
    if two.dims[1] != features or features % max([1, *(block for _, block in blocks)]):
        return False
    if prod(one.dims) == features:
        return True
    by_feature = bool(blocks) and all(axis == 1 for axis, _ in blocks)
    batch_first = _order(one.format)[0] == 0 == _order(two.format)[0]
    return by_feature and batch_first and one.dims[0] == two.dims[0] and prod(one.dims[2:]) == 1


def _one_slice_of_features(one: CldnnLayout, two: CldnnLayout) -> bool:
    """Whether these are byxf and a feature-blocked format with one slice, hence byxf as well."""
    pair = sorted((one, two), key=lambda layout: layout.format_name != "byxf")
    sliced = {"b_fs_yx_fsv16": 16, "b_fs_yx_fsv32": 32}.get(pair[1].format_name)
    return pair[0].format_name == "byxf" and sliced == one.dims[1] and one.dims == two.dims
