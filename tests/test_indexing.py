"""Gathers and scatters: what the definition says, in any layout; indices that name nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import check, laid_out, machine_code
from fences import output_of
from relayout import LayoutError
from relayout.ops.indexing import elements, points, taken
from relayout.primitives import Sequence
from relayout.primitives.indexing import Gather, Scatter
from relayout.primitives.plain import plain, remade
from strategies import examples, has_clean_padding, layouts
from test_reorder import in_front, writable

pytestmark = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")

KINDS = ("f32", "u8", "s64", "f16", "s32")


@st.composite
def problems(draw):
    """Data, indices and how they go together."""
    rank = draw(st.integers(1, 4))
    data = tuple(draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank)))
    count = draw(st.integers(0, 2))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)))
    kind = draw(st.sampled_from(["taken", "elements", "points"]))
    axis = draw(st.integers(0, rank - 1))
    if kind == "taken":
        return taken(rank, count, axis), data, shape, [data[axis]] * 1
    if kind == "elements":
        shape = tuple(draw(st.integers(1, n)) for n in data)
        return elements(rank, axis), data, shape, [data[axis]]
    batch = draw(st.integers(0, rank - 1))
    coordinates = draw(st.integers(1, rank - batch))
    shape = (*data[:batch], *shape, coordinates)
    return points(rank, len(shape), coordinates, batch), data, shape, data[batch : batch + coordinates]


@st.composite
def calls(draw, scatter=False):
    """A primitive in some layouts, and the arrays of a call."""
    how, data, shape, sizes = draw(problems())
    kind, wide = draw(st.sampled_from(KINDS)), draw(st.sampled_from(["s64", "s32"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    limits = np.array(sizes if how.listed else sizes[0])
    indices = rng.integers(-limits, limits, shape)
    other = how.dims(data, shape)

    def described(dims, dtype, written=False):
        fits = layouts(dims=dims).map(in_front)
        plain = draw(st.booleans())
        made = draw(fits.filter(writable) if written else fits.filter(lambda x: has_clean_padding(x)))
        usual = rl.Layout(dims, "abcdefgh"[: len(dims)]) if dims else None
        return rl.MemoryDesc(dims, dtype, usual if plain and usual is not None else made)

    given = described(data, kind), described(shape, wide, True)
    if scatter:
        adds = draw(st.booleans()) and kind != "f16"
        made = Scatter(how, *given, described(other, kind), described(data, kind, True), adds=adds)
    else:
        made = Gather(how, *given, described(other, kind, True))
    return made, {"indices": indices}


@given(calls())
@examples(80)
def test_gathers_of_any_layout(call):
    check(call[0], arrays=call[1])


@given(calls(scatter=True))
@examples(60)
def test_scatters_of_any_layout(call):
    made, arrays = call
    check(made, arrays=arrays) if not made.adds else compared(made, arrays)


def compared(made, arrays):
    """Like check, but what is added in f32 in another order may differ in the last place."""
    given = [arrays.get(name, np.ones(made.descs[name].dims)) for name in made.inputs]
    tensors = [laid_out(x, made.descs[n], 0) for x, n in zip(given, made.inputs, strict=True)]
    np.testing.assert_allclose(made(*tensors).numpy(), made.reference(*tensors))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 63, 64, 65, 200, 511, 512, 513, 1000, 4099])
@pytest.mark.parametrize("kind", ["u8", "f32"])
def test_rows_of_any_length(size, kind):
    data, indices = rl.MemoryDesc((7, size), kind, "ab"), rl.MemoryDesc((5,), "s64", "a")
    check(Gather(taken(2, 1, 0), data, indices), arrays={"indices": np.array([6, 0, -1, 3, -7])})


def test_rows_lie_where_numpy_says():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((4, 6, 3)).astype("f4")
    for axis in range(3):
        indices = rng.integers(-data.shape[axis], data.shape[axis], (2, 5))
        tensors = rl.tensor(data), rl.tensor(indices)
        made = Gather(taken(3, 2, axis), *(x.desc for x in tensors))
        assert "machine code" in made.implementation
        np.testing.assert_array_equal(made(*tensors).numpy(), data.take(indices, axis))


@pytest.mark.parametrize("index", [4, -5, 2**31, -(2**63), 2**63 - 1])
def test_an_index_outside_is_an_error_that_names_it(index):
    data, indices = rl.tensor(np.ones((4, 3), "f4")), rl.tensor(np.array([[0], [index]]))
    updates = rl.tensor(np.ones((2, 1, 3), "f4"))
    gather = Gather(taken(2, 2, 0), data.desc, indices.desc)
    scatter = Scatter(points(2, 2, 1), data.desc, indices.desc, rl.tensor(np.ones((2, 3), "f4")).desc)
    message = f"index {index} of axis 0, which has 4 elements"
    for _ in range(20):  # also when it is called often
        with pytest.raises(LayoutError, match=f"gather: {message}"):
            gather(data, indices)
    with pytest.raises(LayoutError, match=f"scatter: {message}"):
        scatter(data, indices, rl.tensor(np.ones((2, 3), "f4")))
    with pytest.raises(LayoutError, match=message):
        gather.operation.natively(data.numpy(), indices.numpy())
    assert updates.numpy().all()


def test_a_sequence_names_the_layer_and_runs_again():
    seq = Sequence()
    data, indices = rl.MemoryDesc((4, 3), "f32", "ab"), rl.MemoryDesc((2,), "s64", "a")
    x, k = seq.input("x", data), seq.input("k", indices)
    words = seq.add(Gather(taken(2, 1, 0), data, indices), x, k, name="words")
    seq.output(seq.add(Gather(taken(2, 1, 1), words.desc, indices), words, k, name="letters"))
    numbers = np.arange(12, dtype="f4").reshape(4, 3)
    for run in (seq.compile(), seq.compile()):  # the second one finds what the first has kept on disk
        assert run(numbers, np.array([1, -2])).numpy().tolist() == [[4, 4], [7, 7]]
        with pytest.raises(LayoutError, match=r"^words: index 4 of axis 0, which has 4 elements"):
            run(numbers, np.array([1, 4]))
        with pytest.raises(LayoutError, match=r"^letters: index 3 of axis 1, which has 3 elements"):
            run(numbers, np.array([1, 3]))


@given(st.one_of(calls(), calls(scatter=True)))
@examples(20)
def test_as_text(call):
    made, _ = call
    again = remade(json.loads(json.dumps(plain(made))))
    assert again.how == made.how


@pytest.mark.parametrize(
    ("axes", "coordinates", "listed"),
    [
        *((((0, -1), (-1, 0)), (0,), False), (((-1, 0), (1, -1)), (0, 1), True)),  # an axis twice
        *((((-1, 0), (-1, -1)), (0,), False), (((-1, 0), (1, -1)), (), False)),
        *((((-1, 0), (1, -1)), ("0",), False), (((-1, 0),), (0, 1), False)),
    ],
)
def test_what_a_text_must_not_say(axes, coordinates, listed):
    text = plain(Gather(taken(2, 1, 0), rl.MemoryDesc((4, 3), "f32", "ab"), rl.MemoryDesc((2,), "s64", "a")))
    text[1]["how"] = {"indexing": [axes, coordinates, listed]}
    with pytest.raises(LayoutError):
        remade(text)


def test_no_byte_outside_is_read_or_written():
    script = """
    import numpy as np, relayout as rl
    from fences import arena, run_between
    from relayout.ops.indexing import elements, points, taken
    from relayout.primitives.indexing import Gather, Scatter
    from ctypes import memmove
    arenas = [arena(8192) for _ in range(5)]
    wrong = np.tile(np.array([2**40, -2**40, 3, -4, 2**62, -2**63, 1, 0]), 128).tobytes()
    for start, end in arenas:  # whatever is read as indices
        memmove(start, wrong, 8192)
    for kind in ("u8", "f32"):
        for size in (1, 5, 16, 67, 130):
            data, indices = rl.MemoryDesc((3, size), kind, "ab"), rl.MemoryDesc((8,), "s64", "a")
            listed, updates = rl.MemoryDesc((8, 1), "s64", "ab"), rl.MemoryDesc((8, size), kind, "ab")
            for made in (
                Gather(taken(2, 1, 0), data, indices),
                Scatter(points(2, 2, 1), data, listed, updates),
                Gather(elements(2, 1), data, rl.MemoryDesc((3, size), "s64", "ab")),
            ):
                try:
                    run_between(made, arenas)
                except rl.LayoutError as error:
                    print(error)
                memmove(arenas[1][0], wrong, 8192)
    """
    assert "which has 3 elements" in output_of(script)


@pytest.mark.parametrize(
    ("how", "data", "indices", "message"),
    [
        (taken(2, 1, 0), ("f32", (3, 4)), ("f32", (2,)), "must be s64 or s32"),
        (taken(2, 1, 0), ("f32", (3, 4, 5)), ("s64", (2,)), "don't go with"),
        (elements(2, 0), ("f32", (3, 4)), ("s64", (3, 5)), "don't go with"),
        (points(2, 2, 2), ("f32", (3, 4)), ("s64", (3, 1)), "don't go with"),
    ],
)
def test_what_does_not_fit(how, data, indices, message):
    descs = [rl.MemoryDesc(dims, kind, "abc"[: len(dims)]) for kind, dims in (data, indices)]
    with pytest.raises(LayoutError, match=message):
        Gather(how, *descs)
