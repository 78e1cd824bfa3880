"""What happens to a value on its way: scales, zero points, accumulation.

The formula is oneDNN's and a shift, with each step rounded for itself (:mod:`relayout.convert` defines the
precision)::

    dst = saturate(round_half_even((src_scale * (src - src_zero_point) - src_shift + beta * dst) / dst_scale
                                   + dst_zero_point))

A scale, zero point or shift is one number for the tensor, or ``(values, axis)``: one number for each index of
a *logical* axis, whatever the layouts are. Values are whatever NumPy reads, or a ``torch.Tensor``, learned
parameters included. Zero points are integers, as in oneDNN and ONNX; the shift is any real number, such as
the mean of pictures, and where there is one the arithmetic is in f64.

Attributes are values: made once from what a caller writes, copied, frozen, and hashed by content, so that a
plan can be found by them. Two things follow from the content being numbers. Equality is that of bytes, since
0.0 and -0.0 are equal numbers but other factors. And an attribute may do *nothing*: a scale of 1 is no step
at all. Which ones do nothing depends on the precision and so on the data types; the engines ask
:meth:`Attributes.taking_part`. It is asked once for a whole tensor: attributes that it has returned are
*settled*, and a part of them (:meth:`Attributes.part`) takes every step that the whole takes. Its
:attr:`~Attributes.shape` is what a compiled kernel depends on:

>>> from relayout import dtype
>>> made = Attributes.make((2, 3), src_scale=([1, 2, 1], 1), dst_scale=1, dst_zero_point=7, beta=1)
>>> made.taking_part(dtype("f32"), dtype("s8")).shape
(('src_scale', 1), ('dst_zero_point', None), ('beta', None))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from types import NoneType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import DType
from relayout.errors import LayoutError, counted, whole
from relayout.exchange import pytorch
from relayout.forking import lock
from relayout.layout.layout import spell_dims

__all__ = ["NEUTRAL", "Attributes", "PerAxis"]

NEUTRAL: Final = {"src_scale": 1, "dst_scale": 1, "src_zero_point": 0, "dst_zero_point": 0, "src_shift": 0}
"""The attributes that may lie along an axis, and the number with which each does nothing."""


# Both classes are written by hand: dataclasses takes as long to import and to make them as this file to load.


_PLAIN = frozenset((int, float, NoneType))


class _Frozen:
    """What no field can be set of once it is made."""

    def __setattr__(self, name: str, value: Any = None) -> None:
        raise AttributeError(f"a {type(self).__name__} is frozen; {name} can't be set or deleted")

    __delattr__ = __setattr__


class PerAxis(_Frozen):
    """Numbers along a logical axis (None: one number for the whole tensor), copied and read-only."""

    values: NDArray[Any]
    axis: int | None

    def __init__(self, values: NDArray[Any], axis: int | None) -> None:
        own = np.array(values)
        own.setflags(write=False)
        self.__dict__.update(values=own, axis=axis)

    def __repr__(self) -> str:
        return f"PerAxis(values={self.values!r}, axis={self.axis!r})"

    def _content(self) -> tuple[Any, ...]:
        return self.axis, self.values.dtype, self.values.shape, self.values.tobytes()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, PerAxis) and self._content() == other._content())

    def __hash__(self) -> int:
        return hash(self._content())

    def along(self, rank: int) -> NDArray[Any]:
        """The numbers shaped so that they broadcast against a logical array of this rank."""
        if self.axis is None:
            return self.values.reshape(())
        return self.values.reshape([-1 if a == self.axis else 1 for a in range(rank)])


class Attributes(_Frozen):
    """The attributes of a reorder; absent ones are None, and ``beta`` 0.

    Examples
    --------
    >>> made = Attributes.make((2, 3), src_scale=([0.5, 1, 2], 1), dst_zero_point=3)
    >>> made.src_scale.axis, made.dst_zero_point.values, made.is_plain
    (1, array(3), False)
    """

    src_scale: PerAxis | None
    dst_scale: PerAxis | None
    src_zero_point: PerAxis | None
    dst_zero_point: PerAxis | None
    src_shift: PerAxis | None
    beta: float
    settled: bool
    """Whether neutral ones have been left out already; all that are there take part then."""

    def __init__(
        self,
        src_scale: PerAxis | None = None,
        dst_scale: PerAxis | None = None,
        src_zero_point: PerAxis | None = None,
        dst_zero_point: PerAxis | None = None,
        src_shift: PerAxis | None = None,
        beta: float = 0.0,
        settled: bool = False,
    ) -> None:
        self.__dict__.update(
            src_scale=src_scale,
            dst_scale=dst_scale,
            src_zero_point=src_zero_point,
            dst_zero_point=dst_zero_point,
            src_shift=src_shift,
            beta=beta,
            settled=settled,
        )

    def changed(self, **fields: Any) -> Attributes:
        """The same with other values of some fields."""
        return Attributes(**self._fields() | fields)

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*NEUTRAL, "beta", "settled")}

    @classmethod
    def make(
        cls,
        dims: Sequence[int],
        *,
        src_scale: Any = None,
        dst_scale: Any = None,
        src_zero_point: Any = None,
        dst_zero_point: Any = None,
        src_shift: Any = None,
        beta: float = 0.0,
    ) -> Attributes:
        """Check and keep attributes as a caller writes them: numbers, or ``(values, axis)``.

        Raises
        ------
        LayoutError
            The axis does not exist, the count of values is not its size, a zero point is not whole, or a
            destination scale is 0. (What depends on data types is found by :meth:`check_range`.)
        """
        numbers = src_scale, dst_scale, src_zero_point, dst_zero_point, src_shift, beta
        if set(map(type, numbers)) <= _PLAIN and src_scale != 0 and dst_scale != 0:
            return _of_numbers(*numbers)
        return cls._make(tuple(dims), *numbers)

    @classmethod
    def _make(
        cls,
        dims: tuple[int, ...],
        src_scale: Any,
        dst_scale: Any,
        src_zero_point: Any,
        dst_zero_point: Any,
        src_shift: Any,
        beta: Any,
    ) -> Attributes:
        scales = {"src_scale": src_scale, "dst_scale": dst_scale}
        points = {"src_zero_point": src_zero_point, "dst_zero_point": dst_zero_point}
        kept: dict[str, Any] = {
            name: None if given is None else _per_axis(name, given, dims)
            for name, given in (*scales.items(), *points.items(), ("src_shift", src_shift))
        }
        for name in points:
            made = kept[name]
            if made is None:
                continue
            values = made.values.astype(np.float64)
            if not (values == np.rint(values)).all():
                raise LayoutError(
                    f"{name} {points[name]!r} is not whole; zero points are integers, and src_shift is any "
                    "number to be subtracted behind src_scale"
                )
            if not (np.abs(values) < 2**31).all():
                raise LayoutError(f"{name} {points[name]!r} does not fit 32 bits, which zero points have")
            kept[name] = PerAxis(made.values.astype(np.int64), made.axis)
        divisor = kept["dst_scale"]
        if divisor is not None and not divisor.values.all():
            raise LayoutError("dst_scale has a 0 in it; the destination is divided by it")
        if isinstance(beta, bool) or not isinstance(beta, (int, float, np.number)) or not _is_finite(beta):
            raise LayoutError(f"beta must be a finite number, got {beta!r:.40}")
        return cls(**kept, beta=float(beta))

    @property
    def is_plain(self) -> bool:
        """Whether values only change their data type."""
        return self.beta == 0 and not any(self._present())

    @property
    def reads_destination(self) -> bool:
        """Whether what lies in the destination takes part."""
        return self.beta != 0

    @property
    def is_shifted(self) -> bool:
        """Whether a shift takes part, so that the arithmetic is in f64."""
        return self.src_shift is not None and (self.settled or bool(self.src_shift.values.any()))

    @cached_property
    def nbytes(self) -> int:
        """Bytes that the values take."""
        return sum(getattr(self, name).values.nbytes for name in self._present())

    def taking_part(self, src: DType, dst: DType) -> Attributes:
        """Leave out what does nothing between two data types; :func:`relayout.convert.is_neutral` says so.

        Examples
        --------
        >>> from relayout import dtype
        >>> nearly_one = Attributes.make((), src_scale=1 + 1e-12)
        >>> nearly_one.taking_part(dtype("f32"), dtype("f32")).is_plain
        True
        >>> nearly_one.taking_part(dtype("f32"), dtype("f64")).is_plain
        False
        """
        with lock():
            from relayout.convert import is_neutral

        if self.settled:
            return self
        shifted = self.is_shifted
        idle: dict[str, Any] = {}
        for name in self._present():
            values = getattr(self, name).values
            if is_neutral(
                values, NEUTRAL[name], src, dst, accumulate=self.reads_destination, shifted=shifted
            ):
                idle[name] = None
        return self.changed(**idle, settled=True)

    def part(self, ranges: Sequence[tuple[int, int]]) -> Attributes:
        """The attributes of a part of the tensor: the ``(start, stop)`` of every axis.

        Examples
        --------
        >>> from relayout import dtype
        >>> whole = Attributes.make((2, 3), src_zero_point=([0, 0, 5], 1))
        >>> left = whole.taking_part(dtype("s8"), dtype("s8")).part([(0, 2), (0, 2)])
        >>> left.src_zero_point.values, left.taking_part(dtype("s8"), dtype("s8")).is_plain
        (array([0, 0]), False)
        """
        cut: dict[str, Any] = {}
        for name in self._present():
            made = getattr(self, name)
            if made.axis is not None:
                cut[name] = PerAxis(made.values[slice(*ranges[made.axis])], made.axis)
        return self.changed(**cut)

    def check_range(self, src: DType, dst: DType) -> None:
        """Refuse scales that are lost where they are rounded to the type that scales have.

        Raises
        ------
        LayoutError
            A scale or ``beta`` becomes 0 or infinity, and was not.

        Examples
        --------
        >>> from relayout import dtype
        >>> Attributes.make((), dst_scale=1e-46).check_range(dtype("f32"), dtype("u8"))
        Traceback (most recent call last):
        relayout.errors.LayoutError: dst_scale 1e-46 becomes 0 in f32, the type of scales from f32 to u8
        """
        with lock():
            from relayout.convert import arithmetic_types, convert

        _, scales = arithmetic_types(src, dst, accumulate=self.reads_destination, shifted=self.is_shifted)
        given = [(name, getattr(self, name)) for name in ("src_scale", "dst_scale")]
        found = [(name, made.values.astype(np.float64)) for name, made in given if made is not None]
        for name, values in (*found, ("beta", np.float64(self.beta))):
            kept = convert(values, scales)
            lost = np.isinf(kept) | ((kept == 0) & (values != 0))
            if lost.any():
                number, becomes = (np.atleast_1d(v)[np.argmax(lost)] for v in (values, kept))
                raise LayoutError(
                    f"{name} {number:g} becomes {becomes:g} in {scales}, the type of scales from {src} to "
                    f"{dst}"
                )

    @property
    def shape(self) -> tuple[tuple[str, int | None], ...]:
        """Which attributes are there, and along which logical axis each lies (None: one number).

        In the order of the fields, ``beta`` last; everything about attributes but their values.
        """
        there = [(name, getattr(self, name).axis) for name in self._present()]
        return (*there, ("beta", None)) if self.beta else tuple(there)

    def _present(self) -> list[str]:
        return [name for name in NEUTRAL if getattr(self, name) is not None]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attributes):
            return NotImplemented
        return self is other or self._fields() == other._fields()

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = hash(tuple(self._fields().values()))
            self.__dict__["_hash"] = known
        return known

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash: that of bytes is another one in each process."""
        return self._fields()

    def __repr__(self) -> str:
        return f"Attributes({', '.join(f'{name}={value!r}' for name, value in self._fields().items())})"

    def __str__(self) -> str:
        words = []
        for name in self._present():
            made = getattr(self, name)
            where = "" if made.axis is None else f" along axis {made.axis}"
            values = made.values if made.values.size <= 4 else f"{made.values.size} values"
            words.append(f"{name} {values}{where}")
        if self.beta:
            words.append(f"beta {self.beta:g}")
        return ", ".join(words) or "none"


@lru_cache(maxsize=1024, typed=True)
def _of_numbers(*numbers: float | None) -> Attributes:
    """Attributes of Python's numbers, which don't depend on the dims.

    Scales of 0 must not come here: 0.0 and -0.0 would be one key.
    """
    return Attributes._make((), *numbers)


def _is_finite(number: Any) -> bool:
    try:
        return bool(np.isfinite(float(number)))
    except OverflowError:  # Python's integers know no end
        return False


def numbers(name: str, given: Any) -> NDArray[Any]:
    """Finite numbers as an array, of any shape; a ``torch.Tensor`` may be a learned parameter.

    Raises
    ------
    LayoutError
        They are no numbers, of more than 64 bits, or not finite; or lists of unequal lengths.
    """
    try:
        tensor = pytorch.is_tensor(given)
        array = pytorch.memory(given, lasting=False) if tensor else np.asarray(given)
    except ValueError as error:
        if isinstance(error, LayoutError):
            raise LayoutError(f"{name} can't be read as numbers: {error}") from None
        # lists of unequal lengths
        raise LayoutError(f"{name} must be a number or numbers in one list, got {given!r:.40}") from None
    except (TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise LayoutError(f"{name} can't be read as numbers: {reason}") from None
    if array.dtype.kind == "V":
        array = array.astype(np.float32)  # bf16 and the like
    if array.dtype.kind not in "iuf":
        raise LayoutError(f"{name} must be a number or numbers of at most 64 bits, got {given!r:.40}")
    if not np.isfinite(array).all():
        raise LayoutError(f"{name} must be finite, got {given!r:.40}")
    return array


def _per_axis(name: str, given: Any, dims: tuple[int, ...]) -> PerAxis:
    axis: int | None = None
    values = given
    if isinstance(given, tuple):
        if len(given) != 2:
            raise LayoutError(f"{name} is a number or (values, axis), got a tuple of {len(given)}")
        values, where = given
        if isinstance(where, bool):
            raise LayoutError(f"{name} lies along axis {where!r}; an axis is a whole number")
        where = whole(where, f"{name}: an axis")
        if not -len(dims) <= where < len(dims):
            raise LayoutError(
                f"{name} lies along axis {where}, but {spell_dims(dims)} has {counted(len(dims), 'axis')}"
            )
        axis = where % len(dims)
    array = numbers(name, values)
    if axis is None:
        if array.size != 1:
            raise LayoutError(f"{name} has {array.size} values; say along which logical axis: (values, axis)")
        return PerAxis(array.reshape(()), None)
    if array.ndim != 1 or len(array) not in (1, dims[axis]):
        raise LayoutError(
            f"{name} has shape {array.shape}; axis {axis} of dims {spell_dims(dims)} needs "
            f"{counted(dims[axis], 'value')}"
        )
    return PerAxis(array.reshape(()), None) if len(array) == 1 and dims[axis] != 1 else PerAxis(array, axis)
