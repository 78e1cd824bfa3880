"""Nests of loops: what an operation visits, with a step for each of its operands.

Whatever Relayout does to tensors, it visits index after index, and every index has a place in each operand:
the element that is read here, the one that is written there, the scale that belongs to its channel. A layout
is a sum of digits, so these places are sums, too. A *loop* counts one digit, and says how far each operand
moves with it; a *nest* is loops inside each other, and the places at which they begin.

Copying ``nhwc`` to ``nchw`` with a scale for each channel, 2x3x4x5, f32 to f32, in bytes::

    loop      extent    source    scale    destination
    n         2         240       0        240
    c         3         4         1        80              an entry of the table for each channel
    h         4         60        0        20
    w         5         12        0        4

The same thing as a value, which prints itself:

>>> loops = (2, (240, 0, 240)), (3, (4, 1, 80)), (4, (60, 0, 20)), (5, (12, 0, 4))
>>> nest = Nest((0, 0, 0), tuple(Loop(*loop) for loop in loops), widths=(4, 1, 4))
>>> print(nest)
0,0->0: 2x(240,0,240)  3x(4,1,80)  4x(60,0,20)  5x(12,0,4)

Nothing in it says *format*. So everything that can be said about loops is said once, here, for every kernel:

* Which loops are one? ``h`` continues where ``w`` ends, in all operands: 4 turns of 60 bytes after 5 of 12,
  and of 20 after 5 of 4. :func:`coalesce` makes one loop of 20 turns of them.

  >>> print(coalesce(nest))
  0,0->0: 2x(240,0,240)  3x(4,1,80)  20x(12,0,4)

* In which order? Any order visits the same places. :func:`order` sorts by what is asked for, the steps in the
  destination for instance.
* How wide is an element? A row that is contiguous everywhere can be moved in larger units: :func:`widen`.
* What is done first, and what is left? :func:`split` cuts a nest in two at some turn of a loop.

Each of these is a *pass*, a function from a nest to nests that describe the same places. That is what the
tests check: the set of places before and after.

Conventions:

* The destination is the last operand. A nest with one operand writes and reads nothing: zeros, say. With two
  or more the first one is the source, and what is in between are further operands.
* Starts and steps count *units*: bits where elements may have four of them, bytes in kernels that know none
  such, elements in the refinement of layouts. :attr:`Nest.widths` says how many units an element of each
  operand has, so that nobody has to ask which. :meth:`Nest.scaled` is the only conversion.
* Loops are listed outermost first.
* Padding that directly follows a row of the destination belongs to the row: :attr:`Nest.fill`. All other
  padding are nests of one operand (:mod:`relayout.loops.padding`).

A convolution's sum has no destination: its operands are source and weights. CuTe would call a nest a list of
layouts of one shape; TensorIterator, which PyTorch's elementwise operations are built on, has the same loops
with the output first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from relayout.records import dataclass, replace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Loop", "Nest", "coalesce", "joined", "order", "places", "run_inside", "split", "view", "widen"]


class Loop(NamedTuple):
    """``extent`` turns, each so many units further in each operand."""

    extent: int
    steps: tuple[int, ...]

    @property
    def src(self) -> int:
        """The step in the source; 0 where nothing is read."""
        return self.steps[0] if len(self.steps) > 1 else 0

    @property
    def dst(self) -> int:
        """The step in the destination."""
        return self.steps[-1]

    @property
    def tables(self) -> tuple[int, ...]:
        """The steps in the operands between source and destination."""
        return self.steps[1:-1]

    def continues(self, inner: Loop) -> bool:
        """Whether the next turn goes on where the inner loop has ended, in all operands."""
        n = inner.extent
        return all(outer == n * step for outer, step in zip(self.steps, inner.steps, strict=True))

    def outside(self, count: int) -> Loop:
        """What is left around the innermost ``count`` turns, which must divide the extent."""
        return Loop(self.extent // count, tuple(count * step for step in self.steps))

    def taking(self, extent: int) -> Loop:
        """The same steps, another number of turns."""
        return Loop(extent, self.steps)

    def stepping(self, src: int | None = None, dst: int | None = None) -> Loop:
        """The same turns, with another step in the source or the destination."""
        first = self.steps[:1] if src is None else (src,)
        last = self.steps[-1:] if dst is None else (dst,)
        return self._replace(steps=(*first, *self.tables, *last) if len(self.steps) > 1 else last)


@dataclass(frozen=True)
class Nest:
    """Loops, outermost first, and where they begin.

    Attributes
    ----------
    starts : tuple of int
        The first place in each operand, in units.
    loops : tuple of Loop
        Outermost first.
    widths : tuple of int
        Units of an element in each operand: its bits where units are bits, 1 where they are elements.
    fill : int
        So many elements of padding follow, in the destination, on all turns of the :attr:`row`.
    """

    starts: tuple[int, ...]
    loops: tuple[Loop, ...]
    widths: tuple[int, ...]
    fill: int = 0

    @property
    def src(self) -> int:
        """Where the source begins; 0 where nothing is read."""
        return self.starts[0] if len(self.starts) > 1 else 0

    @property
    def dst(self) -> int:
        """Where the destination begins."""
        return self.starts[-1]

    @property
    def tables(self) -> tuple[int, ...]:
        """Where the operands between source and destination begin."""
        return self.starts[1:-1]

    @property
    def zero(self) -> bool:
        """Whether nothing is read, and zeros are written: the destination is the only operand."""
        return len(self.starts) == 1

    @property
    def size(self) -> int:
        """How many indices are visited, padding left out."""
        return prod(loop.extent for loop in self.loops)

    @property
    def row(self) -> Loop | None:
        """The loop that goes through the destination element by element."""
        return next((loop for loop in self.loops if loop.dst == self.widths[-1]), None)

    @property
    def run(self) -> Loop | None:
        """The loop that goes through all operands element by element."""
        return next((loop for loop in self.loops if loop.steps == self.widths), None)

    @property
    def length(self) -> int:
        """Elements that are neighbours in all operands: turns of the :attr:`run`."""
        return self.run.extent if self.run else 1

    @property
    def around(self) -> tuple[Loop, ...]:
        """All loops but the :attr:`run`."""
        return self.without(self.run)

    def without(self, loop: Loop | None) -> tuple[Loop, ...]:
        """All loops but one."""
        return tuple(other for other in self.loops if other is not loop)

    def scaled(self: _Nest, widths: Sequence[int]) -> _Nest:
        """The same nest in other units, ``widths`` of them in an element of each operand.

        >>> print(Nest((8, 0), (Loop(3, (1, 4)),), (1, 1)).scaled((32, 8)))
        256->0: 3x(32,32)
        """

        def by(numbers: tuple[int, ...]) -> tuple[int, ...]:
            units = zip(numbers, widths, self.widths, strict=True)
            return tuple(number * new // old for number, new, old in units)

        loops = tuple(Loop(loop.extent, by(loop.steps)) for loop in self.loops)
        return replace(self, starts=by(self.starts), loops=loops, widths=tuple(widths))

    def apart(self: _Nest) -> tuple[_Nest, _Nest]:
        """The data alone, and the padding that follows its rows alone."""
        row, width = self.row, self.widths[-1]
        assert row is not None
        loops = tuple(Loop(loop.extent, (loop.dst,)) for loop in self.without(row))
        zeros = replace(
            self,
            starts=(self.dst + row.extent * width,),
            loops=(*loops, Loop(self.fill, (width,))),
            widths=(width,),
            fill=0,
        )
        return replace(self, fill=0), zeros

    def __str__(self) -> str:
        *read, written = map(str, self.starts)
        loops = "  ".join(f"{n}x({','.join(map(str, steps))})" for n, steps in self.loops) or "one"
        zeros = f"  then {self.fill} zeros" if self.fill else ""
        return f"{','.join(read)}->{written}: {loops}{zeros}"


_Nest = TypeVar("_Nest", bound=Nest)


# -- passes -------------------------------------------------------------------------------------------------


def coalesce(nest: _Nest) -> _Nest:
    """Join loops of which the outer continues the inner one in all operands; loops of one turn go.

    A row behind which padding follows stays as it is, since the padding comes once for each of its turns
    around.

    >>> coalesce(Nest((0, 0), (Loop(3, (20, 20)), Loop(1, (7, 7)), Loop(20, (1, 1))), (1, 1))).loops
    (Loop(extent=60, steps=(1, 1)),)
    """
    return replace(nest, loops=joined(nest.loops, nest.row if nest.fill else None))


def joined(loops: Sequence[Loop], kept: Loop | None = None) -> tuple[Loop, ...]:
    """The loops of :func:`coalesce`; one may be kept as it is."""
    left = [loop for loop in loops if loop.extent > 1 or loop is kept]
    k = 0
    while k < len(left):
        inner = left[k]
        after = tuple([inner.extent * step for step in inner.steps])
        outer = next((loop for loop in left if loop.steps == after and loop is not inner), None)
        if outer is None or kept is inner or kept is outer:
            k += 1
            continue
        left[k] = inner.taking(inner.extent * outer.extent)
        left.remove(outer)
        k = 0
    return tuple(left)


def _distance(loop: Loop) -> tuple[int, ...]:
    return tuple(map(abs, loop.steps))


def order(nest: _Nest, key: Callable[[Loop], Any] = _distance) -> _Nest:
    """Sort loops by falling key: by how far they go in the first operand, if nothing else is asked for.

    Loops of one turn are dropped, unless padding follows them.

    >>> nest = Nest((0, 0), (Loop(5, (1, 3)), Loop(3, (5, 1))), (1, 1))
    >>> print(order(nest))
    0->0: 3x(5,1)  5x(1,3)
    >>> print(order(nest, lambda loop: loop.dst))
    0->0: 5x(1,3)  3x(5,1)
    """
    row = nest.row if nest.fill else None
    kept = [loop for loop in nest.loops if loop.extent > 1 or loop is row]
    return replace(nest, loops=tuple(sorted(kept, key=key, reverse=True)))


def run_inside(nest: _Nest, run: Loop | None = None) -> _Nest:
    """One of the loops as the innermost one: that which goes through all operands element by element.

    >>> print(run_inside(Nest((0, 0), (Loop(8, (1, 1)), Loop(4, (0, 8))), (1, 1))))
    0->0: 4x(0,8)  8x(1,1)
    """
    run = run or nest.run
    return nest if run is None else replace(nest, loops=(*nest.without(run), run))


def widen(nest: _Nest, most: int) -> _Nest:
    """Take elements that follow each other in all operands as wider ones, of up to ``most`` units.

    >>> print(widen(Nest((0, 0), (Loop(9, (512, 128)), Loop(4, (8, 8))), (8, 8)), 64))
    0->0: 9x(512,128)
    """
    run = nest.run
    if nest.fill or run is None or len(set(nest.widths)) > 1:
        return nest
    width = nest.widths[-1]
    while width < most and run.extent * nest.widths[-1] % (2 * width) == 0:
        width *= 2
    widths = (width,) * len(nest.widths)
    wide = Loop(run.extent * nest.widths[-1] // width, widths)
    loops = tuple(wide if loop is run else loop for loop in nest.loops)
    return replace(nest, loops=tuple(loop for loop in loops if loop.extent > 1), widths=widths)


def split(nest: _Nest, loop: Loop, at: int) -> tuple[_Nest, _Nest]:
    """The first ``at`` turns of a loop, and the rest; for nests without fill.

    >>> for part in split(Nest((0, 0), (loop := Loop(5, (1, 3)),), (1, 1)), loop, 4):
    ...     print(part)
    0->0: 4x(1,3)
    4->12: 1x(1,3)
    """
    parts = (at, loop.extent - at)
    one, two = (
        tuple(each.taking(extent) if each is loop else each for each in nest.loops) for extent in parts
    )
    starts = tuple(start + at * step for start, step in zip(nest.starts, loop.steps, strict=True))
    return replace(nest, loops=one), replace(nest, starts=starts, loops=two)


# -- what a nest visits -------------------------------------------------------------------------------------


def places(nest: Nest, operand: int = -1, most: int = 1 << 20) -> Iterator[NDArray[np.int64]]:
    """The places of an operand in the order of the loops, at most about ``most`` at a time.

    >>> [part.tolist() for part in places(Nest((3, 9), (Loop(2, (10, 1)), Loop(2, (1, 5))), (1, 1)), 0)]
    [[3, 4, 13, 14]]
    """
    import numpy as np

    loops = [(loop.extent, loop.steps[operand]) for loop in nest.loops]
    inner = len(loops)
    while inner and prod(extent for extent, _ in loops[inner - 1 :]) <= most:
        inner -= 1
    tail = np.array([nest.starts[operand]], np.int64)
    for extent, step in loops[inner:]:
        tail = (tail[:, None] + np.arange(extent, dtype=np.int64) * step).ravel()
    if not inner:
        yield tail
        return
    (cut, by), rows = loops[inner - 1], most // tail.size
    for lead in product(*(range(extent) for extent, _ in loops[: inner - 1])):
        at = sum(number * step for number, (_, step) in zip(lead, loops, strict=False))
        for first in range(0, cut, rows):
            many = np.arange(first, min(first + rows, cut), dtype=np.int64) * by
            yield (many[:, None] + (tail + at)).ravel()


def view(nest: Nest, elements: NDArray[Any], operand: int = -1) -> NDArray[Any]:
    """An operand of a nest in elements as a strided array, which NumPy checks against the bounds.

    >>> import numpy as np
    >>> view(Nest((3, 9), (Loop(2, (10, 1)), Loop(2, (1, 5))), (1, 1)), np.arange(20), 0)
    array([[ 3,  4],
           [13, 14]])
    """
    import numpy as np

    item = elements.itemsize
    made: NDArray[Any] = np.ndarray(
        [loop.extent for loop in nest.loops],
        elements.dtype,
        elements.view(np.uint8),
        nest.starts[operand] * item,
        [loop.steps[operand] * item for loop in nest.loops],
    )
    return made
