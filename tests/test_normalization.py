"""Layer and group normalisation: machine code against the definition in double precision, in any format."""

from __future__ import annotations

import ctypes
import importlib
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from elementwise import check
from fences import output_of
from relayout import LayoutError, MemoryDesc, Unsupported
from relayout.primitives import GroupNormalization, LayerNormalization
from relayout.primitives.post_ops import BinaryOp, Function, Sum
from strategies import examples
from test_pooling import FORMATS, TARGETS, laid_out, sources
from test_values import NEEDS, can_run, undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
kernel = importlib.import_module("relayout.kernels.reduce.normalization")

runs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


@st.composite
def normalizations(draw, dtype="f32", post_ops=True, global_stats=True):
    """A normalisation of any source, perhaps to another format."""
    src = draw(sources(dtype))
    dst = None
    if draw(st.integers(0, 3)) == 0:
        dst = MemoryDesc(src.dims, "f32", draw(st.sampled_from(FORMATS[len(src.dims) - 2])))
    given = {name: draw(st.booleans()) for name in ("scale", "shift", "statistics")}
    if global_stats and draw(st.integers(0, 3)) == 0:
        given |= {"statistics": False, "use_global_stats": True}
    given |= {"dst": dst, "epsilon": draw(st.sampled_from((1e-5, 0.5)))}
    if post_ops:
        gate = MemoryDesc((1, src.dims[1], *(1 for _ in src.dims[2:])), "f32", rl.any)
        given["post_ops"] = draw(
            st.sampled_from(
                ((), (), ("relu",), (Function("tanh"), BinaryOp("mul", gate)), (Sum(0.5), "relu"))
            )
        )
    if draw(st.booleans()):
        count = draw(st.integers(1, len(src.dims)))
        return LayerNormalization(src, axes=-count, rms=draw(st.booleans()), **given)
    divisors = [n for n in range(1, src.dims[1] + 1) if src.dims[1] % n == 0]
    return GroupNormalization(src, groups=draw(st.sampled_from(divisors)), **given)


def numbers(made, seed, loc=0.0, scale=1.0):
    """Arrays for all inputs, that of the source around a number."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(made.descs[name].dims).astype(np.float32) for name in made.inputs}
    if "variance" in arrays:
        arrays["variance"] = np.abs(arrays["variance"]) + np.float32(0.25)
    return arrays | {"src": (scale * arrays["src"] + loc).astype(np.float32)}


def by_output(made, found):
    return dict(zip(made.outputs, (found,) if len(made.outputs) == 1 else found, strict=True))


def assert_close(made, tensors, **kept):
    """A call is what the definition says, to within a few roundings of results that are about 1."""
    found = by_output(made, made(*tensors, **kept))
    expected = by_output(made, made.reference(*tensors))
    largest = {"mean": np.abs(tensors[0].numpy()).max(initial=0.0)}
    for name, tensor in found.items():
        got, wanted = tensor.numpy(), expected[name]
        size = largest.get(name, np.abs(wanted).max(initial=1e-3))
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6 * size, err_msg=f"{name} of {made!r}")


# --- against the definition --------------------------------------------------------------------------------


@runs_code
@examples(80)
@given(normalizations(), st.integers(0, 99))
def test_code_agrees_with_the_definition_and_writes_nothing_else(made, seed):
    check(made, seed)
    assert "NumPy" not in made.implementation


@runs_code
@examples(60)
@given(
    normalizations(post_ops=False, global_stats=False), st.sampled_from((0.0, 1e3, -1e5)), st.integers(0, 99)
)
def test_a_large_mean_loses_nothing(made, mean, seed):
    arrays = numbers(made, seed, mean)
    tensors = [laid_out(made.descs[name], arrays[name]) for name in made.inputs]
    assert_close(made, tensors)


@runs_code
@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@examples(8)
@given(normalizations(post_ops=False), st.integers(0, 99))
def test_code_for_other_processors_agrees_too(cpu, made, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        arrays = numbers(made, seed, 10.0)
        assert_close(made, [laid_out(made.descs[name], arrays[name]) for name in made.inputs])


@runs_code
@pytest.mark.parametrize("dtype", ["bf16", "f16", "s8", "u8", "s32"])
@examples(10)
@given(st.data())
def test_data_types(dtype, data):
    made = data.draw(normalizations(dtype, post_ops=False))
    check(made, 3)


@runs_code
@pytest.mark.parametrize("table", ["bf16", "f16"])
@pytest.mark.parametrize(("src", "dst"), [("f32", "f32"), ("bf16", "bf16"), ("f16", "f32"), ("f32", "s8")])
def test_scales_of_other_types(table, src, dst):
    x, y = MemoryDesc((3, 5, 48), src, "abc"), MemoryDesc((3, 5, 48), dst, "abc")
    check(LayerNormalization(x, MemoryDesc((48,), table, "a"), True, y), 5)
    plane = MemoryDesc((5, 48), table, "ba")  # in an order that is not the source's
    check(LayerNormalization(x, plane, MemoryDesc((5, 48), "f32", "ba"), y, axes=(1, 2)), 6)


# --- accuracy ----------------------------------------------------------------------------------------------


@runs_code
@pytest.mark.parametrize("format", ["ab", "ba"])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 33, 200, 1000, 30_000, 300_000])
def test_long_rows_lose_nothing(format, length):
    src = MemoryDesc((3 if length > 1000 else 20, length), "f32", format)
    tried = (0.0, 1.0), (1e4, 1.0), (-3.0, 1e-3), (1e6, 3e4)
    for mean, deviation in share(tried, format == "ab") if length > 1000 else tried:
        made = LayerNormalization(src, statistics=True, epsilon=1e-12)
        array = numbers(made, length, mean, deviation)["src"]
        found, expected = made(laid_out(src, array)), made.reference(array)
        np.testing.assert_allclose(found.dst.numpy(), expected.dst, 2e-5, 2e-5)
        np.testing.assert_allclose(found.mean.numpy(), expected.mean, 1e-6, 1e-6 * deviation)
        np.testing.assert_allclose(found.variance.numpy(), expected.variance, 1e-5)


@runs_code
@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
def test_rows_whose_first_element_is_far_away(format):
    """The pivot is a bad one then, and the pass is done again."""
    made = GroupNormalization(MemoryDesc((2, 32, 9, 11), "f32", format), groups=8, statistics=True)
    array = numbers(made, 1, 1000.0)["src"]
    array[:, ::4, 0, 0] = 0  # where the first group of four, and each further one begins
    array[1, 4] = 7.25  # all others equal
    found, expected = made(laid_out(made.src, array)), made.reference(array)
    np.testing.assert_allclose(found.dst.numpy(), expected.dst, 2e-5, 2e-5)
    np.testing.assert_allclose(found.variance.numpy(), expected.variance, 1e-5)


@runs_code
@pytest.mark.parametrize("format", ["abc", "cba", "aBc8b"])
def test_given_statistics_are_used_as_they_are(format):
    """A row's own would make both sources the same."""
    x = np.random.default_rng(0).standard_normal((3, 16, 5)).astype(np.float32)
    src = MemoryDesc(x.shape, "f32", format)
    for made in (
        LayerNormalization(src, epsilon=0.0, use_global_stats=True),
        GroupNormalization(src, groups=4, epsilon=0.0, use_global_stats=True),
    ):
        mean = np.full(made.mean.dims, 2.0, np.float32)
        variance = np.full(made.variance.dims, 4.0, np.float32)
        for one in (x, 2 * x + 3):
            found = made(rl.tensor(one, src), mean, variance)
            np.testing.assert_allclose(found.numpy(), (one - 2) / 2, rtol=1e-6, atol=1e-6)


@runs_code
def test_constant_rows_are_zero():
    for number in (0.0, 0.1, -1e30):
        made = LayerNormalization(MemoryDesc((3, 37), "f32", "ab"), statistics=True)
        found = made(np.full((3, 37), number, np.float32))
        np.testing.assert_array_equal(found.dst.numpy(), 0)
        np.testing.assert_array_equal(found.variance.numpy(), 0)
        np.testing.assert_array_equal(found.mean.numpy(), np.float32(number))


@runs_code
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 20])
def test_a_row_with_a_number_that_is_none_is_nan_and_others_are_not(bad, place):
    array = np.random.default_rng(0).standard_normal((4, 40)).astype(np.float32)
    array[1, place] = bad
    for format in ("ab", "ba"):
        got = LayerNormalization(MemoryDesc((4, 40), "f32", format))(
            laid_out(MemoryDesc((4, 40), "f32", format), array)
        )
        assert np.isnan(got.numpy()).all(axis=1).tolist() == [False, True, False, False]
        assert np.isfinite(got.numpy()[[0, 2, 3]]).all()


@examples(30)
@given(st.integers(1, 12), st.floats(-100, 100), st.floats(0.01, 100), st.integers(0, 99))
def test_definition(length, shift, scale, seed):
    """Normalised rows have mean 0 and variance 1, whatever was added, or multiplied."""
    x = np.random.default_rng(seed).standard_normal((3, length + 1))
    made = LayerNormalization(MemoryDesc(x.shape, "f32", "ab"), epsilon=0)
    y = made.reference(x)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-9)
    np.testing.assert_allclose(y.var(-1), 1, 1e-9)
    np.testing.assert_allclose(made.reference(x * scale + shift), y, 1e-5, 1e-7)


# --- how it is called --------------------------------------------------------------------------------------


@runs_code
@examples(20)
@given(sources(), st.integers(1, 3), st.booleans())
def test_the_destination_may_be_the_source(src, count, rms):
    for made in (
        LayerNormalization(src, True, True, src, axes=count, rms=rms),
        GroupNormalization(src, True, True, src, groups=1),
    ):
        tensors = [laid_out(made.descs[name], array) for name, array in numbers(made, 7).items()]
        expected = made(*tensors).numpy()
        made(*tensors, out=tensors[0])
        np.testing.assert_array_equal(tensors[0].numpy(), expected)


@runs_code
@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
def test_any_number_of_threads_gives_the_same(format, monkeypatch):
    monkeypatch.setenv("RELAYOUT_SHARING", "0")
    monkeypatch.setenv("RELAYOUT_THREADS", "3")
    src = MemoryDesc((3, 48, 21, 41), "f32", format)
    for made in (GroupNormalization(src, groups=8), LayerNormalization(src, axes=1)):
        x = rl.tensor(numbers(made, 6)["src"], src)
        one, three = made(x, threads=1), made(x, threads=3)
        assert made._program.steps[-1].parts > 1
        np.testing.assert_array_equal(one.numpy(), three.numpy())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no mprotect")
@runs_code
def test_nothing_outside_of_the_buffers_is_touched():
    output_of(
        """
        from fences import arena, run_between
        import relayout as rl
        from relayout.primitives import GroupNormalization, LayerNormalization
        arenas = [arena(1 << 17) for _ in range(9)]
        for text in ("nchw", "nhwc", "nChw16c", "NCHW4"):
            for kind in ("f32", "bf16"):
                src = rl.MemoryDesc((2, 20, 5, 7), kind, text)
                for groups in (1, 2, 4, 5, 20):
                    run_between(GroupNormalization(src, True, True, groups=groups, statistics=True), arenas)
                for axes in (1, 2, 3):
                    run_between(LayerNormalization(src, True, True, axes=axes, statistics=True), arenas)
        for n in (1, 3, 17, 65, 100, 390):
            for text in ("ab", "ba"):
                src = rl.MemoryDesc((21, n), "f32", text)
                run_between(LayerNormalization(src, True, True, statistics=True), arenas)
                run_between(LayerNormalization(src, True, rms=True, post_ops="relu"), arenas)
        """
    )


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_for_all_processors_calls_no_library(cpu, triple):
    machine = machine_.machine(cpu, triple)
    what = kernel.Normalized(False, 1e-5, False, False, False, False)
    for format in ("abc", "acb"):
        for dtype in ("f32", "bf16"):
            src = MemoryDesc((2, 21, 50), dtype, format)
            text = kernel.module(kernel.planned(what, src, src, (2,), (), ()), machine)
            assert undefined(compile_.assemble(text, machine)) == set()


@pytest.mark.parametrize("dims", [(0, 3), (3, 0), (0, 0)])
def test_empty_tensors(dims):
    src, x = MemoryDesc(dims, "f32", "ab"), np.zeros(dims, np.float32)
    found = LayerNormalization(src, True, statistics=True)(x, np.ones(dims[1:], np.float32))
    assert found.dst.numpy().shape == dims
    assert found.mean.numpy().shape == dims[:1]
    if dims[1]:
        assert GroupNormalization(src, groups=3)(x).numpy().shape == dims


def test_what_follows_and_what_it_costs():
    src = MemoryDesc((2, 20, 3, 5), "s8", "nChw8c")
    made = LayerNormalization(src, MemoryDesc((3, 5), "bf16", rl.any), axes=(-1, 2), statistics=True)
    assert made.dst == MemoryDesc(src.dims, "f32", "nChw8c")
    assert made.scale == MemoryDesc((3, 5), "bf16", "ab")
    assert made.mean.dims == (2, 20)
    assert made.axes == LayerNormalization(src, axes=2).axes == (2, 3)
    assert LayerNormalization(src, axes=4, statistics=True).mean.dims == (1,)
    assert LayerNormalization(src, rms=True, statistics=True).outputs == ("dst", "variance")
    [one] = made.candidates()
    assert one.cost > 0
    assert made.flops == 8 * 2 * 20 * 3 * 5
    assert GroupNormalization(src, groups=4, statistics=True).variance.dims == (2, 4)


def test_what_is_wrong_is_said():
    src = MemoryDesc((2, 6, 4), "f32", "abc")
    with pytest.raises(LayoutError, match=r"\(0, 1\) are not the last ones"):
        LayerNormalization(src, axes=(0, 1))
    with pytest.raises(LayoutError, match="has 3 axes; -4 of them"):
        LayerNormalization(src, axes=-4)
    with pytest.raises(LayoutError, match="scale f32:a:6 must be 4"):
        LayerNormalization(src, MemoryDesc((6,), "f32", "a"))
    with pytest.raises(LayoutError, match="shift must be a MemoryDesc"):
        LayerNormalization(src, True, 3)
    with pytest.raises(Unsupported, match="scale s8:a:4 must hold"):
        LayerNormalization(src, MemoryDesc((4,), "s8", "a"))
    with pytest.raises(LayoutError, match="4 groups do not divide the 6 channels"):
        GroupNormalization(src, groups=4)
    with pytest.raises(LayoutError, match="at least 2 axes"):
        GroupNormalization(MemoryDesc((2,), "f32", "a"), groups=1)
    with pytest.raises(LayoutError, match="must not be negative"):
        GroupNormalization(src, groups=2, epsilon=-1)
    with pytest.raises(LayoutError, match=r"either given \(use_global_stats\) or results"):
        GroupNormalization(src, groups=2, statistics=True, use_global_stats=True)
    with pytest.raises(LayoutError, match="needs a format"):
        LayerNormalization(MemoryDesc((2, 3), "f32", rl.any))


# --- facts from outside ------------------------------------------------------------------------------------


@runs_code
def test_the_same_as_torch():
    torch = pytest.importorskip("torch")
    x, scale, shift = torch.randn(4, 24, 6, 5), torch.randn(24), torch.randn(24)
    for format in ("nchw", "nhwc", "nChw8c", "nChw16c"):
        src = MemoryDesc(tuple(x.shape), "f32", format)
        for groups in (1, 2, 3, 8, 24):
            expected = torch.nn.functional.group_norm(x, groups, scale, shift, 1e-3).numpy()
            made = GroupNormalization(src, True, True, groups=groups, epsilon=1e-3)
            got = made(laid_out(src, x.numpy()), scale.numpy(), shift.numpy()).numpy()
            np.testing.assert_allclose(got, expected, 1e-4, 1e-5)
        for count in (1, 2, 3):
            dims = x.shape[-count:]
            scales, shifts = torch.randn(dims), torch.randn(dims)
            expected = torch.nn.functional.layer_norm(x, dims, scales, shifts, 1e-3).numpy()
            made = LayerNormalization(src, True, True, axes=count, epsilon=1e-3)
            got = made(laid_out(src, x.numpy()), scales.numpy(), shifts.numpy()).numpy()
            np.testing.assert_allclose(got, expected, 1e-4, 1e-5)
            expected = torch.nn.functional.rms_norm(x, dims, scales, 1e-3).numpy()
            made = LayerNormalization(src, True, axes=count, epsilon=1e-3, rms=True)
            got = made(laid_out(src, x.numpy()), scales.numpy()).numpy()
            np.testing.assert_allclose(got, expected, 1e-4, 1e-5)


@runs_code
@pytest.mark.parametrize(("tag", "dtype"), [("abc", "f32"), ("bac", "f32"), ("abc", "bf16")])
def test_the_same_as_onednn(tag, dtype):
    """Results and statistics, in training; the data type of both sides is that of the source."""
    dnnl = importlib.import_module("relayout.bench.peers.dnnl")
    if (library := dnnl.library()) is None:
        pytest.skip("oneDNN is not installed")
    src = MemoryDesc((5, 7, 50), dtype, tag)
    made = LayerNormalization(src, True, True, epsilon=1e-3, statistics=True)
    tensors = [rl.tensor(array, made.descs[name]) for name, array in numbers(made, 1, 3.0).items()]
    training, scale_and_shift = 64, 2 | 4  # dnnl_forward_training, dnnl_use_scale and dnnl_use_shift
    handle, number = dnnl.Handle, ctypes.c_int
    library.c.dnnl_layer_normalization_forward_primitive_desc_create.argtypes = [
        *(
            ctypes.POINTER(handle),
            handle,
            number,
            handle,
            handle,
            handle,
            ctypes.c_float,
            ctypes.c_uint,
            handle,
        )
    ]
    one = dnnl.Primitive(library)
    both, few = one.described(src.dims, dtype, tag), one.described(src.dims[:2], "f32", "ab")
    table = one.described(src.dims[2:], "f32", "a")
    how = "layer_normalization_forward", library.engine, training, both, both, few, 1e-3, scale_and_shift
    try:
        desc = one.primitive_desc(*how, one.attributes())
    except dnnl.Refused:
        pytest.skip(f"oneDNN has no {dtype} for this processor")
    found = {name: rl.tensor(np.zeros(made.descs[name].dims), made.descs[name]) for name in made.outputs}
    arguments = {1: both, 51: table, 52: table, 17: both, 49: few, 50: few}  # DNNL_ARG_SRC, SCALE, SHIFT, ...
    buffers = [tensor.buffer for tensor in (*tensors, *found.values())]
    memories = [one.memory(desc, data) for desc, data in zip(arguments.values(), buffers, strict=True)]
    one.ready(desc, list(zip(arguments, memories, strict=True)))
    one()
    for name, ours in by_output(made, made(*tensors)).items():
        close = 2.0**-7 if dtype == "bf16" and name == "dst" else 1e-5
        np.testing.assert_allclose(
            ours.numpy().astype(np.float32),
            found[name].numpy().astype(np.float32),
            close,
            close,
            err_msg=name,
        )


def test_the_definition_is_that_of_onnx():
    onnx = pytest.importorskip("onnx")
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    x = np.random.default_rng(0).standard_normal((2, 6, 4, 5)).astype(np.float32)
    scale = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)

    def ran(kind, inputs, **attributes):
        node = onnx.helper.make_node(kind, [*inputs], ["y"], **attributes)
        values = [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
            for name, array in inputs.items()
        ]
        out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
        model = onnx.helper.make_model(
            onnx.helper.make_graph([node], "one", values, [out]),
            opset_imports=[onnx.helper.make_opsetid("", 21)],
        )
        return evaluator(model).run(None, inputs)[0]

    src = MemoryDesc(x.shape, "f32", "nchw")
    expected = ran("LayerNormalization", {"x": x, "scale": scale, "b": 1 - scale}, axis=-2, epsilon=1e-2)
    made = LayerNormalization(src, True, True, axes=-2, epsilon=1e-2)
    np.testing.assert_allclose(made.reference(x, scale, 1 - scale), expected, 1e-4, 1e-5)
    channels = scale.ravel()[:6]
    expected = ran(
        "GroupNormalization", {"x": x, "s": channels, "b": 1 - channels}, num_groups=3, epsilon=1e-2
    )
    made = GroupNormalization(src, True, True, groups=3, epsilon=1e-2)
    np.testing.assert_allclose(made.reference(x, channels, 1 - channels), expected, 1e-4, 1e-5)
    expected = ran("InstanceNormalization", {"x": x, "s": channels, "b": 1 - channels}, epsilon=1e-2)
    made = GroupNormalization(src, True, True, groups=6, epsilon=1e-2)
    np.testing.assert_allclose(made.reference(x, channels, 1 - channels), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("dims", [(5, 64), (3, 768), (4, 800), (2, 4096), (2, 40000), (3, 33)])
def test_statistics_of_bf16_do_not_depend_on_lanes(dims):
    """Rows of whole registers are taken apart into elements of even and of odd number."""
    x = rl.tensor(3 + np.random.default_rng(0).standard_normal(dims).astype(np.float32), "ab", "bf16")
    for rms in (False, True):
        made = LayerNormalization(x.desc, rms=rms)
        exact = np.asarray(made.reference(x), np.float64)
        np.testing.assert_allclose(made(x).numpy().astype(np.float64), exact, rtol=2.0**-7, atol=2e-3)


@pytest.mark.turns(2)
@pytest.mark.parametrize("length", [16, 768, 2064, 4096, 4112, 100])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("scaled", [True, False])
def test_many_rows_of_bf16_are_as_few_of_them(length: int, rms: bool, scaled: bool) -> None:
    """Of many rows vectors may hold elements of even number first, and scale and shift with them."""
    random = np.random.default_rng(length)
    data = (random.standard_normal((33, length)) * 3 + 5).astype(np.float32)
    data[3, 1], data[4, 2], data[5, 3], data[6] = np.nan, np.inf, 3e38, 1
    tables = [random.standard_normal(length).astype(np.float32) for _ in range(scaled * (2 - rms))]
    if scaled:
        tables[0][7], tables[0][9] = np.inf, np.nan

    def made(data: np.ndarray) -> np.ndarray:
        x = rl.tensor(data, "ab", "bf16")
        layer = LayerNormalization(x.desc, scale=scaled, shift=scaled and not rms, rms=rms)
        dims = [layer.descs[name].dims for name in layer.inputs[1:]]
        given = [rl.tensor(t.reshape(to)) for t, to in zip(tables, dims, strict=True)]
        found = layer(x, *given)
        layer(x, *given, out=x)
        assert (x.buffer == found.buffer).all()
        return found.numpy().view(np.uint16)

    whole = made(data)
    for first in range(0, 33, 11):
        np.testing.assert_array_equal(made(data[first : first + 11]), whole[first : first + 11])
