"""Nests of loops: the refinement of any layouts, their padding, and passes, against the layouts."""

from __future__ import annotations

import importlib
from collections import Counter
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout.layout.digits import digit_sum
from relayout.layout.layout import Digit
from relayout.loops.nest import Loop, Nest, coalesce, order, places, run_inside, split, view, widen
from relayout.loops.padding import padded, padding
from relayout.loops.refine import nests, offsets_along, pieces, refine, table_along
from strategies import (
    element_places,
    examples,
    formats,
    ladders,
    layouts,
    padding_places,
    plain_layouts,
    shapes,
    term_place,
)
from test_zeros import padded as padded_layouts

elementwise = importlib.import_module("relayout.kernels.elementwise.runs")
softmax = importlib.import_module("relayout.kernels.reduce.softmax")
reduced = importlib.import_module("relayout.kernels.reduce.rows")


@st.composite
def operands(draw, most=4):
    """Layouts of the same dims: any formats, strides, views that broadcast, tables along an axis."""
    dims = draw(shapes(zeros=True))
    rank = len(dims)

    def broadcast():
        kept = tuple(size if draw(st.booleans()) else 1 for size in dims)
        return rl.views.broadcast_to(rl.Layout(kept, draw(formats(rank, fused=False))), dims)

    kinds = {
        "format": lambda: rl.Layout(dims, draw(formats(rank))),
        "strides": lambda: rl.Layout(dims, strides=[draw(st.integers(-20, 20)) for _ in dims], offset=500),
        "broadcast": broadcast,
        "table": lambda: table_along(dims, draw(st.integers(0, rank - 1))),
    }
    found = [kinds[draw(st.sampled_from(sorted(kinds)))]() for _ in range(draw(st.integers(1, most)))]
    assume(all(prod(layout.padded) < 20_000 for layout in found))
    return found


def visited(nest, operand=-1):
    """All places of an operand, in the order of the loops."""
    return np.concatenate([np.zeros(0, np.int64), *places(nest, operand, 7)])


def moves(nest):
    """How often each combination of places is visited."""
    each = [visited(nest, k).tolist() for k in range(len(nest.starts))]
    return Counter(zip(*each, strict=True))


@given(several=operands())
@examples(200)
def test_pieces_visit_every_number_once_in_all_operands(several):
    dims = several[0].dims
    for group in refine(*several):
        if group.pieces is None:
            continue
        seen = [number for piece in group.pieces for number in visited(piece, 0).tolist()]
        assert sorted(seen) == list(range(group.size))
        if 0 in dims:
            continue
        for piece in group.pieces:
            numbers = visited(piece, 0)
            for k, layout in enumerate(several):
                index = np.zeros((len(numbers), len(dims)), np.int64)
                index[:, list(group.axes)] = np.stack(
                    np.unravel_index(numbers, [dims[a] for a in group.axes]), axis=-1
                )
                expected = layout.offsets(index) - layout.offset0
                np.testing.assert_array_equal(visited(piece, k + 1), expected)
                np.testing.assert_array_equal(offsets_along(layout, group.axes, numbers), expected)


@given(several=operands(3))
@examples(150)
def test_nests_visit_every_index_once(several):
    found = nests(refine(*several), [layout.offset0 for layout in several], 1 << 12)
    assume(found is not None)
    expected = [element_places(layout).ravel().tolist() for layout in several]
    total = sum((moves(nest) for nest in found), Counter())
    assert total == Counter(zip(*expected, strict=True))


@pytest.mark.parametrize("sizes", [(48, 32), (7, 5), (6, 4, 9)])
@pytest.mark.parametrize("channels", [1, 5, 96, 100])
def test_blocks_that_do_not_divide_each_other(sizes, channels):
    several = [rl.Layout((2, channels), f"nC{size}c") for size in sizes]
    found = nests(refine(*several), [0] * len(several), 1 << 12)
    expected = [element_places(layout).ravel().tolist() for layout in several]
    assert sum((moves(nest) for nest in found), Counter()) == Counter(zip(*expected, strict=True))


def test_dims_must_agree():
    with pytest.raises(rl.LayoutError, match="same dims, got 2x3 and 3x2"):
        refine(rl.Layout((2, 3), "ab"), rl.Layout((3, 2), "ab"))


@given(
    several=st.lists(ladders(), min_size=1, max_size=3), start=st.integers(0, 40), count=st.integers(0, 60)
)
@examples(200)
def test_pieces_of_a_part_of_the_numbers(several, start, count):
    digits = [[Digit(*digit) for digit in ladder] for ladder in several]
    found = pieces(digits, start, start + count)
    if found is None:  # borders that don't divide each other, and numbers that don't begin at 0
        assert start
        assert len(several) > 1
        return
    numbers = [number for piece in found for number in visited(piece, 0).tolist()]
    assert sorted(numbers) == list(range(start, start + count))
    for k, ladder in enumerate(digits):
        offsets = [at for piece in found for at in visited(piece, k + 1).tolist()]
        assert offsets == [digit_sum(ladder, number) for number in numbers]


@given(ladder=ladders(), numbers=st.lists(st.integers(0, 500)))
@examples(100)
def test_digits_of_ints_and_of_arrays(ladder, numbers):
    digits = [Digit(*digit) for digit in ladder]
    room = ladder[0][0] * ladder[0][1]
    inside = [number % room for number in numbers]
    assert [digit_sum(digits, number) for number in inside] == [term_place(ladder, n) for n in inside]
    several = digit_sum(digits, np.array(numbers, np.int64))
    assert several.tolist() == [digit_sum(digits, number) for number in numbers]


# -- padding ------------------------------------------------------------------------------------------------


@given(layout=padded_layouts(1024), order_of=st.integers(0, 9))
@examples(100)
def test_data_and_padding_are_the_room(layout, order_of):
    rank = len(layout.dims)
    other = rl.Layout(layout.dims, strides=[(order_of * (k + 1)) % 7 for k in range(rank)])
    found = padded([other, layout], 1 << 12)
    assume(found is not None)
    data, zeros = [], [at for nest in found.zeros for at in visited(nest).tolist()]
    for nest in found.data:
        parts = nest.apart() if nest.fill else (nest,)
        data += visited(parts[0]).tolist()
        zeros += visited(parts[1]).tolist() if nest.fill else []
    assert sorted(data) == sorted(element_places(layout).ravel().tolist())
    assert set(zeros) == padding_places(layout)
    assert {at for nest in padding(layout) for at in visited(nest).tolist()} == padding_places(layout)


@given(layout=st.one_of(layouts(), plain_layouts()))
@examples(100)
def test_padding_of_any_layout(layout):
    """Of views, too: what ends within a block has the padding that its room says."""
    assume(layout.has_padding)
    room = element_places(layout.room()).ravel().tolist() if 0 not in layout.padded else []
    assert {at for nest in padding(layout) for at in visited(nest).tolist()} <= set(room)


# -- passes -------------------------------------------------------------------------------------------------


@st.composite
def any_nests(draw):
    """Up to three operands, loops of any steps, continuing each other often."""
    count = draw(st.integers(1, 3))
    loops = []
    for _ in range(draw(st.integers(0, 4))):
        extent = draw(st.integers(1, 4))
        steps = tuple(draw(st.sampled_from((0, 1, 1, 2, 3, 4, 6, 8, -2))) for _ in range(count))
        if loops and draw(st.booleans()):
            steps = tuple(loops[-1].extent * step for step in loops[-1].steps)
        loops.append(Loop(extent, steps))
    return Nest(
        tuple(draw(st.integers(0, 9)) for _ in range(count)),
        tuple(draw(st.permutations(loops))),
        (1,) * count,
    )


@given(nest=any_nests())
@examples(200)
def test_passes_keep_the_places(nest):
    before = moves(nest)
    for step in (coalesce, order, run_inside, lambda n: order(n, lambda loop: loop.dst)):
        assert moves(step(nest)) == before, step
    assert not any(
        one.continues(two) for one, two in product(coalesce(nest).loops, repeat=2) if one is not two
    )
    for loop in nest.loops:
        for at in range(loop.extent + 1):
            one, two = split(nest, loop, at)
            assert moves(one) + moves(two) == before
    scaled = nest.scaled([k + 2 for k in range(len(nest.starts))])
    assert moves(scaled) == Counter(
        {tuple(at * (k + 2) for k, at in enumerate(place)): n for place, n in before.items()}
    )


@given(nest=any_nests(), most=st.sampled_from((1, 2, 4, 8)))
@examples(100)
def test_wider_elements_cover_the_same(nest, most):
    wide = widen(nest, most)
    assert set(wide.widths) == {wide.widths[0]}
    assert wide.widths[0] <= most
    covered = Counter(
        tuple(at + k for at in place)
        for place, n in moves(wide).items()
        for k in range(wide.widths[0])
        for _ in range(n)
    )
    assert covered == moves(nest)


def test_rows_with_padding_behind_them_are_not_joined():
    nest = Nest((0, 0), (Loop(4, (3, 3)), Loop(3, (1, 1))), (1, 1), fill=1)
    assert coalesce(nest) == nest
    assert str(nest) == "0->0: 4x(3,3)  3x(1,1)  then 1 zeros"
    data, zeros = nest.apart()
    assert (str(data), str(zeros)) == ("0->0: 4x(3,3)  3x(1,1)", "->3: 4x(3)  1x(1)")


def test_views_stay_inside_their_array():
    nest = Nest((1, 0), (Loop(3, (4, 1)),), (1, 1))
    np.testing.assert_array_equal(view(nest, np.arange(10), 0), [1, 5, 9])
    with pytest.raises((ValueError, TypeError)):
        view(nest, np.arange(9), 0)


# -- iteration spaces ---------------------------------------------------------------------------------------


def elements_of(run):
    """For every element of a run its place in all operands and whether it is data, in the order of rows."""
    around = [visited(run.around, k).tolist() for k in range(len(run.around.starts))]
    size = run.around.widths[-1]
    for *sources, target in zip(*around, strict=True):
        for element in range(run.elements):
            column = element % run.total
            read = tuple(
                at + step * (column if again else element)
                for at, step, again in zip(sources, run.steps, run.again, strict=True)
            )
            yield (*read, target + element * size), column < run.valid and not run.around.zero


@given(several=operands(3), layout=st.data(), keeps_zero=st.booleans(), lanes=st.sampled_from((2, 8)))
@examples(150)
def test_runs_visit_every_index_of_all_operands_once(several, layout, keeps_zero, lanes):
    """Those of operands that suit the destination; and all of its padding."""
    dims = several[0].dims
    target = rl.Layout(dims, layout.draw(formats(len(dims))))
    assume(prod(target.padded) < 5_000)
    dst = rl.MemoryDesc(dims, "f32", target)
    given = [rl.MemoryDesc(dims, "u8", one) for one in (*several, target)]
    bad = elementwise.unsuited(dst, given, keeps_zero)
    assert len(several) not in bad
    given = [desc for k, desc in enumerate(given) if k not in bad]
    found = elementwise.runs(dst, given, keeps_zero, elementwise.Vectors(lanes, 2, 4))
    assume(found is not None)
    computed, zeros = Counter(), set()
    for run in found:
        assert run.around.widths == ((4,) if run.around.zero else (*(1 for _ in given), 4))
        for place, valid in elements_of(run):
            if valid:
                computed[place] += 1
            else:
                zeros.add(place[-1] // 4)
    sides = [*(desc.layout for desc in given), target]
    alike = keeps_zero and all((s.terms, s.padded) == (target.terms, target.padded) for s in sides)
    places_in = [element_places(s.room() if alike else s).ravel().tolist() for s in sides]
    assert computed == Counter(zip(*places_in[:-1], [4 * at for at in places_in[-1]], strict=True))
    assert zeros == (set() if alike else padding_places(target))


@given(several=operands(1), layout=st.data(), axis=st.integers(0, 4))
@examples(100)
def test_reduced_and_other_loops_are_all_indices(several, layout, axis):
    """The axis of a softmax and what is around it, in bytes, runs innermost."""
    (one,) = several
    dims, axis = one.dims, axis % len(one.dims)
    assume(0 not in dims)
    two = rl.Layout(dims, layout.draw(formats(len(dims))))
    assume(prod(two.padded) < 5_000)
    made = softmax.planned(rl.MemoryDesc(dims, "f32", one), rl.MemoryDesc(dims, "bf16", two), axis, False)
    if made is None:
        return
    total = Counter()
    for block, piece in product(made.rows.blocks, made.rows.pieces):
        assert block.run is None or block.loops[-1] is block.run
        for near, far in product(moves(block), moves(piece)):
            total[near[0] + far[0], near[1] + far[1]] += moves(block)[near] * moves(piece)[far]
    expected = zip(4 * element_places(one).ravel(), 2 * element_places(two).ravel(), strict=True)
    assert total == Counter((int(a), int(b)) for a, b in expected)


@given(several=operands(2), axis=st.integers(0, 4), turns=st.integers(2, 4), elements=st.integers(2, 9))
@examples(100)
def test_rows_in_levels_are_the_same_rows(several, axis, turns, elements):
    assume(0 not in several[0].dims)
    made = reduced.rows(several, [4] * len(several), {axis % several[0].rank})
    if made is None:
        return
    cut = made.in_levels(turns, elements)
    assert sum((moves(piece) for piece in cut.pieces), Counter()) == sum(map(moves, made.pieces), Counter())
    most = max(2 * turns, 2 * elements)
    assert all(loop.extent <= most for piece in cut.pieces for loop in piece.loops)
