"""Binary post-ops: tensors that take part behind a computation, in any format, held against the definition.

All numbers are quarters of small integers, so that f32 holds every intermediate result exactly: comparisons
come out as they do in double precision, and what differs from the definition is wrong. Memory is poisoned as
in :mod:`test_products`; a second part runs at the borders of pages that can't be touched.
"""

from __future__ import annotations

import importlib
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import close, numbers
from fences import output_of
from relayout import Layout, LayoutError, MemoryDesc
from relayout.errors import Unsupported
from relayout.kernels.conv.epilogue import Epilogue, Writer, operand_of
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, Sum, post_ops_of
from relayout.primitives import (
    BatchNormalization,
    Binary,
    Convolution,
    Eltwise,
    InnerProduct,
    Matmul,
    Pooling,
    Sequence,
    binary,
)
from strategies import examples, padding_offsets
from test_products import HERE, TYPES, Held, compiles, hosts, on, poisoned

calling = importlib.import_module("relayout.primitives.calling")
machines = importlib.import_module("relayout.targets.machine")

FORMATS = {
    2: ("ab", "ba", "aB16b"),
    3: ("abc", "acb", "bac"),
    4: ("nchw", "nhwc", "nChw16c", "CHWN4", "nChw4c"),
}
OPERANDS = ("f32", "bf16", "f16", "s8", "u8", "s32", "f8_e4m3")
APART = "in a pass of their own"


def check(made, seed=0, threads=None):
    """Run it on poisoned memory, and compare with its definition."""
    rng = np.random.default_rng(seed)
    held = {}
    for k, name in enumerate(made.inputs):
        desc = made.descs[name]
        array = numbers(desc.dims, desc.dtype.name, seed + k)
        if name == "variance":
            array = np.ones(desc.dims)
        elif name == "weights":
            array = rng.integers(-1, 2, desc.dims)
        held[name] = one = Held(desc, array)
        one.elements[padding_offsets(desc.layout)] = 0
        one.before = one.whole.copy()
    old = numbers(made.dst.dims, made.dst.dtype.name, seed + 9) if made.accumulates else None
    out = Held(made.dst, old)
    before = {"out": out.array} if made.accumulates else {}
    arrays = {name: one.array for name, one in held.items()}
    program = made._compiled()
    around = poisoned(program) if program is not None else []
    made(*(one.tensor for one in held.values()), out=out.tensor, threads=threads)
    what = f"{made} {[*map(str, made.post_ops)]} {made.implementation}"
    for one in held.values():
        one.check_untouched(what)
    out.check_written(what)
    for side in around:
        assert (side == 0xFF).all(), f"{what}: scratch overflows"
    close(out.array, made.reference(**arrays, **before), made.dst.dtype.name, what)


@pytest.mark.parametrize("sizes", [(1, 3, 7, 40), (1, 200, 9, 48), (1, 37, 5, 1)])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_a_value_for_each_row_of_a_product_needs_no_pass(sizes, kind):
    many, m, k, n = sizes
    each, dst = (MemoryDesc(dims, kind, "abc") for dims in ((many, m, 1), (many, m, n)))
    ops = [BinaryOp("add", MemoryDesc(each.dims, "f32", "abc")), "relu", BinaryOp("mul", each)]
    whole = MemoryDesc((many, m + 2, n + 3), kind, "abc").submemory(dst.dims, (0, 1, 2))
    for target in (dst, whole):
        src, weights = (MemoryDesc(dims, kind, "abc") for dims in ((many, m, k), (many, k, n)))
        made = Matmul(src, weights, None, target, post_ops=ops)
        check(made)
        assert APART not in made.implementation


@st.composite
def operands(draw, dst, algorithms=binary.ALGORITHMS):
    """A binary operation with an operand that broadcasts along any axes, in any format and of any type."""
    rank = len(dst.dims)
    all_axes, channel = (True,) * rank, rank - 1 if rank == 3 else 1
    full = draw(
        st.sampled_from((all_axes, (False,) * rank, tuple(axis == channel for axis in range(rank))))
        | st.tuples(*[st.booleans()] * rank)
    )
    dims = tuple(n if whole else 1 for n, whole in zip(dst.dims, full, strict=True))
    kind = draw(st.sampled_from(OPERANDS))
    how = draw(st.integers(0, 4))
    if how == 0:
        desc = MemoryDesc(dims, kind, rl.any)
    elif how == 1 and dims == dst.dims:
        desc = MemoryDesc(dims, kind, dst.layout)
    elif how == 2:  # a part of something larger
        larger = MemoryDesc(tuple(n + 2 for n in dims), kind, FORMATS[rank][draw(st.integers(0, 1))])
        desc = larger.submemory(dims, (1,) * rank)
    else:
        form = draw(st.sampled_from(FORMATS[rank]))
        desc = MemoryDesc(dims, kind, Layout(dims, form, offset=draw(st.sampled_from((0, 3)))))
    return BinaryOp(draw(st.sampled_from(algorithms)), desc)


@st.composite
def post_ops(draw, dst, sums=True):
    """At least one binary operation, functions, and perhaps a sum, in any order."""
    functions = ("relu", "abs", Function("clip", -1, 2), Function("linear", 0.5, 1))
    found = [draw(operands(dst)) for _ in range(draw(st.sampled_from((1, 1, 2))))]
    for _ in range(draw(st.sampled_from((0, 0, 1)))):
        found.insert(draw(st.integers(0, len(found))), draw(st.sampled_from(functions)))
    if sums and draw(st.integers(0, 3)) == 0:
        found.insert(draw(st.integers(0, len(found))), Sum(draw(st.sampled_from((1, 0.5)))))
    return found


@st.composite
def products(draw):
    """A sum of products, and in what context it is lowered."""
    kinds = draw(st.sampled_from(TYPES))
    which = draw(
        st.sampled_from(("convolution",) * 3 + ("grouped",) * 3 + ("inner product", "matmul", "many"))
    )
    channels = draw(st.sampled_from((4, 17, 40)))
    batch = draw(st.sampled_from((1, 2, 4)))
    formats = FORMATS[{"many": 3, "convolution": 4, "grouped": 4}.get(which, 2)]
    source, target = draw(st.sampled_from(formats)), draw(st.sampled_from(formats))
    if which in ("convolution", "grouped"):
        kernel = draw(st.sampled_from((1, 3)))
        per = draw(st.sampled_from((1, 1, 4))) if which == "grouped" and channels % 4 == 0 else 1
        groups = channels // per if which == "grouped" else 1
        each = (channels // groups, channels // groups, kernel, kernel)
        src = MemoryDesc((batch, channels, 5, 6), kinds[0], source)
        weights = MemoryDesc((groups, *each) if groups > 1 else each, kinds[1], rl.any)
        stride = draw(st.sampled_from((1, 2)))

        def make(dst, ops):
            return Convolution(src, weights, dst=dst, strides=stride, padding=kernel // 2, post_ops=ops)
    elif which == "inner product":
        src = MemoryDesc((batch, 3, 2, 2), kinds[0], draw(st.sampled_from(FORMATS[4])))
        weights = MemoryDesc((channels, 3, 2, 2), kinds[1], rl.any)

        def make(dst, ops):
            return InnerProduct(src, weights, dst=dst, post_ops=ops)
    else:
        front, each = ((3,), (draw(st.sampled_from((1, 3))),)) if which == "many" else ((), ())
        src = MemoryDesc((*front, 5, 8), kinds[0], source)
        weights = MemoryDesc((*each, 8, channels), kinds[1], rl.any)

        def make(dst, ops):
            return Matmul(src, weights, dst=dst, post_ops=ops)

    dst = MemoryDesc(make(None, ()).dst.dims, kinds[2], target)
    if draw(st.integers(0, 5)) == 0:  # with holes
        larger = tuple(n + 2 for n in dst.dims)
        dst = MemoryDesc(larger, kinds[2], draw(st.sampled_from(formats[:2]))).submemory(
            dst.dims, (1,) * len(larger)
        )
    ops = draw(post_ops(dst))
    host = draw(hosts)
    with on(*host):
        return host, make(dst, ops)


@given(products(), st.integers(0, 99), st.sampled_from((None, 1, 3)))
@examples(80)
def test_sums_of_products(problem, seed, threads):
    """In the tile, or behind it."""
    host, made = problem
    with on(*host):
        check(made, seed, threads)


@given(st.data(), st.integers(0, 99))
@examples(60)
def test_operations_on_elements(data, seed):
    """Elementwise functions, binary operations, normalisation, pooling."""
    draw = data.draw
    dims = draw(st.sampled_from(((2, 17, 4, 6), (4, 5, 2, 2), (1, 32, 3, 5))))
    src, dst = (
        MemoryDesc(dims, draw(st.sampled_from(OPERANDS[:-1])), draw(st.sampled_from(FORMATS[4])))
        for _ in range(2)
    )
    ops = draw(post_ops(dst))
    makers = (
        lambda: Eltwise(src, "relu", dst, post_ops=ops),
        lambda: Binary("max", src, MemoryDesc((1, dims[1], 1, 1), "f32", "nchw"), dst, post_ops=ops),
        lambda: BatchNormalization(src, dst, epsilon=0, fuse_relu=True, post_ops=ops),
    )
    check(draw(st.sampled_from(makers))(), seed)
    pooled = dst.dims[:2] + tuple(-(-n // 2) for n in dims[2:])
    ops = draw(post_ops(dst := MemoryDesc(pooled, dst.dtype, dst.format), sums=False))
    algorithm = draw(st.sampled_from(("max", "average_include_padding")))
    padding = [(0, n % 2) for n in dims[2:]]
    check(Pooling(src, algorithm, 2, padding=padding, dst=dst, post_ops=ops), seed)


@pytest.mark.parametrize("algorithm", binary.ALGORITHMS)
def test_algorithms(algorithm):
    """Each in a tile, and element by element; 17 channels in blocks of 16 leave zeros, whatever 0 op 0 is."""
    src, weights = MemoryDesc((2, 17, 3, 5), "f32", "nChw16c"), MemoryDesc((17, 17, 1, 1), "f32", rl.any)
    for dims in (src.dims, (1, 17, 1, 1)):
        op = BinaryOp(algorithm, MemoryDesc(dims, "f32", rl.any))
        check(Convolution(src, weights, post_ops=op))
        check(Eltwise(src, "abs", post_ops=op))


def convolution(form="nhwc", ops=(), kind="f32", kernel=1, groups=1, channels=20):
    """One of 2 x 20 x 4 x 6."""
    src = MemoryDesc((2, channels, 4, 6), kind, form)
    each = (channels // groups, channels // groups, kernel, kernel)
    filters = MemoryDesc((groups, *each) if groups > 1 else each, "s8" if kind == "u8" else kind, rl.any)
    return Convolution(src, filters, dst=src, padding=kernel // 2, post_ops=ops)


def operand(dims, form="nchw", kind="f32", algorithm="add"):
    return BinaryOp(algorithm, MemoryDesc(dims, kind, form))


FULL, EACH, ONE, GATE = (2, 20, 4, 6), (1, 20, 1, 1), (1, 1, 1, 1), (2, 20, 1, 1)


@pytest.mark.turns(2)
@compiles
@pytest.mark.parametrize(
    ("form", "ops", "behind"),
    [
        ("nhwc", [operand(ONE), operand(EACH, kind="s8"), operand(FULL, "nhwc", "bf16")], 0),
        ("nChw16c", [operand(EACH), Sum(), operand(FULL, "nChw16c", "s32"), "relu"], 0),
        ("nhwc", ["relu", operand(FULL, "nchw"), "abs"], 2),
        ("nhwc", [operand(EACH), operand(GATE), operand(EACH)], 2),
        ("nhwc", [operand(EACH), Sum(), operand(GATE)], 2),  # the sum too: the old destination must be there
        ("nchw", [operand(EACH), operand(ONE), operand(FULL, "nchw")], 1),  # rows are scattered
    ],
)
@pytest.mark.parametrize("groups", [1, 20])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_what_is_done_in_the_tile(form, ops, behind, groups, kind):
    """And what is not says so, by name."""
    made = convolution(form, ops, kind, 3, groups)
    check(made)
    _, apart, names = made.implementation.partition(APART)
    assert bool(apart) == bool(behind)
    assert names.removeprefix(": ") == ", ".join(map(str, made.post_ops[len(made.post_ops) - behind :]))


@compiles
def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, scratch too, end at, then begin behind, a page that can't be touched."""
    script = """
        from fences import arena, run_between
        from test_post_ops import EACH, FULL, GATE, ONE, convolution, operand
        from test_products import HERE, on

        arenas = [arena(1 << 17) for _ in range(10)]
        count = 0
        for cpu in HERE:
            for form in ("nhwc", "nChw16c", "nchw", "CHWN4"):
                for groups in (1, 20):
                    with on(cpu):
                        kinds = zip((ONE, EACH, FULL), ("s8", "bf16", "s8"))
                        ops = [operand(dims, form, kind) for dims, kind in kinds]
                        run_between(convolution(form, [*ops, operand(GATE)], "f32", 3, groups), arenas)
                    count += 1
        print(count)
        """
    assert int(output_of(script)) == 8 * len(HERE)


@compiles
@pytest.mark.parametrize("form", ["nhwc", "CHWN4"])
def test_a_number_for_each_image(form):
    """Vectors with channels of several images would add the number of the first one to all of them."""
    src, dst = MemoryDesc((8, 4, 1, 1), "f32", form), MemoryDesc((8, 4, 1, 1), "f32", "nhwc")
    each = operand((8, 1, 1, 1))
    check(Convolution(src, MemoryDesc((4, 1, 1, 1, 1), "f32", rl.any), dst=dst, post_ops=[each]))


def test_vectors_of_several_rows_are_refused():
    """Where each row has its value; a tile must then write one row at a time."""
    rows = operand_of(MemoryDesc((5, 1), "f32", "ab"), MemoryDesc((5, 48), "f32", "ab"), 1, True)
    how = Epilogue("f32", operands=(rows,))
    setting = SimpleNamespace(machine=machines.host(), weights_type="f32", unpacks=False)

    def writer(*channels):
        tile = SimpleNamespace(arithmetic=SimpleNamespace(sums="f32"), dst=(0,), pieces=((),))
        tile.channels = (channels,)
        return Writer(tile, setting, how, len(channels))

    assert how.by_row
    assert writer(0, 1, 2, -1, -1).channels == ((0, 1, 2, -1, -1),)
    with pytest.raises(LayoutError, match="several rows"):
        writer(0, 1, 0, 1)


def test_inputs():
    """Operands come after all other arguments, by number; ``any`` is the destination's format."""
    bias = MemoryDesc((20,), "f32", "a")
    src, weights = MemoryDesc(FULL, "f32", "nhwc"), MemoryDesc((20, 20, 1, 1), "f32", rl.any)
    ops = [operand(FULL, rl.any, "s8"), "relu", operand(GATE, rl.any)]
    made = Convolution(src, weights, bias, post_ops=ops)
    assert made.inputs == ("src", "weights", "bias", "operand0", "operand1")
    assert made.operand0 == MemoryDesc(FULL, "s8", "nhwc")
    assert made.operand1 == MemoryDesc(GATE, "f32", "nchw")
    assert str(made.post_ops[0]) == "add(s8:nhwc:2x20x4x6)"
    with pytest.raises(LayoutError, match="needs operand0, operand1"):
        made(*(rl.tensor(np.zeros(made.descs[name].dims), made.descs[name]) for name in made.inputs[:3]))


def test_in_place():
    """A result may be written over an operand that lies as the destination does."""
    x = MemoryDesc((3, 17), "f32", "aB16b")
    made = Eltwise(x, "relu", post_ops=BinaryOp("sub", x))
    assert made.in_place == {"dst": ("src", "operand0")}
    one, two = (rl.tensor(numbers(x.dims, "f32", k), x) for k in range(2))
    expected = made.reference(one, two)
    np.testing.assert_array_equal(made(one, two, out=two).numpy(), expected)
    conv = convolution("nhwc", operand(FULL, "nhwc"))
    given = [rl.tensor(np.zeros(conv.descs[name].dims), conv.descs[name]) for name in conv.inputs]
    with pytest.raises(LayoutError, match="operand0 and dst overlap"):
        conv(*given, out=given[-1])


def test_called_often(monkeypatch):
    """The function of a primitive that is called often takes operands, too."""
    monkeypatch.setattr(calling, "OFTEN", 1)
    for ops in ([operand(EACH)], [operand(EACH), operand(GATE)]):
        made = convolution("nhwc", ops)
        for seed in range(4):
            given = [
                rl.tensor(numbers(made.descs[name].dims, "f32", seed + k), made.descs[name])
                for k, name in enumerate(made.inputs)
            ]
            np.testing.assert_allclose(made(*given).numpy(), made.reference(*given), rtol=1e-5, atol=1e-4)


def test_in_a_sequence():
    """Operands are values: of other layers, which are reordered where formats differ, or constants."""
    seq = Sequence()
    x = seq.input("x", MemoryDesc(FULL, "f32", "nhwc"))
    filters = numbers((20, 20, 1, 1), "f32", 1)
    gate = seq.add(Pooling(x.desc, "average_include_padding", (4, 6)), x, name="squeeze")
    branch = seq.add(Eltwise(x.desc, "abs", MemoryDesc(FULL, "f32", "nChw16c")), x)
    ops = [
        operand(EACH, algorithm="mul"),
        operand(FULL, "nhwc"),
        operand(GATE, "nhwc", algorithm="max"),
        BinaryOp("add", branch.desc),
    ]
    conv = Convolution(x.desc, MemoryDesc(filters.shape, "f32", rl.any), dst=x.desc, post_ops=ops)
    slopes = numbers(EACH, "f32", 2)
    y = seq.add(conv, x, filters, slopes, branch, gate, branch, name="conv")
    seq.output(seq.add(Eltwise(y.desc, "relu", post_ops=BinaryOp("sub", y.desc)), y, x))
    run = seq.compile()
    assert [layer.name for layer in run.layers() if "reorder" in layer.name] == ["eltwise2.reorder"]
    given = numbers(FULL, "f32", 3)
    close(run(rl.tensor(given, x.desc)).numpy(), seq.reference(given), "f32", "sequence")


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (lambda: BinaryOp("plus", MemoryDesc((1, 1), "f32", "ab")), "'plus' is no binary operation; there"),
        (lambda: BinaryOp("add", 3), "the post-op add needs the MemoryDesc of its operand, not 3"),
        (lambda: operand((20, 1, 1), "abc"), r"operand0 f32:abc:20x1x1 has 3 axes and dst .* 4; give it as"),
        (lambda: operand((2, 10, 1, 1)), r"operand0 .* has 10 elements on axis 1 and dst 2x20x4x6 20; they"),
        (lambda: operand((3, 1, 1, 1)), r"convolution: operand0 .* has 3 elements on axis 0 and dst .* 2"),
    ],
)
def test_errors(op, words):
    with pytest.raises(LayoutError, match=words):
        convolution(ops=[Sum(), op()])


def test_what_is_not_taken():
    with pytest.raises(Unsupported, match=r"operand0 .* is f64"):
        convolution(ops=operand(EACH, kind="f64"))
    with pytest.raises(LayoutError, match="no post-op; there are Sum, Function and BinaryOp"):
        post_ops_of([Binary])
    with pytest.raises(Unsupported, match="functions and binary operations as post-ops, not sum"):
        Pooling(MemoryDesc(FULL, "f32", "nhwc"), "max", 2, post_ops=Sum())


def test_without_elements():
    made = Eltwise(MemoryDesc((0, 4), "f32", "ab"), "relu", post_ops=operand((1, 4), "ab"))
    assert made(np.zeros((0, 4), np.float32), np.ones((1, 4), np.float32)).numpy().shape == (0, 4)


@compiles
def test_code_is_told_apart():
    """Operands of other types and places are other code, also where all else is the same."""
    with on(HERE[-1]):
        for kind, offset, dims in product(("f32", "s8"), (0, 5), (EACH, ONE, FULL)):
            layout = Layout(dims, "nhwc", offset=offset)
            check(convolution("nhwc", BinaryOp("add", MemoryDesc(dims, kind, layout))))
