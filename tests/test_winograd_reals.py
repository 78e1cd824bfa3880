"""3x3 convolutions of real numbers by transformed products: near the definition, within a derived bound."""

from __future__ import annotations

import copy
import pickle
import random
from contextlib import contextmanager

import numpy as np
import pytest

import relayout as rl
from fences import output_of
from relayout.errors import LayoutError
from relayout.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.jit import compile as compile_
from relayout.kernels.conv import candidates
from relayout.kernels.conv.epilogue import Epilogue
from relayout.kernels.conv.winograd import Winograd, winograd
from relayout.kernels.conv.winograd_text import winograd_module
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, Sum
from relayout.primitives import Convolution
from relayout.records import replace
from relayout.targets.machine import machine
from strategies import tried
from test_kernels import x86
from test_products import HERE, Held, compiles, desc, judge, on, poisoned, problem, products, vector

pytestmark = compiles
REALS = ("f32", "f32", "f32")
LINUX = "unknown-linux-gnu"
OTHERS = [
    ("znver4", f"x86_64-{LINUX}"),
    ("sapphirerapids", f"x86_64-{LINUX}"),
    ("x86-64-v2", f"x86_64-{LINUX}"),
    ("neoverse-v1", f"aarch64-{LINUX}"),
]


@contextmanager
def cut(number, threads=2, cpu=None):
    """Of the plans that transform the one of a number, if there are so many, for so many threads."""
    ways = candidates.winograd
    candidates.winograd = lambda *given: (
        [plan for k, plan in enumerate(ways(*given)) if k == number] or list(ways(*given))
    )
    products._ways.cache_clear()
    try:
        with on(cpu, threads):
            yield
    finally:
        candidates.winograd = ways
        products._ways.cache_clear()


def plan_of(made):
    return products.products(made._as_products(made.descs)).plan


def case(src, filters, strides=1, padding=0, kinds=REALS, out=None, ops=(), algorithm="winograd", **more):
    """A convolution of that algorithm, in all its formats."""
    return problem(src, filters, strides, padding, kinds, out, ops, algorithm=algorithm, **more)


def variety(algorithm="winograd"):
    """Every kind of edge, tail, format, epilogue and destination."""
    scaled = {"bias": vector(40), "scale": vector(40)}
    relu = (Function("linear", 0.5, 1), Function("relu"))
    halves = ("f16", "f16", "f32")
    made = [
        (((1, 16, 4, 4), "nhwc"), (8, 16, 3, 3), 1, 1),
        (((2, 32, 5, 7), "nhwc"), (24, 32, 3, 3), 1, 1),
        (((1, 48, 3, 3), "nhwc"), (7, 48, 3, 3), 1, 0),
        (((5, 16, 1, 1), "nhwc"), (21, 16, 3, 3), 1, 1),
        (((1, 16, 1, 9), "nhwc"), (16, 16, 3, 3), 1, (2, 0)),
        (((3, 16, 9, 2), "nhwc"), (16, 16, 3, 3), 1, [(0, 2), (3, 1)]),
        (((1, 16, 6, 5), "nhwc"), (1, 16, 3, 3), 1, 1),
        (((1, 64, 6, 9), "nChw16c"), (40, 64, 3, 3), 1, 1, REALS, "nChw16c", relu, scaled),
        (((1, 64, 6, 9), "nChw16c"), (40, 64, 3, 3), 1, 1, REALS, "nhwc", (Sum(0.5),)),
        (((1, 64, 6, 9), "nhwc"), (37, 64, 3, 3), 1, 1, ("f32", "f32", "u8"), "nChw8c"),
        (((3, 32, 11, 6), "nhwc"), (32, 32, 3, 3), 1, 1, halves, "nhwc"),
        (((2, 768, 4, 5), "nhwc"), (24, 768, 3, 3), 1, 1),
        (((1, 272, 3, 4), "nhwc"), (9, 272, 3, 3), 1, 1),
        (((2, 32, 7, 9), "nhwc"), (24, 32, 3, 3), 2, 1),
        (((1, 528, 9, 5), "nChw16c"), (40, 528, 3, 3), 2, [(0, 1), (2, 0)], REALS, "nChw16c", relu, scaled),
    ]
    return [case(*sizes[:7], algorithm=algorithm, **(sizes[7:] or ({},))[0]) for sizes in made]


def transforms(stride):
    """The matrices of the module's docstring: what pixels, weights and products are multiplied by."""
    if stride == 1:
        pixels = [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]
        weights = [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
        return pixels, weights, [[1, 1, 1, 0], [0, 1, -1, -1]]
    pixels = [[1, 0, -1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, -1], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]]
    weights = [[1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0], [0, 1, 0]]
    return pixels, weights, [[1, 1, 0, 1, 0], [0, 1, -1, 0, 1]]


def transformed(made, src, weights, of=np.asarray):
    """The sums by transformed tiles, in double precision; ``of`` magnitudes their bound."""
    stride, reach = made.strides[0], 4 if made.strides[0] == 1 else 5
    pixels, filters, back = (of(np.array(one, np.float64)) for one in transforms(stride))
    _, outputs, height, width = made.dst.dims
    (top, _), (left, _) = made.padding
    room = [2 * stride * -(-n // 2) + reach for n in (height, width)]
    padded = np.zeros((*src.shape[:2], room[0] + src.shape[2] + top, room[1] + src.shape[3] + left))
    padded[:, :, top : top + src.shape[2], left : left + src.shape[3]] = of(src)
    u = np.einsum("ka,oiab,lb->oikl", filters, of(weights), filters)
    out = np.zeros((src.shape[0], outputs, height + 1, width + 1))
    for y in range(0, height, 2):
        for x in range(0, width, 2):
            d = padded[:, :, y * stride : y * stride + reach, x * stride : x * stride + reach]
            v = np.einsum("ka,niab,lb->nikl", pixels, d, pixels)
            m = np.einsum("nikl,oikl->nokl", v, u)
            out[:, :, y : y + 2, x : x + 2] = np.einsum("ak,nokl,bl->noab", back, m, back)
    return out[:, :, :height, :width]


def bound(made, src, weights):
    """How far sums may be from exact ones: a rounding for each operation that a term goes through."""
    roundings = src.shape[1] + 10
    unit = 2.0**-24
    return roundings * unit / (1 - roundings * unit) * transformed(made, src, weights, np.abs) + 2.0**-130


def drawn_values(made, seed):
    rng = np.random.default_rng(seed)
    given = {}
    for name in made.inputs:
        values = rng.standard_normal(made.descs[name].dims)
        if name == "src":
            values *= 10.0 ** rng.integers(-3, 4, (*values.shape[:2], 1, 1))
        kind = made.descs[name].dtype.name
        given[name] = Held(made.descs[name], values.astype(np.float16 if kind == "f16" else np.float32))
    return given


def checked(made, seed=0, threads=None):
    """Run it on poisoned memory, and compare with the definition; the bytes that it wrote."""
    given = drawn_values(made, seed)
    old = np.random.default_rng(seed + 1).standard_normal(made.dst.dims).astype(np.float32)
    out = Held(made.dst, old if made.accumulates else None)
    arrays = {name: one.array for name, one in given.items()}
    around = poisoned(made._compiled())
    before = {"out": out.array.copy()} if made.accumulates else {}
    made(*(one.tensor for one in given.values()), out=out.tensor, threads=threads)
    for one in given.values():
        one.check_untouched(str(made))
    out.check_written(str(made))
    assert all((side == 0xFF).all() for side in around), f"{made}: scratch overflows"
    allowed = bound(made, arrays["src"], arrays["weights"])
    if "scale" in arrays:
        allowed = allowed * abs(arrays["scale"]).reshape(-1, 1, 1)
    exact = made.reference(**arrays, **before)
    allowed = allowed + 2.0**-22 * (abs(exact) + allowed + 10)  # what epilogues round, of numbers around 1
    judge(out.array, exact, allowed, made.dst.dtype.name, str(made))
    return out.whole


@pytest.mark.parametrize("stride", [1, 2])
def test_the_transforms_are_a_convolution(stride):
    rng = np.random.default_rng(stride)
    made = case(((2, 16, 5, 7), "nhwc"), (8, 16, 3, 3), stride, 1)
    src, weights = rng.standard_normal(made.src.dims), rng.standard_normal(made.weights.dims)
    np.testing.assert_allclose(transformed(made, src, weights), made.reference(src, weights), atol=1e-12)


@pytest.mark.turns(2)
@pytest.mark.parametrize("cpu", HERE)
def test_all_cuts_are_near_the_definition_and_have_the_same_bits(cpu):
    for k in range(len(variety())):
        found = []
        for number, threads in ((0, 1), (1, 1), (0, 2), (1, 3), (2, 3)):
            with cut(number, threads, cpu):
                made = variety()[k]
                assert isinstance(plan_of(made), Winograd), made
                found.append(checked(made, k))
        for one in found[1:]:
            np.testing.assert_array_equal(one, found[0], err_msg=str(variety()[k]))


def test_random_sizes():
    """Others each time."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for _ in range(tried(20)):
        n, c, k = rng.integers(1, 4), 16 * rng.integers(1, 8), rng.integers(1, 50)
        h, w, pad = rng.integers(1, 13), rng.integers(1, 13), tuple(int(x) for x in rng.integers(0, 3, 2))
        if h + 2 * pad[0] < 3 or w + 2 * pad[1] < 3:
            continue
        with cut(int(rng.integers(0, 3)), int(rng.integers(1, 4))):
            sizes = (int(n), int(c), int(h), int(w)), (int(k), int(c), 3, 3)
            form = str(rng.choice(["nhwc", "nChw16c"]))
            made = case((sizes[0], form), sizes[1], int(rng.integers(1, 3)), pad)
            assert isinstance(plan_of(made), Winograd)
            checked(made, seed)


def test_a_residual_is_read_where_the_result_is_written():
    rng = np.random.default_rng(0)
    other = BinaryOp("add", desc((2, 40, 7, 9), "nhwc"))
    made = case(((2, 32, 7, 9), "nhwc"), (40, 32, 3, 3), 1, 1, REALS, "nhwc", (other, Function("relu")))
    given = [rl.tensor(rng.standard_normal(made.descs[n].dims), made.descs[n]) for n in made.inputs]
    np.testing.assert_allclose(made(*given).numpy(), made.reference(*given), atol=1e-4)


def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, scratch too, end at, then begin behind, a page that can't be touched."""
    script = """
        from fences import arena, run_between
        from test_winograd_reals import plan_of, variety

        arenas = [arena(1 << 22) for _ in range(8)]
        for made in variety():
            run_between(made, arenas)
            print(type(plan_of(made)).__name__)
        """
    assert output_of(script).split() == ["Winograd"] * len(variety())


def test_infinities_stay_in_their_tile():
    """They may make NaN of the four outputs that share it, and of nothing else."""
    made = case(((1, 16, 8, 8), "nhwc"), (8, 16, 3, 3), 1, 1)
    rng = np.random.default_rng(0)
    src, weights = rng.standard_normal(made.src.dims), rng.standard_normal(made.weights.dims)
    whole = made(rl.tensor(src, made.src), rl.tensor(weights, made.weights)).numpy()
    src[0, 3, 0, 0] = np.inf
    found = made(rl.tensor(src, made.src), rl.tensor(weights, made.weights)).numpy()
    assert not np.isfinite(found[:, :, :2, :2]).any()
    np.testing.assert_array_equal(found[:, :, 2:], whole[:, :, 2:])
    np.testing.assert_array_equal(found[:, :, :, 2:], whole[:, :, :, 2:])


def test_direct_sums_are_what_they_were():
    """Where nothing is said, and where it is said, the plans are direct; ``auto`` is one of the two."""
    for made, other in zip(variety("direct"), variety("auto"), strict=True):
        assert not isinstance(plan_of(made), Winograd)
        assert made.algorithm == "direct"
        assert products._bare(made._as_products(made.descs)).algorithm == "direct"
        assert other.algorithm == "auto"
    assert Convolution(desc((1, 16, 4, 4), "nhwc"), desc((8, 16, 3, 3), "oihw")).algorithm == "direct"


REFUSED = [
    (((1, 16, 9, 9), "nhwc"), (8, 16, 5, 5), {}, "5x5, not 3x3"),
    (((1, 16, 9, 9), "nhwc"), (2, 8, 8, 3, 3), {}, "2 groups"),
    (((1, 16, 9, 9), "nhwc"), (8, 16, 3, 3), {"strides": 3}, "strides are 3x3"),
    (((1, 16, 9, 9), "nhwc"), (8, 16, 3, 3), {"strides": (1, 2)}, "strides are 1x2"),
    (((1, 16, 9, 9), "nhwc"), (8, 16, 3, 3), {"dilation": 2}, "2x2 apart"),
    (((1, 15, 9, 9), "nhwc"), (8, 15, 3, 3), {}, "15 channels"),
    (((1, 16, 9, 9), "nchw"), (8, 16, 3, 3), {}, "side by side"),
    (((0, 16, 9, 9), "nhwc"), (8, 16, 3, 3), {}, "nothing to compute"),
    (((1, 16, 9), "nwc"), (8, 16, 3), {}, "1x3, not 3x3"),
]


@pytest.mark.parametrize(("src", "filters", "windows", "why"), REFUSED)
def test_what_is_refused(src, filters, windows, why):
    dims, form = src
    src, weights = desc(dims, form), rl.MemoryDesc(filters, "f32", rl.any)
    with pytest.raises(LayoutError, match=f"no algorithm winograd for .*{why}"):
        Convolution(src, weights, **windows, algorithm="winograd")
    Convolution(src, weights, **windows, algorithm="auto")


def test_names_of_algorithms():
    with pytest.raises(LayoutError, match="'fft' is no algorithm; there are direct, winograd, auto"):
        Convolution(desc((1, 16, 4, 4), "nhwc"), desc((8, 16, 3, 3), "oihw"), algorithm="fft")


def test_the_algorithm_is_part_of_what_it_is():
    """Of the operation, the problem that is measured, and of copies."""
    made, same, other = (variety(name)[1] for name in ("winograd", "winograd", "direct"))
    assert made.operation == same.operation
    assert made.operation != other.operation
    assert made._as_products(made.descs).problem != other._as_products(other.descs).problem
    for one in (copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert one.algorithm == "winograd"
        assert isinstance(plan_of(one), Winograd)


@pytest.mark.parametrize(("cpu", "triple"), OTHERS)
def test_code_for_other_processors(cpu, triple):
    """Tiles as large as their registers, for blocks of their vectors and for channels-last."""
    made = machine(cpu, triple)
    lanes = made.vector // 4
    with on(None, 1):
        for form, k in (("nhwc", 40), (f"nChw{max(lanes, 8)}c", 37)):
            given = Convolution(desc((2, 288, 7, 9), form), desc((k, 288, 3, 3), f"Ohwi{lanes}o"), padding=1)
            sums = replace(given._as_products(given.descs), algorithm="winograd")
            arranged = candidates.Problem(
                sums.src, sums.weights, sums.dst, sums.geometry, arithmetic_of_f32(), False
            )._replace(algorithm="winograd")
            plan = next(iter(winograd(arranged, made, 2, candidates.facts_of(made))))
            assert plan.most_tiles(2) * 2 == (24 if made.registers == 32 else 12)
            compile_.assemble(winograd_module(plan, Epilogue("f32")), made, 0)


def arithmetic_of_f32():
    from relayout.kernels.conv.arithmetic import FLOATS

    return FLOATS


@pytest.mark.parametrize("cpu", ["znver3", "x86-64-v3"])
def test_large_layers_are_transformed_by_the_estimate(cpu):
    """On processors with AVX2, where that was measured; for any number of threads the same."""
    with on(cpu, 1):
        for channels, size in ((64, 56), (128, 28), (256, 14)):
            dims = (1, channels, size, size)
            made = case((dims, "nhwc"), (channels, channels, 3, 3), 1, 1, algorithm="auto")
            problem_ = products.ways(made._as_products(made.descs)).problem
            found = [
                candidates.cheapest(problem_, x86(cpu)[0], threads, candidates.facts_of(x86(cpu)[0]))
                for threads in (1, 2, 5)
            ]
            assert {isinstance(one.plan, Winograd) for one in found} == {True}


def network(channels=64, size=28):
    """Three convolutions with their ReLUs, and a residual."""
    rng = np.random.default_rng(0)
    x = Value("x", (2, channels, size, size), np.dtype("f4"))
    nodes, constants, name = [], {}, "x"
    for k in range(3):
        constants[f"w{k}"] = (rng.standard_normal((channels, channels, 3, 3)) / 24).astype(np.float32)
        constants[f"b{k}"] = rng.standard_normal(channels).astype(np.float32)
        nodes.append(Node("Conv", (name, f"w{k}", f"b{k}"), (f"c{k}",), {"pads": (1, 1, 1, 1)}))
        nodes.append(Node("Add", (f"c{k}", name), (f"a{k}",)))
        nodes.append(Node("Relu", (f"a{k}",), (f"y{k}",)))
        name = f"y{k}"
    return Graph((x,), (name,), tuple(nodes), constants)


def transforming(run, x):
    """How many of its steps transform."""
    return sum("products in place of" in layer.implementation for layer in run.profile(x, repeat=1))


def test_graphs_take_an_algorithm():
    """What is chosen freely is one of the two others, whatever the number of threads."""
    graph = network()
    x = np.random.default_rng(1).standard_normal((2, 64, 28, 28)).astype(np.float32)
    runs = {name: graph.compile("nhwc", algorithm=name) for name in ("direct", "winograd", "auto")}
    found = {name: run(x)[0] for name, run in runs.items()}
    assert [transforming(runs[name], x) for name in ("direct", "winograd")] == [0, 3]
    np.testing.assert_allclose(found["winograd"], found["direct"], atol=1e-4 * abs(found["direct"]).max())
    assert any((found["auto"] == found[name]).all() for name in ("direct", "winograd"))
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(graph.compile("nhwc", threads)(x)[0], found["auto"])
    with pytest.raises(LayoutError, match="'fft' is no algorithm"):
        graph.compile(algorithm="fft")


def test_what_has_no_such_algorithm_is_direct_in_a_graph():
    """Demanded, it is taken wherever it is possible: filters of 5x5 taps are convolved as ever."""
    x = Value("x", (1, 16, 9, 9), np.dtype("f4"))
    weights = np.random.default_rng(0).standard_normal((8, 16, 5, 5)).astype(np.float32)
    graph = Graph((x,), ("y",), (Node("Conv", ("x", "w"), ("y",)),), {"w": weights})
    given = np.random.default_rng(1).standard_normal(x.dims).astype(np.float32)
    found = [graph.compile(algorithm=name)(given)[0] for name in ("direct", "winograd")]
    np.testing.assert_array_equal(*found)


def test_open_and_pickled_runs_keep_their_algorithm():
    graph = network(16, 8)
    opened = graph.replaced(inputs=(Value("x", ("n", 16, 8, 8), np.dtype("f4")),))
    x = np.random.default_rng(1).standard_normal((2, 16, 8, 8)).astype(np.float32)
    for name, count in (("direct", 0), ("winograd", 3)):
        run = inferred(opened).compile(algorithm=name)
        for one in (run, pickle.loads(pickle.dumps(run))):
            assert transforming(one.at(x), x) == count
