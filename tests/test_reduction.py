"""Reductions along whole axes: machine code against the definition, in any format, and that against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import covering
from elementwise import FORMATS, check, machine_code, sides
from relayout import LayoutError, MemoryDesc
from relayout.ops.pooling import NORMS
from relayout.ops.reductions import REDUCTIONS
from relayout.primitives import Binary, Reduction, Sequence
from relayout.primitives.post_ops import BinaryOp
from relayout.primitives.reduction import ALGORITHMS
from strategies import examples

NUMPY = {"max": np.max, "min": np.min, "sum": np.sum, "mul": np.prod, "mean": np.mean}
needs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")


@st.composite
def reductions(draw):
    """Any reduction of any layout that has elements."""
    src = draw(sides(1).map(lambda found: found[0]).filter(lambda desc: 0 not in desc.dims))
    axes = draw(st.lists(st.integers(0, max(0, len(src.dims) - 1)), unique=True, max_size=len(src.dims)))
    algorithm = draw(st.sampled_from(ALGORITHMS))
    numbers = {}
    if algorithm in NORMS:
        numbers = {"p": draw(st.sampled_from((1, 2, 3, 1.5))), "eps": draw(st.sampled_from((0, 0.5, 40)))}
    return Reduction(src, algorithm, axes, **numbers)


@given(made=reductions(), seed=st.integers(0, 1 << 20))
@examples(60)
def test_code_agrees_with_the_definition_and_writes_nothing_else(made, seed):
    if made.algorithm == "mul":  # products of powers of two are exact in every order
        most = 2 if made.flops < 40 else 1
        check(made, seed, {"src": 2.0 ** np.random.default_rng(seed).integers(0, most, made.src.dims)})
    else:
        check(made, seed)


@pytest.mark.parametrize(
    ("format", "algorithm", "axes"),
    covering(FORMATS, NUMPY, [(1,), (2, 3), (0, 2, 3), (0, 1, 2, 3), ()]),
)
def test_the_result_is_numpys(format, algorithm, axes):
    x = np.random.default_rng(1).integers(1, 3, (4, 20, 5, 3)).astype(np.float32)
    if algorithm == "mul":
        x[:, 4:], x[:, :, 2:] = 1, 1
    made = Reduction(MemoryDesc(x.shape, "f32", format), algorithm, axes)
    expected = NUMPY[algorithm](x.astype(np.float64), axis=axes, keepdims=True)
    np.testing.assert_allclose(made(rl.tensor(x, format)).numpy(), expected, 1e-6)
    np.testing.assert_allclose(made.reference(x), expected, 1e-12)


@needs_code
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("axes", [1, (2, 3), (0, 1, 2, 3)], ids=str)
def test_there_is_a_kernel_in_every_format(format, axes):
    made = Reduction(MemoryDesc((4, 20, 5, 3), "f32", format), "sum", axes)
    assert made.implementation.startswith("machine code")


@pytest.mark.parametrize("kind", ["s8", "u8", "s32"])
@pytest.mark.parametrize("algorithm", ["max", "min"])
def test_integers_are_picked_as_they_are(kind, algorithm):
    info = np.iinfo(kind.replace("s", "int").replace("u", "uint"))
    x = np.random.default_rng(3).integers(info.min, info.max, (3, 7, 9), info.dtype, endpoint=True)
    made = Reduction(MemoryDesc(x.shape, kind, "abc"), algorithm, -1)
    np.testing.assert_array_equal(made(x).numpy(), NUMPY[algorithm](x, axis=-1, keepdims=True))


@pytest.mark.parametrize("size", [1, 5, 16, 33, 100])
@pytest.mark.parametrize("algorithm", ["max", "min", "sum"])
def test_a_nan_anywhere_is_the_result(size, algorithm):
    for at in range(0, size, max(1, size // 7)):
        x = np.zeros((2, size), np.float32)
        x[1, at] = np.nan
        got = Reduction(MemoryDesc(x.shape, "f32", "ab"), algorithm, 1)(x).numpy()
        np.testing.assert_array_equal(np.isnan(got), [[False], [True]])


SPECIAL = np.float32([0, -0.0, 1, -2, 1e-40, 3e38, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_reduction_of_two_special_numbers_is_defined_so(name):
    """Pairs at any places of a row, among what changes nothing; also where rows are shorter than a vector."""
    one = REDUCTIONS[name]
    first, second = (each.reshape(-1) for each in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        expected = one.define(first, second)
        np.testing.assert_array_equal(one.define(SPECIAL, np.float32(one.identity)), SPECIAL)
    for size, places in ((2, (0, 1)), (17, (0, 16)), (40, (3, 20))):
        for turned in (False, True):
            x = np.full((len(first), size), one.identity, np.float32)
            x[:, places[0]], x[:, places[1]] = first, second
            src = MemoryDesc(x.shape[::-1] if turned else x.shape, "f32", "ab")
            got = Reduction(src, name, 0 if turned else 1)(x.T.copy() if turned else x).numpy().reshape(-1)
            np.testing.assert_allclose(got, expected, 1e-6)


def test_nothing_adds_up_to_the_identity():
    empty = MemoryDesc((2, 0), "f32", "ab")
    assert Reduction(empty, "sum", 1)(np.zeros((2, 0), "f4")).numpy().tolist() == [[0.0], [0.0]]
    assert Reduction(empty, "mul", 1)(np.zeros((2, 0), "f4")).numpy().tolist() == [[1.0], [1.0]]


def test_dst_says_the_axes_and_post_ops_follow():
    src, dst = MemoryDesc((2, 8, 4, 4), "f32", "nChw8c"), MemoryDesc((2, 8, 1, 1), "f32", "nhwc")
    gate = MemoryDesc((2, 8, 1, 1), "f32", "nhwc")
    made = Reduction(src, "mean", dst=dst, post_ops=["relu", BinaryOp("mul", gate)])
    assert made.axes == (2, 3)
    check(made)


def test_in_a_sequence():
    """Squeeze and excitation: each channel is scaled by a function of its mean."""
    src = MemoryDesc((2, 16, 6, 6), "f32", "nhwc")
    seq = Sequence()
    x = seq.input("x", src)
    mean = seq.add(Reduction(src, "mean", (2, 3), post_ops=["logistic"]), x)
    seq.output(seq.add(Binary("mul", src, mean.desc), x, mean))
    data = np.random.default_rng(0).random(src.dims, np.float32)
    expected = data / (1 + np.exp(-data.mean((2, 3), keepdims=True)))
    np.testing.assert_allclose(seq.compile()(rl.tensor(data, "nhwc")).numpy(), expected, 1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda src: Reduction(src, "median"), "'median' is no algorithm; there are max, min"),
        (lambda src: Reduction(src, "sum", 4), "has 2 axes, so there is no axis 4"),
        (lambda src: Reduction(src, "sum", (0, -2)), "axis 0 is given twice"),
        (lambda src: Reduction(src, "sum", 1.5), "axis must be a whole number"),
        (lambda src: Reduction(src, "sum", 1, MemoryDesc((3, 3), "f32", "ab")), "must be 3x1"),
        (lambda src: Reduction(src, "sum", post_ops=["sum"]), "sum"),
        (
            lambda src: Reduction(MemoryDesc((2, 0), "f32", "ab"), "max", 1),
            "no elements, of which there is no max",
        ),
    ],
)
def test_errors_say_what_is_wrong(make, message):
    with pytest.raises(LayoutError, match=message):
        make(MemoryDesc((3, 4), "f32", "ab"))


@pytest.mark.parametrize("p", [1, 2, 3.5])
@pytest.mark.parametrize("axes", [(1,), (0, 2)], ids=str)
def test_norms_are_those_of_pytorch(p, axes):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(2).standard_normal((3, 17, 6))
    src = MemoryDesc(x.shape, "f32", "acb")
    norm = torch.linalg.vector_norm(torch.tensor(x), p, axes, keepdim=True).numpy()
    for algorithm, eps, expected in (
        ("norm_lp_max", 0, norm),
        ("norm_lp_max", 1e4, np.full(norm.shape, 1e4 ** (1 / p))),
        ("norm_lp_sum", 0.25, (norm**p + 0.25) ** (1 / p)),
        ("norm_lp_power_p_max", 0, norm**p),
        ("norm_lp_power_p_sum", 3, norm**p + 3),
    ):
        made = Reduction(src, algorithm, axes, p=p, eps=eps)
        np.testing.assert_allclose(made.reference(x), expected, 1e-6)
        np.testing.assert_allclose(made(rl.tensor(x, src)).numpy(), expected, 3e-6)


@pytest.mark.parametrize("numbers", [{}, {"p": 0.5}, {"p": float("nan")}, {"p": 2, "eps": "x"}], ids=str)
def test_numbers_that_make_no_norm(numbers):
    with pytest.raises(LayoutError, match=r"reduction: (p|eps)"):
        Reduction(MemoryDesc((2, 3), "f32", "ab"), "norm_lp_sum", 1, **numbers)
    with pytest.raises(LayoutError, match="takes neither p nor eps"):
        Reduction(MemoryDesc((2, 3), "f32", "ab"), "sum", 1, p=2)
