"""Arrays of Dask in a memory format: the same bytes as tensors have, rechunked only where they must be."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl
from relayout.dask.chunks import aligned, cuts, physical_shape
from strategies import tried

da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")

FORMATS = ("nchw", "nhwc", "nChw16c", "OIhw4i16o4i", "NCHW4", "i_yxs_os_yxsv2_osv16")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


@st.composite
def chunked(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Sizes of chunks of an axis, empty ones among them."""
    ends = sorted(draw(st.lists(st.integers(0, size), max_size=3)))
    return tuple(end - start for start, end in zip([0, *ends], [*ends, size], strict=True))


@settings(deadline=None, max_examples=tried(40))
@given(st.data())
def test_physical_arrays_have_the_bytes_of_tensors_and_lead_back(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(FORMATS))
    dims = tuple(data.draw(st.sampled_from((1, 2, 3, 5, 17, 33))) for _ in range(4))
    dtype = data.draw(st.sampled_from((None, "bf16", "s8")))
    array = np.arange(np.prod(dims), dtype=np.float32).reshape(dims) % 251 - 100
    x = da.from_array(array, chunks=tuple(data.draw(chunked(size)) for size in dims))
    expected = rl.tensor(array, format, dtype)
    y = rl.dask.reorder(x, format, dtype)
    assert y.shape == physical_shape(expected.layout)
    assert y.dtype == y.compute().dtype == expected.dtype.numpy
    assert y.compute().tobytes() == expected.buffer.tobytes()
    asked = tuple(data.draw(chunked(size)) for size in y.shape)
    cut = rl.dask.reorder(x, format, dtype, chunks=asked)
    assert cut.chunks == asked
    assert cut.compute().tobytes() == expected.buffer.tobytes()
    for physical in (y, cut):
        z = rl.dask.logical(physical, expected.desc)
        assert z.shape == dims
        assert z.compute().tobytes() == expected.numpy().tobytes()


@given(st.integers(1, 40), st.data())
def test_aligned_chunks_are_whole_blocks_of_the_same_axis(unit: int, data: st.DataObject) -> None:
    chunks = data.draw(chunked(100))
    made = aligned(chunks, unit)
    assert sum(made) == 100
    assert all(sum(made[:k]) % unit == 0 for k in range(len(made)))
    assert len(made) <= len(chunks)
    assert aligned(made, unit) == made


def layers(array: Any) -> list[str]:
    return [name.rpartition("-")[0] for name in array.dask.layers]


def test_chunks_of_whole_blocks_take_one_task_each() -> None:
    x = da.ones((4, 40, 6, 6), chunks=(2, (16, 24), 3, 6))
    y = rl.dask.reorder(x, "nChw16c")
    assert not any("rechunk" in layer for layer in layers(y))
    assert y.chunks == ((2, 2), (1, 2), (3, 3), (6,), (16,))
    assert y.npartitions == x.npartitions
    z = rl.dask.logical(y, rl.MemoryDesc(x.shape, "f64", "nChw16c"))
    assert not any("rechunk" in layer for layer in layers(z))
    assert z.chunks == x.chunks


def test_only_an_axis_that_is_cut_inside_a_block_is_rechunked() -> None:
    x = da.ones((4, 40, 6, 6), chunks=(2, 10, 3, 6))
    y = rl.dask.reorder(x, "nChw16c")
    assert y.chunks == ((2, 2), (1, 1, 1), (3, 3), (6,), (16,))
    assert [cut.unit for cut in cuts(rl.Layout((16, 4, 3, 3), "i_yxs_os_yxsv2_osv16"))] == [16, 1, 2]


def test_chunks_that_are_asked_for_are_made_of_the_source_where_they_cut_open_digits() -> None:
    x = da.ones((4, 64, 6, 6), chunks=(2, 10, 3, 6))
    y = rl.dask.reorder(x, "nChw16c", chunks=(1, 2, 6, 6, 16))
    assert y.chunks == ((1,) * 4, (2, 2), (6,), (6,), (16,))
    assert layers(y)[-1] == "relayout-reorder"
    assert rl.dask.reorder(x, "nChw16c", chunks={4: 8, 0: -1}).chunks[4] == (8, 8)


def test_names_say_what_was_asked_for() -> None:
    x = da.ones((4, 40, 6, 6), chunks=2)
    name = rl.dask.reorder(x, "nChw16c").name
    assert name == rl.dask.reorder(x, rl.Format("NCHW16c"), "f64").name
    others = [
        rl.dask.reorder(x, "nChw8c"),
        rl.dask.reorder(x, "nChw16c", "f32"),
        rl.dask.reorder(x + 1, "nChw16c"),
    ]
    assert len({name, *(other.name for other in others)}) == 4


def test_arrays_without_elements_keep_their_shapes() -> None:
    x = da.ones((0, 17, 2, 2), dtype="f4")
    y = rl.dask.reorder(x, "nChw16c", chunks=(1, 1, 1, 1, 16))
    assert y.shape == y.compute().shape == (0, 2, 2, 2, 16)
    z = rl.dask.logical(y, rl.MemoryDesc(x.shape, "f32", "nChw16c"))
    assert z.shape == z.compute().shape == x.shape


def test_unknown_sizes_are_refused_with_the_remedy() -> None:
    x = da.ones((8, 4), chunks=2)
    unknown = x[x[:, 0] > 0]
    with pytest.raises(rl.LayoutError, match=r"axis 0 of x has chunks of unknown size.*compute_chunk_sizes"):
        rl.dask.reorder(unknown, "ab")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: rl.dask.reorder(np.ones((2, 2)), "ab"), "must be a dask.array, got"),
        (lambda: rl.dask.reorder(da.ones((2, 2)), "nChw16c"), "has 4 axes"),
        (lambda: rl.dask.reorder(da.ma.masked_equal(da.ones((2, 2)), 1), "ab"), "MaskedArray"),
        (lambda: rl.dask.reorder(da.ones((2, 2), dtype="c8"), "ab"), "complex"),
        (lambda: rl.dask.reorder(da.ones((2, 2)), "ab", "s4"), "share a byte"),
        (
            lambda: rl.dask.logical(da.ones((2, 2)), "f64:ab:2x3"),
            "2x3, an axis for each digit of ab; got f64 of 2x2",
        ),
        (lambda: rl.dask.logical(da.ones((2, 2)), "f32:ab:2x2"), "got f64 of 2x2"),
        (
            lambda: rl.dask.logical(da.ones((2, 2)), rl.MemoryDesc((2, 2), "f64", strides=(4, 1))),
            "no dense format",
        ),
        (lambda: rl.dask.logical(da.ones((2, 2)), rl.MemoryDesc((2, 2), "f64", rl.any)), "no dense format"),
        (lambda: rl.dask.logical(da.ones((2, 2)), 3), "must be a MemoryDesc"),
    ],
)
def test_what_has_no_physical_array_is_refused(make: Any, says: str) -> None:
    with pytest.raises(rl.LayoutError, match=says):
        make()


def test_importing_relayout_dask_imports_no_dask() -> None:
    code = "import sys, relayout.dask; print('dask' in sys.modules, sorted(relayout.dask.__all__)[-1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


def test_without_dask_the_error_says_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['dask'] = None\nimport relayout as rl\n"
        "try: rl.dask.reorder\nexcept rl.Unsupported as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "dask[array,distributed]"' in done.stdout


@pytest.mark.parametrize("chunks", [(1, 2), ((1, 2), 1, 1, 1, 1), "much", object()])
def test_chunks_of_the_result_fit_it(chunks: Any) -> None:
    with pytest.raises(rl.LayoutError, match=r"do not fit the result of shape \[2, 2, 3, 3, 16\]"):
        rl.dask.reorder(da.ones((2, 17, 3, 3)), "nChw16c", chunks=chunks)
