"""Gradients of weights: kernels against definitions, definitions against finite differences, equal bits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl
from covering import covering
from elementwise import check, machine_code
from relayout.errors import LayoutError, Unsupported
from relayout.jit.compile import compiled
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.gradient import row_of
from relayout.kernels.conv.gradient_text import ENTRY, gradient_module
from relayout.primitives import (
    Convolution,
    ConvolutionBackwardWeights,
    InnerProduct,
    InnerProductBackwardData,
    InnerProductBackwardWeights,
)
from relayout.primitives.backward.weights import ways
from relayout.primitives.plain import plain, remade
from relayout.processors import limited
from relayout.tensor import Tensor, address, aligned, allocate
from strategies import tried

FORMATS = ("nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4", "CHWN4", "b_fs_yx_fsv32")
RNG = np.random.default_rng(7)
LINE = 64
NOTE = """
define internal void @note(ptr %line, i32 %write, i32 %near, i32 %data) noinline {
  %count = load i64, ptr $log
  %more = add i64 %count, 1
  store i64 %more, ptr $log
  %at = getelementptr i64, ptr $log, i64 %more
  %number = ptrtoint ptr %line to i64
  store i64 %number, ptr %at
  ret void
}
"""


def desc(dims: tuple[int, ...], text: Any = "nhwc", kind: str = "f32") -> rl.MemoryDesc:
    return rl.MemoryDesc(dims, kind, text)


def made_for(src: rl.MemoryDesc, weights: rl.MemoryDesc, diff: Any = None, **windows: Any) -> Any:
    """The gradient of a convolution's weights, and of its bias."""
    groups = weights.dims[0] if len(weights.dims) > len(src.dims) else 1
    outputs = weights.dims[1] * groups if groups > 1 or len(weights.dims) > 4 else weights.dims[0]
    forward = Convolution(src, weights, desc((outputs,), "a"), **windows)
    wanted = None if diff is None else desc(forward.dst.dims, diff)
    return ConvolutionBackwardWeights(forward, diff_dst=wanted)


@settings(max_examples=tried(40), deadline=None)
@given(st.data())
def test_the_kernel_does_what_the_definition_says(data):
    of = data.draw
    groups = of(st.sampled_from((0, 0, 1, 2, 3, 16)))
    inputs, outputs = (of(st.sampled_from((1, 2, 4, 5, 16, 20, 33))) for _ in range(2))
    if groups == 16:
        inputs, outputs = of(st.sampled_from(((1, 1), (1, 2), (4, 4), (2, 4), (8, 8), (16, 16))))
    kernel = tuple(of(st.integers(1, 3)) for _ in range(2))
    windows = {
        "strides": tuple(of(st.integers(1, 3)) for _ in range(2)),
        "dilation": tuple(of(st.integers(1, 2)) for _ in range(2)),
        "padding": tuple((of(st.integers(0, 2)), of(st.integers(0, 2))) for _ in range(2)),
    }
    least = [
        max(1, (k - 1) * d + 1 - sum(p))
        for k, d, p in zip(kernel, windows["dilation"], windows["padding"], strict=True)
    ]
    sizes = tuple(size + of(st.integers(0, 9)) for size in least)
    src = desc((of(st.integers(1, 3)), max(1, groups) * inputs, *sizes), of(st.sampled_from(FORMATS)))
    text = of(st.sampled_from((rl.any, "oihw", "Ohwi16o", "OIhw16i16o", "ohwi")))
    if groups:
        text = of(st.sampled_from((rl.any, "goihw", "Goihw16g")))
    dims = (groups,) * bool(groups) + (outputs, inputs, *kernel)
    check(made_for(src, desc(dims, text), of(st.sampled_from(FORMATS)), **windows), of(st.integers(0, 99)))


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("text", ["nhwc", "nChw16c", "nchw"])
def test_storage_of_half_the_width(kind, text):
    forward = Convolution(desc((2, 20, 6, 7), text, kind), desc((24, 20, 3, 3), "oihw", kind), padding=1)
    check(ConvolutionBackwardWeights(forward))


@pytest.mark.parametrize("text", ["nhwc", "nChw16c"])
@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride"),
    [((256, 64), 13, 1, 1), ((512, 40), 7, 3, 1), ((264, 64), 15, 3, 2), ((256, 128), 12, 1, 2)],
)
def test_packed_sources_and_outputs(text, channels, size, kernel, stride):
    inputs, outputs = channels
    made = made_for(
        desc((3, inputs, size, size), text),
        desc((outputs, inputs, kernel, kernel), rl.any),
        text,
        padding=kernel // 2,
        strides=stride,
    )
    if machine_code():
        assert "machine code" in made.implementation
    check(made)


@pytest.mark.parametrize("text", ["nhwc", "nChw16c", "nchw"])
@pytest.mark.parametrize(
    ("groups", "each", "kernel", "stride"),
    [(33, (4, 4), 3, 1), (9, (16, 16), 3, 2), (5, (32, 40), 3, 1), (132, (1, 1), 3, 2), (20, (8, 8), 5, 1),
     (40, (4, 8), 2, 1), (9, (16, 16), 4, 3)],
)  # fmt: skip
def test_narrow_groups(text, groups, each, kernel, stride):
    """Taps of a row at once, and in ``nhwc`` both tensors packed for each block of outputs."""
    outputs, inputs = each
    made = made_for(
        desc((2, groups * inputs, 9, 21), text),
        desc((groups, outputs, inputs, kernel, kernel), rl.any),
        text,
        padding=kernel // 2,
        strides=stride,
    )
    if text == "nhwc" and inputs == outputs and "at once" in made.implementation:
        assert "source packed" in made.implementation
    check(made)


@given(
    source=st.integers(1, 20),
    kernel=st.integers(2, 6),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    padding=st.integers(0, 6),
    behind=st.integers(0, 6),
)
def test_rows_are_all_products(source, kernel, stride, dilation, padding, behind):
    """Each pixel of the result meets each of its pixels of the source once, by the right tap, in order."""
    width = (source + padding + behind - (kernel - 1) * dilation - 1) // stride + 1
    if width < 1:
        return
    three = ((1, 1, n) for n in (source, width, kernel, stride, dilation))
    row = row_of(Geometry(1, 1, 16, 16, *three, (0, 0, padding)))
    if row is None:
        return
    turns = [*row.front, *([row.turn] * row.turns), *row.behind]
    found = [
        (tap, y - back, y * stride + pixel - padding)
        for y, turn in enumerate(turns)
        for pixel, uses in turn.pixels
        for tap, back in uses
    ]
    wanted = [
        (tap, y, x)
        for tap in range(kernel)
        for y in range(width)
        for x in [y * stride + tap * dilation - padding]
        if 0 <= x < source
    ]
    assert sorted(found, key=lambda one: one[0]) == wanted


@pytest.mark.parametrize("text", ["nhwc", "nChw16c"])
@pytest.mark.parametrize("each", [1, 8, 16])
def test_bits_do_not_depend_on_the_threads_that_are_planned_for(text, each):
    found = []
    for threads in (1, 2):
        with limited(threads):
            forward = Convolution(
                desc((4, 128, 30, 30), text), desc((128 // each, each, each, 3, 3), rl.any), padding=1
            )
            made = ConvolutionBackwardWeights(forward)
            rng = np.random.default_rng(3)
            x, g = (
                rl.tensor(rng.standard_normal(d.dims), d.layout, d.dtype) for d in (made.src, made.diff_dst)
            )
            found.append(made(x, g, threads=threads).buffer.tobytes())
    assert found[0] == found[1]


@pytest.mark.turns(2)
@pytest.mark.parametrize("text", ["nhwc", "nChw16c"])
@pytest.mark.parametrize(("channels", "groups", "kernel"), [(128, 1, 1), (64, 1, 3), (256, 16, 3), (3, 1, 7)])
def test_all_plans_give_the_same_bits(text, channels, groups, kernel):
    """Of those that a contest measures, with one thread and with two."""
    dims = (groups,) * (groups > 1) + (max(64, channels) // groups, channels // groups, kernel, kernel)
    found = {}
    for threads in (1, 2):
        with limited(threads):
            src = desc((2, channels, 20, 24), text if channels > 3 else "nhwc")
            made = made_for(src, desc(dims, rl.any), text, padding=kernel // 2)
            gradient = made._as_gradient(made.descs)
            rng = np.random.default_rng(3)
            known = {name: made.descs[name] for name in made.inputs}
            read = {
                name: rl.tensor(rng.standard_normal(d.dims), d.layout, d.dtype) for name, d in known.items()
            }
            for way in ways(gradient):
                program = made._whole(gradient, str(way))
                assert program.note == str(way)
                out = {name: Tensor(made.descs[name], allocate(made.descs[name])) for name in made.outputs}
                program({name: address(one.buffer) for name, one in (read | out).items()})
                found[threads, str(way)] = b"".join(one.buffer.tobytes() for one in out.values())
    assert len(set(found.values())) == bool(found)
    assert not machine_code() or len(found) > 3


@pytest.mark.parametrize(
    ("text", "window", "sizes"),
    covering(["nhwc", "nChw16c"], [(1, 1), (1, 2), (3, 1)], [((64, 192), 32), ((208, 48), 29)]),
)
def test_what_chunks_read_is_prefetched(text, window, sizes):
    """All of it but the first chunk, and little else: prefetches are made to note their addresses.

    Where a chunk is smaller than the next, some of that is left out; where it is larger, more is prefetched.
    """
    if not machine_code():
        pytest.skip("no machine code")
    (kernel, stride), ((inputs, outputs), size) = window, sizes
    weights = desc((outputs, inputs, kernel, kernel), rl.any)
    with limited(1):
        src = desc((4, inputs, size, size), text)
        made = made_for(src, weights, text, strides=stride, padding=kernel // 2)
        [plan, *_] = [way.plan for way in ways(made._as_gradient(made.descs)) if way.plan.ahead]
    assert plan.chunks > 3
    log = np.zeros(1 << 22, np.int64)  # how many there are, and each
    called, given = "call void @llvm.prefetch.p0(", f"inttoptr (i64 {address(log)} to ptr)"
    module = gradient_module(plan)
    assert called in module
    kernel_of = compiled(module.replace(called, "call void @note(") + NOTE.replace("$log", given), [ENTRY])[
        ENTRY
    ]
    places = []
    for name in ("src", "diff_dst"):
        one = rl.tensor(np.zeros(made.descs[name].dims, np.float32), made.descs[name].layout)
        places.append(Tensor(one.desc, np.arange(one.buffer.size // 4, dtype=np.float32).view(np.uint8)))
    buffers = [aligned(one.buffer.size) for one in places]
    sums, slots = (aligned(max(1, count)) for count in (plan.shares * plan.size, plan.slot))
    operands = np.array([address(buffers[1]), address(slots)], np.int64)
    kernel_of(address(buffers[0]), address(sums), address(operands), 0, 1)
    for buffer, one, step in zip(buffers, places, (stride, 1), strict=True):
        first = address(buffer) // LINE
        asked = np.unique(log[1 : log[0] + 1] // LINE) - first
        asked = asked[(asked >= 0) & (asked < buffer.size // LINE)]
        read = np.unique(one.numpy()[:, :, ::step, ::step].astype(np.int64) * 4 // LINE)
        assert len(np.setdiff1d(asked, read)) <= 0.1 * len(read)
        assert len(np.setdiff1d(read, asked)) <= (1.1 / plan.chunks + 0.1) * len(read)


def test_a_contest_is_held_once_for_equal_problems(monkeypatch, tmp_path):
    if not machine_code():
        pytest.skip("nothing is measured")
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    forward = Convolution(desc((2, 129, 24, 24)), desc((64, 129, 3, 3), rl.any), padding=1)
    one, two = (ConvolutionBackwardWeights(forward, diff_weights=rl.any) for _ in range(2))
    choice = one.tune()
    assert choice is not None
    assert "convolution backward weights f32:nhwc:2x129x24x24 * " in choice.problem
    two._compiled()
    assert two._program.note == one._program.note


@pytest.mark.parametrize("dims", [(3, 8, 30), (2, 4, 5, 6, 7)])
def test_one_and_three_spatial_axes(dims):
    spatial = len(dims) - 2
    weights = desc((12, dims[1], *(3,) * spatial), rl.any)
    plain_text = {1: "nwc", 3: "ncdhw"}[spatial]
    check(ConvolutionBackwardWeights(Convolution(desc(dims, plain_text), weights, padding=1)))


@pytest.mark.parametrize("text", ["nhwc", "nChw16c", "nchw"])
def test_bits_do_not_depend_on_the_number_of_threads(text):
    for kernel, groups in ((1, 1), (3, 1), (3, 16)):
        channels = 64
        dims = (groups,) * (groups > 1) + (channels // groups, channels // groups, kernel, kernel)
        forward = Convolution(desc((4, channels, 28, 28), text), desc(dims, rl.any), padding=kernel // 2)
        made = ConvolutionBackwardWeights(forward)
        x, g = (rl.tensor(RNG.standard_normal(d.dims), d.layout, d.dtype) for d in (made.src, made.diff_dst))
        one, two = (made(x, g, threads=threads).buffer.tobytes() for threads in (1, 2))
        assert one == two


@pytest.mark.parametrize("spatial", [0, 2])
@pytest.mark.parametrize("text", ["plain", "last", rl.any])
def test_inner_products(spatial, text):
    formats = {("plain", 0): "nc", ("last", 0): "cn", ("plain", 2): "nchw", ("last", 2): "nhwc"}
    src = desc((5, 40, *(3, 2)[:spatial]), formats.get((text, spatial), "nc" if not spatial else "nChw8c"))
    weights = desc((50, *src.dims[1:]), rl.any if text is rl.any else ("oihw" if spatial else "oi"))
    forward = InnerProduct(src, weights, desc((50,), "a"))
    check(InnerProductBackwardWeights(forward))
    check(InnerProductBackwardData(forward))
    check(InnerProductBackwardData(forward, weights=rl.any, diff_src=rl.any))


@pytest.mark.parametrize(("dims", "text"), [((2, 3, 1), "abC2c"), ((1, 19, 3, 1), "bcDa3d3d")])
def test_padding_of_single_pixels_is_zeroed(dims, text):
    """An axis of one element in blocks is merged with its neighbours without its padding."""
    forward = InnerProduct(desc(dims, text), desc((4, *dims[1:]), rl.any))
    made = InnerProductBackwardData(forward)
    given = [rl.tensor(np.ones(made.descs[name].dims), made.descs[name]) for name in made.inputs]
    buffer = np.ones(made.diff_src.nbytes // 4, np.float32)
    made(*given, out=rl.from_buffer(buffer, made.diff_src))
    assert sorted(buffer) == [0] * (buffer.size - np.prod(dims)) + [4] * np.prod(dims)


def test_definitions_against_finite_differences():
    src, weights = desc((2, 4, 5, 6)), desc((2, 3, 2, 3, 2), "goihw")
    forward = Convolution(
        src, weights, desc((6,), "a"), strides=(1, 2), dilation=(2, 1), padding=[(1, 0), (0, 2)]
    )
    made = ConvolutionBackwardWeights(forward)
    x, w, b = (RNG.standard_normal(one.dims) for one in (src, weights, forward.bias))
    g = RNG.standard_normal(forward.dst.dims)
    found = made.reference(x, g)
    differences(lambda w: float((forward.reference(x, w, b) * g).sum()), w, found.diff_weights)
    differences(lambda b: float((forward.reference(x, w, b) * g).sum()), b, found.diff_bias)
    flat = InnerProduct(desc((2, 3, 2, 2)), desc((4, 3, 2, 2), "oihw"), desc((4,), "a"))
    x, w, b = (RNG.standard_normal(one.dims) for one in (flat.src, flat.weights, flat.bias))
    g = RNG.standard_normal(flat.dst.dims)
    found = InnerProductBackwardWeights(flat).reference(x, g)
    differences(lambda w: float((flat.reference(x, w, b) * g).sum()), w, found.diff_weights)
    differences(lambda b: float((flat.reference(x, w, b) * g).sum()), b, found.diff_bias)
    back = InnerProductBackwardData(flat).reference(w, g)
    differences(lambda x: float((flat.reference(x, w, b) * g).sum()), x, back)


def differences(of: Any, at: np.ndarray, gradient: np.ndarray, step: float = 1e-4) -> None:
    """A gradient is what central differences say; the functions are linear."""
    for place in np.ndindex(at.shape):
        more, less = at.copy(), at.copy()
        more[place] += step
        less[place] -= step
        assert abs((of(more) - of(less)) / (2 * step) - gradient[place]) < 1e-7


def test_formats_follow_the_forward_pass_or_any():
    forward = Convolution(desc((2, 32, 8, 8), "nchw"), desc((64, 32, 3, 3), "oihw"), padding=1)
    made = ConvolutionBackwardWeights(forward)
    assert (made.src, made.diff_dst, made.diff_weights) == (forward.src, forward.dst, forward.weights)
    free = ConvolutionBackwardWeights(forward, src=rl.any, diff_dst=rl.any, diff_weights=rl.any)
    assert free.src.format == free.diff_dst.format != "nchw"
    if machine_code():
        best = Convolution(desc((2, 32, 8, 8)), desc((64, 32, 3, 3), rl.any), padding=1)
        assert free.diff_weights == best.weights
        assert "machine code" in free.implementation
        assert made.candidates()[0].cost > free.candidates()[0].cost


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("channels", [32, 5])
def test_any_is_what_forward_convolutions_read_fastest(kind: str, channels: int) -> None:
    """In bf16 pairs, where the processor multiplies pairs."""
    src = desc((2, channels, 8, 8), "nhwc", kind)
    forward = Convolution(src, desc((16, channels, 3, 3), rl.any, kind), padding=1)
    made = ConvolutionBackwardWeights(forward, diff_weights=rl.any)
    assert made.diff_weights == forward.weights
    check(made)


def test_what_is_made_is_pickled_and_written_as_text():
    forward = Convolution(desc((2, 8, 8, 8)), desc((8, 8, 3, 3), rl.any), desc((8,), "a"), padding=1)
    flat = InnerProduct(desc((2, 8), "nc"), desc((4, 8), "oi"))
    for made in (
        ConvolutionBackwardWeights(forward),
        InnerProductBackwardWeights(flat),
        InnerProductBackwardData(flat),
    ):
        for again in (pickle.loads(pickle.dumps(made)), remade(plain(made))):
            assert again.descs == made.descs
            assert again.operation == made.operation


def test_empty_tensors_give_zeros():
    forward = Convolution(desc((0, 8, 8, 8)), desc((8, 8, 3, 3), "oihw"), desc((8,), "a"))
    made = ConvolutionBackwardWeights(forward)
    found = made(*(rl.tensor(np.zeros(made.descs[name].dims, "f4"), "nhwc") for name in made.inputs))
    assert not found.diff_weights.numpy().any()
    assert not found.diff_bias.numpy().any()
    forward = Convolution(desc((1, 1, 1, 1)), desc((1, 1, 1, 1), "oihw"))
    check(ConvolutionBackwardWeights(forward))


def test_what_is_refused():
    src, weights = desc((2, 8, 8, 8)), desc((8, 8, 3, 3), "oihw")
    forward = Convolution(src, weights)
    with pytest.raises(LayoutError, match="forward must be a Convolution"):
        ConvolutionBackwardWeights(src)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match=r"diff_dst .* must be 2x8x6x6"):
        ConvolutionBackwardWeights(forward, diff_dst=src)
    with pytest.raises(Unsupported, match="no bias"):
        ConvolutionBackwardWeights(forward, diff_bias=desc((8,), "a"))
    with pytest.raises(Unsupported, match="post-ops"):
        ConvolutionBackwardWeights(Convolution(src, weights, post_ops="relu"))
    with pytest.raises(Unsupported, match="scales"):
        ConvolutionBackwardWeights(Convolution(src, weights, scale=desc((1,), "a")))
    whole = Convolution(desc((2, 8, 8, 8), "nhwc", "u8"), desc((8, 8, 3, 3), "oihw", "s8"))
    with pytest.raises(Unsupported, match="u8"):
        ConvolutionBackwardWeights(whole)
