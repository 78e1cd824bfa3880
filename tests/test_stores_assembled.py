"""Chunks that are put together before they are converted: when, and that the bytes are the same."""

from __future__ import annotations

from itertools import product
from math import gcd
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relayout as rl
from relayout import stores
from relayout.files.arrays import physical_shape
from relayout.stores import pieces as piecewise
from relayout.stores import planning, search
from relayout.stores.assembled import Hull, memory
from relayout.stores.grid import Cells
from relayout.stores.pieces import pieces
from strategies import tried
from test_stores import RATES, numbers, problems, read_physical, write_folder


def always() -> Any:
    """Put chunks together whatever their shapes."""
    return patch.multiple(search, FEW=0, KERNEL=1e6, _edges=lambda cells: 0)


@settings(max_examples=tried(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems(), room=st.integers(0, 3))
def test_put_together_or_not_the_bytes_are_the_same(
    problem: tuple[Any, ...], room: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dims, (one, chunks), (two, others), *_ = problem
    folder = tmp_path_factory.mktemp("stores")
    x = numbers(*dims)
    write_folder(folder / "x.chunks", x, one, chunks)
    lazy = rl.open(folder / "x.chunks")
    wanted = rl.reorder(rl.tensor(x, one), two, axes="position")
    target = Cells(wanted.desc, others)
    most = 16 * (lazy.cells.nbytes + target.nbytes) + room * x.nbytes
    with always():
        plan = stores.plan(
            *(lazy, folder / "y.chunks", two), chunks=others, rates=RATES, threads=1, passes=1,
            memory=planning.BASE + most, axes="position",
        )  # fmt: skip
    (made,) = plan.passes
    counts = [
        search._touched(size, s, t)[1]
        for size, s, t in zip(dims, lazy.cells.grid.chunks, target.grid.chunks, strict=True)
    ]
    assert made.assembled or memory(lazy.cells, target, counts) > most
    assert plan.peak <= plan.memory
    done: list[Any] = []
    plan.run(progress=done.append)
    assert (read_physical(folder / "y.chunks").reshape(-1).view(np.uint8) == wanted.buffer).all()
    if made.assembled:
        assert sum(task.requests for task in done) == made.requests_read + made.requests_written
        assert sum(task.bytes_read for task in done) == made.bytes_read
        assert sum(task.elements for task in done) == x.size


@settings(deadline=None)
@given(
    format=st.sampled_from(["ab", "ba", "Ab4a", "AB16a4b", "BA2b8a"]),
    dims=st.tuples(st.integers(1, 60), st.integers(1, 30)),
    cut=st.tuples(*[st.integers(1, 30)] * 4),
    at=st.tuples(*[st.integers(0, 59)] * 2),
)
def test_the_elements_of_a_hull_are_where_its_layout_says(
    format: str, dims: tuple[int, int], cut: tuple[int, ...], at: tuple[int, int]
) -> None:
    desc = rl.MemoryDesc(dims, "s16", format)
    shape = physical_shape(desc)
    assert shape is not None
    cells = Cells(desc, [min(a, b) for a, b in zip(shape, cut, strict=False)])
    x = np.arange(np.prod(dims), dtype=np.int16).reshape(dims)
    array = rl.reorder(rl.tensor(x, "ab"), format).buffer.view(np.int16).reshape(shape)
    block = tuple((min(start, size - 1), size) for start, size in zip(at, dims, strict=True))
    hull = Hull(cells, [len(one) for one in cells.grid.touched(block)], block)
    data = np.zeros(hull.size, np.uint8)
    for chunk in hull.chunks():
        whole = np.full(cells.stored.chunks, -1, np.int16)
        part = array[tuple(slice(*one) for one in cells.stored.box(chunk))]
        whole[tuple(slice(0, size) for size in part.shape)] = part
        hull.put(data, chunk, whole.reshape(-1).view(np.uint8))
    box = hull.box(())
    for place in product(*(range(start, stop) for start, stop in block)):
        inside = [k - low for k, (low, _) in zip(place, box, strict=True)]
        assert data.view(np.int16)[hull.desc.layout.offset(*inside)] == x[place]


@settings(deadline=None)
@given(st.integers(1, 90), st.integers(1, 20), st.integers(1, 20))
def test_pieces_and_their_shapes_are_counted(size: int, s: int, t: int) -> None:
    """Along an axis one by one; of several axes these are products."""
    desc = rl.MemoryDesc((size, 7), "u8", "ab")
    source, target = Cells(desc, (s, 7)), Cells(desc, (t, 3))
    found = [
        tuple(stop - start for start, stop in box)
        for a, b in product(source.grid, target.grid)
        for box in pieces(source, a, target, b, ((0, size), (0, 7)))
    ]
    many, kinds = search._meetings(source, target)
    assert len(found) == many
    assert len(set(found)) <= kinds


@settings(deadline=None)
@given(
    format=st.sampled_from(["nchw", "nhwc", "nChw4c", "NChw4n2c", "OIhw4i2o2i"]),
    ends=st.tuples(*[st.tuples(st.integers(0, 12), st.integers(1, 12))] * 4),
)
def test_a_part_is_one_that_begins_with_the_cell_elsewhere(
    format: str, ends: tuple[tuple[int, int], ...]
) -> None:
    """Wherever a view can be made, that which is known already and moved is the same."""
    desc = rl.MemoryDesc((12, 16, 13, 13), "f32", format)
    box = tuple((min(a, n - 1), min(min(a, n - 1) + b, n)) for (a, b), n in zip(ends, desc.dims, strict=True))
    try:
        wanted = piecewise._part(desc, box)
    except rl.LayoutError:
        return
    assert piecewise._view(desc, box) == wanted


def test_chunks_without_a_common_divisor_are_put_together(tmp_path: Path) -> None:
    """Some thousand pieces of hundreds of shapes: chunks are read little more than once, kernels are few."""
    x = numbers(1009, 811)
    one, two = (37, 41), (31, 29)
    assert gcd(one[0], two[0]) == gcd(one[1], two[1]) == 1
    write_folder(tmp_path / "x", x, "ab", one)
    plan = stores.plan(
        *(tmp_path / "x", tmp_path / "y.chunks", "ba"), chunks=two[::-1], rates=RATES, threads=2,
        memory=planning.BASE + x.nbytes, partial=False,
    )  # fmt: skip
    (made,) = plan.passes
    assert made.assembled
    assert made.times_read < 1.25
    told = plan.explain()
    assert f"in {made.requests_read} requests, each chunk {made.times_read:.2f} times" in told
    assert "of chunks that are put together first" in told
    before = len(piecewise._CONVERSIONS)
    plan.run()
    assert len(piecewise._CONVERSIONS) - before <= search.FEW
    assert (read_physical(tmp_path / "y.chunks") == x.T).all()


def test_what_brings_no_speed_is_not_taken() -> None:
    """Runs of bytes could be four times as long, in four times the memory."""
    desc = rl.MemoryDesc((7629, 64, 64, 64), "f32", "nchw")
    source = Cells(desc, (15, 64, 64, 64), True)
    target = Cells(rl.MemoryDesc(desc.dims, "f32", "nhwc"), (7629, 1, 64, 32), True)
    found = search.scattered(source, target, 512 << 20, 2)
    assert found is not None
    assert found.memory < 128 << 20


def test_pieces_of_too_many_shapes_take_no_kernel_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no memory to put chunks together, most of their pieces are moved by NumPy."""
    monkeypatch.setattr(piecewise, "MOST_KERNELS", 5)
    monkeypatch.setattr(piecewise, "_CONVERSIONS", {})
    monkeypatch.setattr(search, "FEW", 10**9)
    x = numbers(70, 60)
    write_folder(tmp_path / "x", x, "ab", (13, 11))
    scale = np.linspace(0.5, 2, 60).astype(np.float32)
    plan = stores.plan(
        *(tmp_path / "x", tmp_path / "y.chunks", "ba"), chunks=(7, 9), rates=RATES, threads=1, partial=False,
        dtype="f16", src_scale=(scale, 1),
    )  # fmt: skip
    assert not plan.passes[0].assembled
    plan.run()
    made = list(piecewise._CONVERSIONS.values())
    assert 0 < len({(one.src, one.dst) for one in made if one.kernels is not None}) <= 5
    assert any(one.kernels is None for one in made)
    wanted = rl.reorder(rl.tensor(x, "ab"), "ba", dtype="f16", src_scale=(scale, 1))
    assert (read_physical(tmp_path / "y.chunks").reshape(-1).view(np.uint8) == wanted.buffer).all()
