"""Which taps of a window are elements: what an axis says, against going through all places one by one."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from relayout.ir.builder import Builder
from relayout.ir.types import I1, I64, Value, constant
from relayout.kernels.reduce.axis import PADDING, Axis, Taps, all_have, within

SIZES, KERNELS, STEPS, GAPS, PADS = range(1, 10), range(1, 6), range(1, 4), range(1, 4), range(6)


class Evaluated(Builder):
    """A builder that computes at once: the name of a value is its number, though nobody is told."""

    @staticmethod
    def number_of(x: Any) -> int:
        return int(str(x)[1:]) if isinstance(x, Value) and x.number is None else int(getattr(x, "number", x))

    def _of(self, function: Any) -> Any:
        return lambda one, two: Value(f"%{function(self.number_of(one), self.number_of(two))}", I64)

    def __init__(self) -> None:
        super().__init__()
        of: Any = self
        of.add, of.sub, of.mul = map(self._of, (operator.add, operator.sub, operator.mul))
        of.udiv, of.smin, of.smax = map(self._of, (operator.floordiv, min, max))
        tells = {"sle": operator.le, "sgt": operator.gt}
        of.icmp = lambda how, *given: Value(f"%{int(tells[how](*map(self.number_of, given)))}", I1)
        of.and_ = lambda one, two: Value(f"%{self.number_of(one) & self.number_of(two)}", I1)


def unknown(number: int) -> Value:
    """A number that only the kernel knows."""
    return Value(f"%{number}", I64)


def axes(size: int) -> Iterator[Axis]:
    """All axes of so many elements; windows may be larger, and padding may be all that they hold."""
    for kernel, stride, dilation, front, behind in product(KERNELS, STEPS, GAPS, PADS, PADS):
        room = size + front + behind - (kernel - 1) * dilation - 1
        if room >= 0:
            yield Axis(size, room // stride + 1, kernel, stride, dilation, front)


@pytest.mark.parametrize("size", SIZES)
def test_taps_are_those_whose_places_are_elements(size: int) -> None:
    for axis in axes(size):
        places = [
            [output * axis.stride + tap * axis.dilation - axis.front for tap in range(axis.kernel)]
            for output in range(axis.out)
        ]
        elements = [[0 <= place < size for place in some] for some in places]
        for output in range(axis.out):
            taps = [tap for tap in range(axis.kernel) if elements[output][tap]]
            assert list(axis.taps(output)) == taps
            assert [axis.place(output, tap) for tap in range(axis.kernel)] == places[output]
            assert axis.places(output) == tuple(p if 0 <= p < size else PADDING for p in places[output])
        assert axis.counts == tuple(map(sum, elements))
        inside = [output for output in range(axis.out) if all(elements[output])]
        assert list(range(*axis.inside)) == inside
        assert sorted([*axis.border, *inside]) == list(range(axis.out))
        assert axis.is_inside == (len(inside) == axis.out)
        assert axis.is_filled == all(map(any, elements))
        assert axis.is_whole == (places == [list(range(size))] and axis.dilation == 1)
        assert axis.is_single == (size == 1 and places == [[0]])
        assert axis.offsets == tuple(places[0])
        assert axis.reach == places[-1][-1] + 1 + axis.front
        assert axis.span == places[0][-1] - places[0][0] + 1
        if axis.dilation == 1 and axis.out > 1:
            both = {*places[0]} & {*places[1]}
            assert len(both) == max(0, axis.shared)


@pytest.mark.turns(2)
@pytest.mark.parametrize("size", SIZES)
def test_kernels_find_the_same(size: int) -> None:
    b = Evaluated()
    number = b.number_of
    for axis in axes(size):
        for output in range(axis.out):
            taps = axis.taps(output)
            known, found = axis.windows(b, constant(I64, output)), axis.windows(b, unknown(output))
            assert list(known.known or ()) == list(taps)
            assert found.known is None or found.known == taps == range(axis.kernel)
            assert number(axis.begin(b, unknown(output))) == axis.place(output)
            for how in (known, found):
                assert max(0, number(how.number(b))) == len(taps)
                for tap in range(axis.kernel):
                    has = how.has(b, tap)
                    assert isinstance(has, bool) == (how.known is not None)
                    assert bool(has if isinstance(has, bool) else number(has)) == (tap in taps)
            if taps:
                nearest = [number(one) for one in found.nearest(b, axis.kernel)]
                wanted = [min(taps, key=lambda one: abs(one - tap)) for tap in range(axis.kernel)]
                assert nearest == wanted
                assert known.nearest(b, axis.kernel) == list(taps)
                if axis.dilation == 1:
                    mine = [axis.place(output, tap) for tap in taps]
                    for tap in range(axis.kernel):
                        place = number(axis.nearest(b, unknown(axis.place(output, tap))))
                        assert place == mine[taps.index(wanted[tap])]


def test_several_axes_have_an_element_where_each_of_them_has() -> None:
    b = Evaluated()
    bounds = [(first, end) for first in range(3) for end in range(first, 4)]
    for one, two in product(bounds, bounds):
        for tap, other in product(range(3), range(3)):
            wanted = tap in range(*one) and other in range(*two)
            for hidden in product((False, True), repeat=2):
                several = [
                    (Taps(*map(unknown, bound)) if hides else Taps(*bound), number)
                    for bound, hides, number in zip((one, two), hidden, (tap, other), strict=True)
                ]
                found = all_have(b, several)
                assert bool(found if isinstance(found, bool) else b.number_of(found)) == wanted
                if not any(hidden):
                    assert isinstance(found, bool)


def test_vectors_read_elements_alone() -> None:
    for size, count, place in product(SIZES, range(1, 10), range(-10, 20)):
        inside = [k for k in range(count) if 0 <= place + k < size]
        assert list(within(size, place, count)) == inside
        if count > size:
            continue
        start, picks = Axis(size, size).neighbours(place, count)
        assert 0 <= start <= size - count
        assert [start + pick if pick < count else None for pick in picks] == [
            place + k if k in inside else None for k in range(count)
        ]
