"""Matrix product: by hand, one or many, whatever the matrices lie like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import LayoutError, MemoryDesc
from relayout.ops.post_ops import BinaryOp, Sum
from relayout.primitives import Matmul
from strategies import examples, layouts, written
from test_products import HERE, TYPES, check, compiles, desc, hosts, on, post_ops, vector, vectors
from test_reorder import in_front

MATRICES = ("ab", "ba", "aB4b", "aB16b", "Ab4a", "AB16b16a", "BA8a8b", "aB24b", "BA16a2b")
MANY = ("abc", "acb", "bac", "cab", "abC4c", "aBc8b", "acB16b", "aBC8b8c", "Abc2a")


@st.composite
def matrices(draw, dims):
    """Rows or columns first, blocks, holes."""
    if draw(st.booleans()):
        return rl.Layout(dims, draw(st.sampled_from(MATRICES if len(dims) == 2 else MANY)))
    return in_front(draw(layouts(dims)))


@st.composite
def problems(draw):
    """A product of few operations, and in what context it is lowered."""
    kinds = draw(st.sampled_from(TYPES))
    sizes = st.sampled_from((1, 2, 3, 4, 8, 16, 17, 33, 50))
    m, k, n = draw(sizes), draw(sizes), draw(sizes)
    if kinds[0] in ("s8", "u8"):
        k = draw(st.sampled_from((k, 514, 515, 600)))
    many = draw(st.sampled_from((None, None, 1, 2, 5, 17)))
    first = () if many is None else (many,)
    shared = () if many is None else (draw(st.sampled_from((1, many))),)
    src = MemoryDesc((*first, m, k), kinds[0], draw(matrices((*first, m, k))))
    packing = draw(st.one_of(st.just(rl.any), matrices((*shared, k, n))))
    dst = draw(st.one_of(st.just(rl.any), matrices((*first, m, n)).filter(written)))
    bias, scale = draw(vectors(n, kinds[0] in ("s8", "u8")))
    host, ops = draw(hosts), draw(post_ops())
    with on(*host):
        weights = MemoryDesc((*shared, k, n), kinds[1], packing)
        return host, Matmul(
            src, weights, bias, MemoryDesc((*first, m, n), kinds[2], dst), scale=scale, post_ops=ops
        )


@given(problem=problems(), seed=st.integers(0, 99), threads=st.sampled_from((None, 1, 3)))
@examples(60)
def test_kernels_compute_the_definition(problem, seed, threads):
    host, made = problem
    with on(*host):
        check(made, seed, threads=threads)


def test_by_hand():
    src = rl.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, -1.0]], "ba", dtype="f32")
    weights = rl.tensor([[1.0, 0.0], [10.0, 1.0]], dtype="f32")
    bias, scale = (rl.tensor(np.array(values, "f4")) for values in ([0.5, 0.0], [2.0]))
    made = Matmul(src.desc, weights.desc, bias.desc, scale=scale.desc, post_ops=("relu", Sum()))
    out = rl.tensor(np.full((3, 2), 100, "f4"))
    made(src, weights, bias, scale, out=out)
    assert out.numpy().tolist() == [[142.5, 104.0], [186.5, 108.0], [100.0, 100.0]]


@pytest.mark.parametrize("shared", [False, True])
def test_many_products(shared):
    """Weights of one matrix serve all."""
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((4, 5, 6)).astype("f4"),
        rng.standard_normal((1 if shared else 4, 6, 3)).astype("f4"),
    )
    src = rl.tensor(a)
    made = Matmul(src.desc, desc(b.shape))
    result = made(src, rl.tensor(b, made.weights))
    for k in range(4):
        np.testing.assert_allclose(result.numpy()[k], a[k] @ b[0 if shared else k], atol=1e-5)


@compiles
def test_few_columns_of_many_matrices_have_one_bias():
    """Several matrices share a vector; bias and scales begin anew with each."""
    for cpu in HERE:
        with on(cpu):
            for n, k in ((1, 1), (2, 1), (4, 3), (4, 4), (2, 2)):
                for bias, scale in (
                    (vector(n), None),
                    (vector(n), vector(n)),
                    (None, vector(1)),
                    (desc((n,), "a", "s32"), None),
                ):
                    made = Matmul(desc((21, 3, k), "abc"), desc((21, k, n)), bias, scale=scale)
                    check(made, kernel=True)


@compiles
def test_padding_of_single_rows_and_columns_is_zeroed():
    """Views of several matrices as one drop the padding of axes of size 1."""
    for form, sizes in (("aBc8b", (5, 1, 3, 4)), ("aBC8b4c", (5, 1, 3, 4)), ("aBC2b8c", (5, 3, 3, 1))):
        many, m, k, n = sizes
        for count in (1, many):
            weights = desc((count, k, n), "abc")
            check(Matmul(desc((many, m, k), "abc"), weights, dst=desc((many, m, n), form)))


@compiles
def test_an_operand_for_each_of_many_single_elements():
    """Lanes of several groups: each product has a summand of its own."""
    for cpu in HERE:
        with on(cpu):
            for dst in (desc((5, 1, 1), "abc"), MemoryDesc((5, 1, 1), "f32", strides=(2, 1, 1))):
                each = desc((5, 1, 1), "abc")
                made = Matmul(each, each, dst=dst, post_ops=[BinaryOp("add", each)])
                x = np.arange(1, 6).reshape(5, 1, 1)
                y = made(*(rl.tensor(x * k, "abc", "f32") for k in (1, 2, 3)))
                assert y.numpy().ravel().tolist() == [5, 14, 27, 44, 65]


@compiles
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_in_their_row(value):
    rng = np.random.default_rng(0)
    for cpu in HERE:
        with on(cpu):
            for one, two in (("abc", "abc"), ("acb", "bac"), ("abc", "acb")):
                for sizes in ((3, 7, 4, 4), (3, 7, 17, 21)):
                    made = Matmul(
                        desc(sizes[:3], one),
                        desc((sizes[0], *sizes[2:])),
                        dst=desc((*sizes[:2], sizes[3]), two),
                    )
                    src = rng.standard_normal(made.src.dims)
                    src[1, 2, 3] = value
                    check(made, arrays={"src": src}, kernel=True)


def test_any():
    with on(HERE[0]):
        made = Matmul(desc((7, 32)), desc((32, 48)))
        assert (made.src, made.dst) == (desc((7, 32), "ab"), desc((7, 48), "ab"))
        assert made.weights.dims == (32, 48)
        assert not made._compiled() or "packed" not in made._compiled().scratch
        many = Matmul(desc((5, 7, 32)), desc((5, 32, 48)))
        assert (many.src, many.dst) == (desc((5, 7, 32), "abc"), desc((5, 7, 48), "abc"))
        assert not many._compiled() or "packed" not in many._compiled().scratch
    given = desc((7, 32), "ba"), desc((32, 48), "aB4b"), vector(48), desc((7, 48), "ba", "f16")
    made = Matmul(*given)
    assert (made.src, made.weights, made.bias, made.dst) == given
    assert made.flops == 2 * 7 * 32 * 48
    assert Matmul(desc((5, 7, 32)), desc((1, 32, 48))).flops == 5 * made.flops


@pytest.mark.parametrize("sizes", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("many", [(), (3,), (0,)])
def test_nothing_in_or_out(sizes, many):
    m, k, n = sizes
    check(Matmul(desc((*many, m, k)), desc((*many, k, n)), vector(n)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((desc((2,)), desc((2, 3))), "must both have two axes"),
        ((desc((4, 2, 3)), desc((3, 5))), "must both have two axes"),
        ((desc((1, 4, 2, 3)), desc((1, 4, 3, 5))), "must both have two axes"),
        ((desc((2, 3)), desc((4, 5))), "rows of 3, .* have 4 rows"),
        ((desc((4, 2, 3)), desc((3, 3, 5))), "4 matrices .* and 3 of weights"),
        ((desc((1, 2, 3)), desc((4, 3, 5))), "1 matrices .* and 4 of weights"),
        ((desc((2, 3)), desc((3, 5)), vector(3)), "must be a vector of 5"),
        ((desc((2, 3)), desc((3, 5)), None, desc((2, 3))), "dst .* must be 2x5"),
        ((desc((2, 3)), desc((3, 5)), None, MemoryDesc((2, 5), "f32", strides=(1, 0))), "in one place"),
        ((desc((2, 3)), None), "must be a MemoryDesc"),
    ],
)
def test_sizes_that_do_not_fit(arguments, says):
    with pytest.raises(LayoutError, match=says):
        Matmul(*arguments)
    with pytest.raises(LayoutError, match="scale f32:a:4 must be a vector of 1 or 5 f32"):
        Matmul(desc((2, 3)), desc((3, 5)), scale=vector(4))
