"""Gradients of functions, PReLU and shuffle: kernels against definitions, and these against others."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import FORMATS, check, machine_code, numbers, sides
from relayout import LayoutError, MemoryDesc, Unsupported
from relayout.convert import convert
from relayout.ops.functions import FUNCTIONS, Function
from relayout.primitives import (
    Eltwise,
    EltwiseBackward,
    PReLU,
    PReLUBackward,
    Reduction,
    Shuffle,
    ShuffleBackward,
)
from relayout.primitives.plain import plain, remade
from strategies import examples
from test_reorder import writable

runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
REALS = ("f32", "bf16", "f16")
CASES = [
    Function(name, *given)
    for name, one in FUNCTIONS.items()
    if one.slope
    for given in (*one.error, *{"relu": [(0.25,)], "pow": [(2, 0), (3, 1)], "elu": [(0.5,)]}.get(name, ()))
]
BY_DST = [
    one for one in CASES if FUNCTIONS[one.algorithm].slope_of_dst and (one.alpha >= 0 or "clip" in str(one))
]


def domain(function: Function, x: np.ndarray) -> np.ndarray:
    """Numbers that the function takes and has a derivative at."""
    positive = function.algorithm in ("sqrt", "log") or (
        function.algorithm == "pow" and not float(function.beta).is_integer()
    )
    return np.abs(x) + 0.125 if positive else x


@pytest.mark.parametrize("function", CASES, ids=str)
def test_derivatives_are_quotients_of_differences(function) -> None:
    x = domain(function, np.random.default_rng(3).uniform(-4, 4, 400))
    h = 1e-6
    wanted = (function.definition(x + h) - function.definition(x - h)) / (2 * h)
    got = function.derivative().define(x, function.alpha, function.beta)
    np.testing.assert_allclose(got, wanted, 1e-6, 1e-7)


@pytest.mark.parametrize("function", BY_DST, ids=str)
def test_the_destination_tells_the_same_derivative(function) -> None:
    x = domain(function, np.random.default_rng(3).uniform(-3, 3, 400))
    by_src, by_dst = (function.derivative(of_dst).define(at, function.alpha, function.beta)
                      for of_dst, at in ((False, x), (True, function.definition(x))))  # fmt: skip
    np.testing.assert_allclose(by_dst, by_src, 1e-9, 1e-12)


@runs_code
@pytest.mark.parametrize("use_dst", [False, True])
@pytest.mark.parametrize("function", CASES, ids=str)
def test_code_of_derivatives_over_all_magnitudes(function, use_dst) -> None:
    """A few ulp of the largest term everywhere, and no NaN where the definition has none."""
    if use_dst and function not in BY_DST:
        return
    rng = np.random.default_rng(5)
    x = np.concatenate([
        rng.uniform(-20, 20, 20000), rng.standard_normal(4000), 10.0 ** rng.uniform(-30, 30, 4000),
        -(10.0 ** rng.uniform(-30, 30, 4000)), [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf],
    ]).astype(np.float32)  # fmt: skip
    desc = MemoryDesc(x.shape, "f32", "a")
    backward = EltwiseBackward(Eltwise(desc, function), use_dst=use_dst)
    with np.errstate(all="ignore"):
        kept = function.definition(x).astype(np.float32) if use_dst else x
        diff = np.ones_like(x)
        wanted = backward.reference(kept, diff)
        got = backward(kept, diff).numpy().astype(np.float64)
        flushed = np.where(np.abs(wanted) > np.finfo(np.float32).max, np.sign(wanted) * np.inf, wanted)
    known = ~np.isnan(flushed)
    if function.algorithm == "pow":  # powers beyond the range are not brought back
        known &= (np.abs(x) > 1e-20) & (np.abs(x) < 1e20)
    assert not np.isnan(got[known]).any()
    with np.errstate(invalid="ignore"):
        share = 1e-5 if function.algorithm == "soft_relu" else 2e-6  # its argument is rounded
        bound = share * np.abs(flushed) + (4e-7 if function.algorithm in CANCELS else 2e-37)
        wrong = known & (got != flushed) & ~(np.abs(got - flushed) <= bound)
    assert not wrong.any(), (kept[wrong][:5], got[wrong][:5], flushed[wrong][:5])


CANCELS = ("gelu_erf", "gelu_tanh", "swish", "mish", "hardswish", "logistic", "tanh")
"""Functions whose derivative has a zero between two terms, or an argument from a destination near 1."""


@runs_code
@given(
    descs=sides(3, REALS).filter(lambda found: all(writable(one.layout) for one in found)),
    function=st.sampled_from(CASES),
    use_dst=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
@examples(60)
def test_elementwise_kernel_is_the_definition(descs, function, use_dst, seed) -> None:
    out, kept, diff_dst = descs
    use_dst = use_dst and function in BY_DST
    name = "dst" if use_dst else "src"
    forward = Eltwise(MemoryDesc(kept.dims, "f32", kept.layout), function)
    made = EltwiseBackward(forward, diff_dst=diff_dst, diff_src=out, use_dst=use_dst, **{name: kept})
    x = domain(function, numbers(kept.dims, "f32", seed))
    given = x if not use_dst else convert(function.definition(x), kept.dtype).astype(float)
    check(made, seed, {name: given})


def test_gradients_of_functions_follow_their_source() -> None:
    x = MemoryDesc((2, 17, 4, 4), "bf16", "nChw16c")
    forward = Eltwise(x, "relu", MemoryDesc(x.dims, "f32", "nhwc"))
    made = EltwiseBackward(forward)
    assert (made.src, made.diff_dst, made.diff_src) == (x, forward.dst, x)
    made = EltwiseBackward(forward, diff_dst=rl.any, diff_src=rl.any)
    assert made.diff_dst == MemoryDesc(x.dims, "f32", "nChw16c")
    assert EltwiseBackward(forward, use_dst=True).inputs == ("dst", "diff_dst")
    assert dict(EltwiseBackward(Eltwise(x, "relu")).in_place) == {"diff_src": ("src", "diff_dst")}


def test_in_place() -> None:
    x, diff = (rl.tensor(np.random.default_rng(k).standard_normal((3, 37)), "ab", "f32") for k in (0, 1))
    made = EltwiseBackward(Eltwise(x.desc, "tanh"))
    wanted = made.reference(x, diff)
    assert made(x, diff, out=diff) is diff
    np.testing.assert_allclose(diff.numpy(), wanted, 1e-5)


def test_functions_without_a_derivative() -> None:
    x = MemoryDesc((3,), "f32", "a")
    for name, numbers_, use_dst in (("round", (), False), ("square", (), True), ("relu", (-1,), True)):
        with pytest.raises(Unsupported, match="derivative"):
            EltwiseBackward(Eltwise(x, name, None, *numbers_), use_dst=use_dst)
    with pytest.raises(Unsupported, match="must be real numbers"):
        EltwiseBackward(Eltwise(MemoryDesc((3,), "s8", "a"), "relu"))
    with pytest.raises(LayoutError, match="forward must be a Eltwise"):
        EltwiseBackward(PReLU(x, x))
    with pytest.raises(Unsupported, match="post-ops"):
        EltwiseBackward(Eltwise(x, "relu", post_ops="exp"))
    with pytest.raises(LayoutError, match="as in the forward pass"):
        EltwiseBackward(Eltwise(x, "relu"), diff_dst=MemoryDesc((4,), "f32", "a"))


# --- PReLU -------------------------------------------------------------------------------------------------


@st.composite
def prelus(draw):
    """A PReLU with weights for all, some or each of the elements, in any layouts."""
    src, diff = draw(sides(2, REALS))
    dims = tuple(n if draw(st.booleans()) else 1 for n in src.dims)
    axes = draw(st.permutations(range(len(dims))))
    weights = rl.any if not dims or draw(st.booleans()) else "".join("abcdefgh"[k] for k in axes)
    forward = PReLU(src, MemoryDesc(dims, draw(st.sampled_from(REALS)), weights))
    return forward, diff


@runs_code
@given(made=prelus(), seed=st.integers(0, 1 << 20))
@examples(40)
def test_prelu_kernels_are_the_definitions(made, seed) -> None:
    forward, diff = made
    check(forward, seed)
    backward = PReLUBackward(forward, diff_dst=diff)
    few = np.random.default_rng(seed).integers(-2, 3, forward.src.dims)  # sums that all types hold exactly
    check(backward, seed, {"src": few, "diff_dst": np.sign(few - 1)})


@runs_code
@pytest.mark.parametrize("format", FORMATS)
def test_there_is_machine_code_in_every_format(format) -> None:
    x = MemoryDesc((2, 20, 5, 3), "bf16", format)
    slopes = MemoryDesc((1, 20, 1, 1), "f32", rl.any)
    forward = PReLU(x, slopes), Shuffle(x, 1, 4), Shuffle(x, 1, 5), Eltwise(x, "mish")
    backward = PReLUBackward(forward[0]), ShuffleBackward(forward[1]), EltwiseBackward(forward[3])
    for made in (*forward, *backward):
        assert made.implementation.startswith("machine code"), made


def test_prelu_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, diff = rng.standard_normal((2, 3, 5, 20, 9))[:, :, 0], rng.standard_normal((2, 3, 20, 9))
    w = rng.standard_normal((1, 3, 1, 1))
    src, slopes = (torch.tensor(one, requires_grad=True) for one in (x, w.ravel()))
    y = torch.nn.functional.prelu(src, slopes)
    y.backward(torch.tensor(diff))
    forward = PReLU(MemoryDesc(x.shape, "f32", "nchw"), MemoryDesc(w.shape, "f32", "nchw"))
    np.testing.assert_allclose(forward.reference(x, w), y.detach().numpy())
    found = PReLUBackward(forward).reference(x, w, diff)
    np.testing.assert_allclose(found.diff_src, src.grad.numpy())
    np.testing.assert_allclose(found.diff_weights.ravel(), slopes.grad.numpy())


def test_sums_of_slopes_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(0)
    shapes = ((8, 64, 30, 31), "nhwc", (1, 64, 1, 1)), ((7, 33, 40, 40), "nchw", (1, 1, 1, 1))
    for dims, format, weights in shapes:
        forward = PReLU(MemoryDesc(dims, "f32", format), MemoryDesc(weights, "f32", "nchw"))
        made = PReLUBackward(forward)
        given = [rl.tensor(rng.standard_normal(made.descs[name].dims), made.descs[name].layout, dtype="f32")
                 for name in made.inputs]  # fmt: skip
        one, two = made(*given, threads=1), made(*given, threads=2)
        assert one.diff_weights.buffer.tobytes() == two.diff_weights.buffer.tobytes()
        np.testing.assert_allclose(
            one.diff_weights.numpy(), made.reference(*given).diff_weights, rtol=2e-5, atol=1e-3
        )


# --- shuffle -----------------------------------------------------------------------------------------------


@runs_code
@given(data=st.data(), descs=sides(2), seed=st.integers(0, 1 << 20))
@examples(40)
def test_shuffle_kernels_are_the_definitions(data, descs, seed) -> None:
    dst, src = descs
    if not src.dims:
        return
    axis = data.draw(st.integers(0, len(src.dims) - 1))
    size = src.dims[axis]
    group = data.draw(st.sampled_from([k for k in range(1, max(2, size + 1)) if size % k == 0]))
    made = Shuffle(src, axis, group, MemoryDesc(src.dims, src.dtype, dst.layout))
    check(made, seed)


@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4"])
@pytest.mark.parametrize("groups", [1, 2, 4, 8, 40])
def test_shuffle_is_pytorchs_and_its_gradient_the_inverse(format, groups) -> None:
    torch = pytest.importorskip("torch")
    x = np.arange(2 * 40 * 3 * 5, dtype=np.float32).reshape(2, 40, 3, 5)
    made = Shuffle(MemoryDesc(x.shape, "f32", format), 1, 40 // groups)
    y = made(rl.tensor(x, format))
    np.testing.assert_array_equal(y.numpy(), torch.channel_shuffle(torch.tensor(x), groups).numpy())
    back = ShuffleBackward(made)
    np.testing.assert_array_equal(back(y).numpy(), x)
    np.testing.assert_array_equal(back.reference(y), x)
    check(back)


def test_shuffles_that_do_not_fit() -> None:
    x = MemoryDesc((2, 6), "f32", "ab")
    for axis, group, message in ((2, 1, "no axis 2"), (1, 4, "don't divide"), (1, 0, "don't divide")):
        with pytest.raises(LayoutError, match=message):
            Shuffle(x, axis, group)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: EltwiseBackward(Eltwise(x, "gelu_erf"), diff_dst=rl.any),
        lambda x: EltwiseBackward(Eltwise(x, "elu", alpha=0.5), use_dst=True),
        lambda x: PReLU(x, MemoryDesc((1, 6, 1, 1), "f32", rl.any)),
        lambda x: PReLUBackward(PReLU(x, MemoryDesc((1, 6, 1, 1), "f32", rl.any))),
        lambda x: Shuffle(x, 1, 3),
        lambda x: ShuffleBackward(Shuffle(x, 1, 3)),
        lambda x: Reduction(x, "norm_lp_sum", 1, p=2, eps=0.5),
    ],
)
def test_text_and_pickles(make) -> None:
    made = make(MemoryDesc((2, 6, 3, 3), "f32", "nhwc"))
    for again in (remade(plain(made)), pickle.loads(pickle.dumps(made))):
        assert again.operation == made.operation
        assert again.descs == made.descs


@runs_code
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("use_dst", [False, True])
@pytest.mark.parametrize("function", [one for one in CASES if one.derivative().flat], ids=str)
def test_where_a_function_is_flat_by_a_condition_nothing_comes_back(function, use_dst):
    """Whatever ``diff_dst`` is, NaN as well."""
    if use_dst and function not in BY_DST:
        pytest.skip("the destination does not tell")
    x = np.array([-np.inf, -40, -3, -1, 0, 0.5, 1, 3, 40, np.inf, np.nan])
    given, diff = (one.ravel() for one in np.meshgrid(x, [np.nan, np.inf, -np.inf, 1]))
    desc = MemoryDesc(given.shape, "f32", "a")
    made = EltwiseBackward(Eltwise(desc, function), use_dst=use_dst)
    check(made, arrays={name: diff if name == "diff_dst" else given for name in made.inputs})
