"""Graphs compiled against their definitions: what is lowered, where it lies, what is converted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.graph.backward import backward
from relayout.graph.compiling import compiled, planned
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.lowering import convolutions
from relayout.graph.lowering.case import unblocked
from strategies import examples

pytest.importorskip("llvmlite")

F4 = np.dtype("f4")


def noise(*dims, seed=0):
    return np.random.default_rng(seed).standard_normal(dims).astype("f4")


def graph_of(nodes, inputs, outputs=None, **constants):
    """A graph of nodes: ``"y = Conv(x, w)"`` and attributes."""
    made = []
    for text, attributes in nodes:
        results, _, call = text.partition(" = ")
        operator, _, names = call.rstrip(")").partition("(")
        made.append(
            Node(operator, tuple(names.replace("-", "").split(", ")), tuple(results.split(", ")), attributes)
        )
    values = tuple(Value(name, dims, F4) for name, dims in inputs.items())
    return Graph(values, tuple(outputs or [made[-1].outputs[0]]), tuple(made), constants)


def check(graph, tolerance=1e-5, **options):
    """Compile it, and compare with its definition."""
    run = compiled(graph, **options)
    arrays = [noise(*value.dims, seed=k) for k, value in enumerate(graph.inputs)]
    expected = evaluate(graph, *arrays)
    for found, wanted in zip(run(*arrays), expected, strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, atol=tolerance * max(1, np.abs(wanted).max(initial=0)))
    assert run.steps is not None
    return run


def kinds(run):
    return [layer.kind for layer in run.steps.layers()]


FORMATS = [None, "nchw", "nhwc", "nChw16c"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_residual_block_is_three_convolutions(format):
    graph = graph_of(
        [
            ("a = Conv(x, w)", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
            ("b = Relu(a)", {}),
            ("c = Conv(b, v, bias)", {}),
            ("d = Conv(x, v)", {}),
            ("e = Add(c, d)", {}),
            ("y = Relu(e)", {}),
        ],
        {"x": (2, 32, 9, 11)},
        w=noise(32, 32, 3, 3) / 10,
        v=noise(32, 32, 1, 1),
        bias=noise(32),
    )
    run = check(graph, format=format)
    assert [kind for kind in kinds(run) if kind != "reorder"] == ["convolution"] * 3
    assert all("add" in str(layer) or True for layer in run.steps.layers())


def test_networks_that_were_converted_from_nhwc_have_no_transpose_left():
    """A Transpose before and after each operator, and an Add in between."""
    there, back = {"perm": (0, 3, 1, 2)}, {"perm": (0, 2, 3, 1)}
    graph = graph_of(
        [
            ("a = Transpose(x)", there),
            ("b = Conv(a, w)", {"pads": (1, 1, 1, 1)}),
            ("c = Transpose(b)", back),
            ("d = Relu(c)", {}),
            ("e = Transpose(d)", there),
            ("f = Conv(e, w)", {"pads": (1, 1, 1, 1)}),
            ("g = Transpose(f)", back),
            ("y = Add(g, d)", {}),
        ],
        {"x": (1, 12, 14, 32)},
        w=noise(32, 32, 3, 3) / 10,
    )
    for format in (None, "nhwc", "nChw16c"):
        run = check(graph, format=format)
        assert kinds(run).count("convolution") == 2
        if format != "nChw16c":  # all of it is in the format of the inputs, or in the cheapest
            assert (len(kinds(run)), run.plan.conversions) == (2, ())


def windows(grid):
    """From an image of tokens to windows of 7 x 7 of them, or to grids, as views."""
    if grid:
        return (1, 7, 2, 7, 2, 32), (0, 2, 4, 1, 3, 5)
    return (1, 2, 7, 2, 7, 32), (0, 1, 3, 2, 4, 5)


@pytest.mark.parametrize("grid", [False, True])
def test_attention_in_windows_is_read_and_written_where_it_lies(grid):
    apart, order = windows(grid)
    back = tuple(order.index(axis) for axis in range(6))
    graph = graph_of(
        [
            ("n = LayerNormalization(x, one, none)", {}),
            ("a = Reshape(n, apart)", {}),
            ("b = Transpose(a)", {"perm": order}),
            ("w = Reshape(b, rows)", {}),
            ("qkv = MatMul(w, into)", {}),
            ("heads = Reshape(qkv, split)", {}),
            ("t = Transpose(heads)", {"perm": (2, 0, 3, 1, 4)}),
            ("q = Gather(t, first)", {"axis": 0}),
            ("k = Gather(t, second)", {"axis": 0}),
            ("v = Gather(t, third)", {"axis": 0}),
            ("kt = Transpose(k)", {"perm": (0, 1, 3, 2)}),
            ("scores = MatMul(q, kt)", {}),
            ("p = Softmax(scores)", {}),
            ("o = MatMul(p, v)", {}),
            ("ot = Transpose(o)", {"perm": (0, 2, 1, 3)}),
            ("together = Reshape(ot, rows)", {}),
            ("out = MatMul(together, from)", {}),
            ("c = Reshape(out, unapart)", {}),
            ("d = Transpose(c)", {"perm": back}),
            ("e = Reshape(d, image)", {}),
            ("y = Add(x, e)", {}),
        ],
        {"x": (1, 14, 14, 32)},
        one=np.ones(32, "f4"),
        none=np.zeros(32, "f4"),
        apart=np.array(apart),
        rows=np.array((4, 49, 32)),
        split=np.array((4, 49, 3, 2, 16)),
        first=np.array(0),
        second=np.array(1),
        third=np.array(2),
        unapart=np.array([apart[axis] for axis in order]),
        image=np.array((1, 14, 14, 32)),
        **{"into": noise(32, 96, seed=7) / 6, "from": noise(32, 32, seed=8) / 6},
    )
    run = check(graph)
    assert not run.plan.conversions
    assert "reorder" not in kinds(run)


def rolled(name, source, along, shift, size, to):
    """Nodes that roll a value along an axis, as exporters write them."""
    cut = shift % size
    return [
        (f"{name}.a = Slice({source}, at{cut}, end, axis{along})", {}),
        (f"{name}.b = Slice({source}, begin, at{cut}, axis{along})", {}),
        (f"{to} = Concat({name}.a, {name}.b)", {"axis": along}),
    ]


@given(st.data())
@examples(12)
def test_rolls_are_slices_of_what_comes_before(data):
    h, w, c = data.draw(st.sampled_from([(5, 7, 16), (4, 4, 3), (14, 9, 32)]))
    down, right = data.draw(st.integers(1, h - 1)), data.draw(st.integers(1, w - 1))
    nodes = [
        ("n = LayerNormalization(x, one, none)", {}),
        *rolled("r", "n", 1, down, h, "s"),
        *rolled("t", "s", 2, right, w, "u"),
        ("m = MatMul(u, matrix)", {}),
        *rolled("v", "m", 1, -down, h, "p"),
        *rolled("q", "p", 2, -right, w, "o"),
        ("y = Add(x, o)", {}),
    ]
    cuts = {f"at{k}": np.array([k]) for k in range(max(h, w))}
    graph = graph_of(
        nodes,
        {"x": (2, h, w, c)},
        one=noise(c, seed=5),
        none=noise(c, seed=6),
        matrix=noise(c, c, seed=7) / 4,
        begin=np.array([0]),
        end=np.array([99]),
        axis1=np.array([1]),
        axis2=np.array([2]),
        **cuts,
    )
    run = check(graph)
    assert "reorder" not in kinds(run)


def test_halves_that_pass_by_are_computed_where_they_belong():
    graph = graph_of(
        [
            ("h = MatMul(x, into)", {}),
            ("g, i, c = Split(h, sizes)", {"axis": -1}),
            ("t = Transpose(c)", {"perm": (0, 3, 1, 2)}),
            ("d = Conv(t, w)", {"group": 16, "pads": (1, 1, 1, 1)}),
            ("e = Transpose(d)", {"perm": (0, 2, 3, 1)}),
            ("j = Concat(i, e)", {"axis": -1}),
            ("y = Mul(g, j)", {}),
        ],
        {"x": (1, 8, 8, 24)},
        into=noise(24, 96, seed=1),
        sizes=np.array([48, 32, 16]),
        w=noise(16, 1, 3, 3, seed=2),
    )
    assert "reorder" not in kinds(check(graph))


def test_the_maker_of_a_view_writes_into_the_concatenation():
    graph = graph_of(
        [
            ("c = Conv(x, w)", {"strides": (2, 2)}),
            ("r = Reshape(c, shape)", {}),
            ("t = Transpose(r)", {"perm": (0, 2, 1)}),
            ("y = Concat(z, t)", {"axis": 1}),
        ],
        {"x": (1, 3, 8, 8), "z": (1, 1, 16)},
        w=noise(16, 3, 2, 2),
        shape=np.array([1, 16, 16]),
    )
    run = check(graph)
    assert [layer.name for layer in run.steps.layers() if "place" in layer.name] == ["z.place"]


@pytest.mark.parametrize("format", FORMATS)
def test_dense_blocks_write_into_one_memory(format):
    """Each concatenation is the beginning of the next one: nothing is copied but the input."""
    nodes, read = [], "x"
    for k in range(4):
        nodes += [
            (f"r{k} = Relu({read})", {}),
            (f"c{k} = Conv(r{k}, w{k})", {"pads": (1, 1, 1, 1)}),
            (f"j{k} = Concat(x, {', '.join(f'c{i}' for i in range(k + 1))})", {"axis": 1}),
        ]
        read = f"j{k}"
    nodes.append(("y = Conv(j3, w4)", {}))  # as in a DenseNet; an output would draw the last one into nchw
    weights = {f"w{k}": noise(16, 32 + 16 * k, 3, 3, seed=k) / 10 for k in range(4)}
    graph = graph_of(nodes, {"x": (1, 32, 7, 9)}, **weights, w4=noise(16, 96, 1, 1) / 10)
    run = check(graph, format=format)
    copied = [layer for layer in run.steps.layers() if layer.kind == "reorder"]
    assert len(copied) <= 3


def test_halves_that_stay_beside_a_third_part_are_written_together():
    graph = graph_of(
        [
            ("c = Conv(x, w)", {}),
            ("a, b = Split(c)", {"axis": 1, "num_outputs": 2}),
            ("d = Conv(b, v)", {}),
            ("y = Concat(a, b, d)", {"axis": 1}),
            ("z = Conv(y, u)", {}),
        ],
        {"x": (1, 16, 9, 11)},
        w=noise(32, 16, 1, 1),
        v=noise(16, 16, 1, 1, seed=1),
        u=noise(16, 48, 1, 1, seed=2),
    )
    run = check(graph, format="nhwc")
    assert not any("place" in layer.name for layer in run.steps.layers())


def test_channels_that_are_shuffled_and_split_are_read_as_they_lie():
    """A unit of ShuffleNet: of its halves one passes by, in one copy, and convolutions read the other."""
    graph = graph_of(
        [
            ("a = Conv(x, w)", {}),
            ("b = Conv(x, v)", {}),
            ("c = Concat(a, b)", {"axis": 1}),
            ("r = Reshape(c, apart)", {}),
            ("t = Transpose(r)", {"perm": (0, 2, 1, 3, 4)}),
            ("s = Reshape(t, together)", {}),
            ("f, g = Split(s)", {"axis": 1, "num_outputs": 2}),
            ("h = Conv(g, u)", {}),
            ("y = Concat(f, h)", {"axis": 1}),
            ("z = Conv(y, q)", {}),
        ],
        {"x": (1, 24, 7, 5)},
        w=noise(24, 24, 1, 1),
        v=noise(24, 24, 1, 1, seed=1),
        u=noise(24, 24, 1, 1, seed=2),
        q=noise(24, 48, 1, 1, seed=3),
        apart=np.array([1, 2, 24, 7, 5]),
        together=np.array([1, 48, 7, 5]),
    )
    run = check(graph, format="nhwc", threads=1)
    names = [layer.name for layer in run.steps.layers() if layer.kind == "reorder"]
    assert [name for name in names if not name.startswith(("x", "z"))] == ["f.place"]
    assert {one.value for one in run.plan.conversions} <= {"x", "z"}


def test_images_are_read_as_rows_in_the_order_in_which_they_lie():
    graph = graph_of(
        [
            ("c = Conv(x, w)", {}),
            ("p = MaxPool(c)", {"kernel_shape": (2, 2), "strides": (2, 2)}),
            ("r = Reshape(p, rows)", {}),
            ("y = Gemm(r, v, b)", {"transB": 1}),
        ],
        {"x": (2, 16, 8, 6)},
        w=noise(32, 16, 1, 1),
        v=noise(10, 384, seed=1),
        b=noise(10, seed=2),
        rows=np.array([2, 384]),
    )
    for format in ("nhwc", "nChw16c"):
        run = check(graph, format=format)
        assert {one.value for one in run.plan.conversions} <= {"x"}
        assert kinds(run).count("reorder") == len(run.plan.conversions)


@pytest.mark.parametrize("format", ["nchw", "nhwc"])
def test_what_is_enlarged_is_written_into_the_concatenation(format):
    graph = graph_of(
        [
            ("c = Conv(x, w)", {}),
            ("d = Conv(z, w)", {}),
            ("r = Resize(c, -, s)", {"mode": "linear"}),
            ("j = Concat(d, r)", {"axis": 1}),
            ("y = Conv(j, v)", {}),
        ],
        {"x": (1, 16, 9, 7), "z": (1, 16, 18, 14)},
        w=noise(16, 16, 1, 1),
        v=noise(16, 32, 1, 1),
        s=np.array([1, 1, 2, 2], "f4"),
    )
    run = check(graph, format=format)
    assert not any("place" in layer.name for layer in run.steps.layers())


def test_what_is_repeated_is_written_into_the_concatenation():
    graph = graph_of(
        [("e = Expand(x, dims)", {}), ("r = Relu(z)", {}), ("y = Concat(r, e)", {"axis": 2})],
        {"x": (1, 1, 24), "z": (1, 7, 24)},
        dims=np.array([1, 7, 24]),
    )
    run = check(graph)
    assert kinds(run).count("reorder") == 1


def test_an_outer_product_is_written_as_images_are():
    graph = graph_of(
        [
            ("c = Conv(x, w)", {}),
            ("m = Mul(g, s)", {}),
            ("a = Add(c, m)", {}),
            ("y = Conv(a, w)", {}),
        ],
        {"x": (1, 32, 9, 7), "g": (1, 1, 9, 7), "s": (1, 32, 1, 1)},
        w=noise(32, 32, 1, 1) / 6,
    )
    run = check(graph, format="nhwc")
    assert {one.value for one in run.plan.conversions} <= {"x", "y"}


def test_columns_of_attention_are_written_where_rows_are_wanted():
    """Attention over channels, as in DaViT: the transposed product writes tokens as rows."""
    graph = graph_of(
        [
            ("s = Softmax(q)", {"axis": -1}),
            ("v = Transpose(x)", {"perm": (0, 2, 1)}),
            ("p = MatMul(s, v)", {}),
            ("t = Transpose(p)", {"perm": (0, 2, 1)}),
            ("y = MatMul(t, w)", {}),
        ],
        {"q": (2, 32, 32), "x": (2, 50, 32)},
        w=noise(32, 48),
    )
    run = check(graph)
    assert run.plan.conversions == ()


@pytest.mark.parametrize("images", [1, 3])
def test_tokens_are_mixed_without_transposes(images):
    """A block of an MLP-Mixer: the products of columns are transposed ones, with a term for each row."""
    graph = graph_of(
        [
            ("n = LayerNormalization(x, gamma)", {"axis": 2}),
            ("t = Transpose(n)", {"perm": (0, 2, 1)}),
            ("m = MatMul(t, w)", {}),
            ("a = Add(m, b)", {}),
            ("g = Gelu(a)", {}),
            ("p = MatMul(g, v)", {}),
            ("c = Add(p, d)", {}),
            ("u = Transpose(c)", {"perm": (0, 2, 1)}),
            ("y = Add(x, u)", {}),
        ],
        {"x": (images, 49, 64)},
        gamma=noise(64),
        w=noise(49, 80, seed=1) / 7,
        b=noise(80, seed=2),
        v=noise(80, 49, seed=3) / 9,
        d=noise(49, seed=4),
    )
    run = check(graph)
    assert run.plan.conversions == ()
    assert "reorder" not in kinds(run)


def test_a_branch_that_is_an_output_and_a_part_of_a_concatenation():
    graph = graph_of(
        [
            ("a = Conv(x, w)", {}),
            ("b = Relu(a)", {}),
            ("c = Concat(a, b, x)", {"axis": 1}),
            ("d = Concat(c, a)", {"axis": 1}),
            ("y = Relu(d)", {}),
        ],
        {"x": (2, 16, 5, 5)},
        outputs=("y", "a", "c"),
        w=noise(16, 16, 1, 1),
    )
    check(graph)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_concatenation_along_any_axis(axis):
    graph = graph_of(
        [("a = Relu(x)", {}), ("b = Tanh(x)", {}), ("y = Concat(a, b, x)", {"axis": axis})],
        {"x": (2, 6, 5, 4)},
    )
    check(graph)


def test_views_are_no_layers():
    """Heads of attention: reshapes, transposes and parts of one product; two copies at most."""
    graph = graph_of(
        [
            ("p = MatMul(x, w)", {}),
            ("r = Reshape(p, shape)", {}),
            ("t = Transpose(r)", {"perm": (2, 0, 3, 1, 4)}),
            ("q = Gather(t, zero)", {"axis": 0}),
            ("k = Gather(t, one)", {"axis": 0}),
            ("v = Gather(t, two)", {"axis": 0}),
            ("u = Transpose(k)", {"perm": (0, 1, 3, 2)}),
            ("s = MatMul(q, u)", {}),
            ("m = Mul(s, scale)", {}),
            ("n = Softmax(m)", {"axis": -1}),
            ("o = MatMul(n, v)", {}),
            ("z = Transpose(o)", {"perm": (0, 2, 1, 3)}),
            ("y = Reshape(z, back)", {}),
        ],
        {"x": (1, 17, 24)},
        w=noise(24, 72) / 5,
        shape=np.array([1, 17, 3, 4, 6]),
        back=np.array([1, 17, 24]),
        zero=np.array(0),
        one=np.array(1),
        two=np.array(2),
        scale=np.float32(0.4),
    )
    run = check(graph)
    assert set(kinds(run)) <= {"matrix product", "softmax", "reorder"}
    assert kinds(run).count("reorder") <= 2


@pytest.mark.parametrize("format", FORMATS)
def test_gradients_of_one_value_are_added_where_they_are_made(format):
    """A residual: the gradient of the convolution is written over that of the way around it."""
    graph = graph_of(
        [
            ("a = Conv(x, w)", {"pads": (1, 1, 1, 1)}),
            ("b = Add(a, x)", {}),
            ("c = Mul(b, z)", {}),
            ("y = ReduceSum(c)", {"keepdims": 0}),
        ],
        {"x": (2, 16, 7, 7), "z": (2, 16, 7, 7), "w": (16, 16, 3, 3)},
    )
    run = check(backward(inferred(graph), "y", ("x", "w")), 1e-4, format=format)
    assert "convolution backward data" in kinds(run)
    assert "binary" not in kinds(run)
    assert kinds(run).count("pointwise") <= 1


@given(data=st.data())
@examples(40)
def test_deconvolutions_of_any_sizes(data):
    number = st.integers
    strides = tuple(data.draw(number(1, 3)) for _ in range(2))
    kernel = tuple(data.draw(number(1, 4)) for _ in strides)
    pads = tuple(data.draw(number(0, k - 1)) for k in kernel) + tuple(
        data.draw(number(0, k - 1)) for k in kernel
    )
    extra = tuple(data.draw(number(0, s - 1)) for s in strides)
    sizes = tuple(data.draw(number(2, 5)) for _ in range(2))
    gaps = tuple(data.draw(number(1, 3)) for _ in range(2))
    groups = data.draw(number(1, 2))
    outs = [
        (n - 1) * s + e + (k - 1) * d + 1 - pads[i] - pads[2 + i]
        for i, (n, s, k, e, d) in enumerate(zip(sizes, strides, kernel, extra, gaps, strict=True))
    ]
    if min(outs) < 1:
        return
    attributes = {
        "strides": strides,
        "pads": pads,
        "output_padding": extra,
        "group": groups,
        "dilations": gaps,
    }
    graph = graph_of(
        [("a = ConvTranspose(x, w, b)", attributes), ("c = Add(a, z)", {}), ("y = Relu(c)", {})],
        {"x": (1, 4 * groups, *sizes), "z": (1, 3 * groups, *outs)},
        w=noise(4 * groups, 3, *kernel),
        b=noise(3 * groups),
    )
    assert "deconvolution" in kinds(check(graph, 1e-4))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_a_deconvolution_to_a_given_size_cuts_as_its_definition_does(auto_pad):
    """An odd number of elements is to go: which side loses one more is the operator's to say."""
    attributes = {"strides": (2, 2), "output_shape": (8, 8), "auto_pad": auto_pad}
    graph = graph_of([("y = ConvTranspose(x, w)", attributes)], {"x": (1, 4, 4, 4)}, w=noise(4, 3, 3, 3))
    check(graph)


@given(data=st.data())
@examples(40)
def test_pooling_of_any_sizes(data):
    number = st.integers
    kernel = tuple(data.draw(number(1, 4)) for _ in range(2))
    attributes = {
        "kernel_shape": kernel,
        "strides": tuple(data.draw(number(1, 3)) for _ in range(2)),
        "pads": tuple(data.draw(number(0, (k - 1) // 2)) for k in (*kernel, *kernel)),
        "ceil_mode": data.draw(number(0, 1)),
    }
    operator = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    if operator == "AveragePool":
        attributes["count_include_pad"] = data.draw(number(0, 1))
    sizes = tuple(data.draw(number(4, 9)) for _ in range(2))
    graph = graph_of([(f"y = {operator}(x)", attributes)], {"x": (2, 3, *sizes)})
    check(graph)


def test_what_no_kernel_does_is_done_by_definition_in_between():
    graph = graph_of(
        [
            ("a = Relu(x)", {}),
            ("b = Hardmax(a)", {"axis": 1}),
            ("y = Sigmoid(b)", {}),
        ],
        {"x": (3, 8)},
    )
    assert "Hardmax" in kinds(check(graph))


def test_dims_that_only_a_run_knows_go_by_definitions():
    graph = graph_of([("a = NonZero(x)", {}), ("y = Cast(a)", {"to": 1})], {"x": (3, 4)})
    run = compiled(graph)
    assert run.steps is None
    assert "NonZero" in run.why or "known" in run.why
    found = run(np.float32([[0, 1, 0, 0], [0] * 4, [2, 0, 0, 0]]))
    np.testing.assert_array_equal(found[0], [[0, 2], [1, 0]])


def test_plans_and_runs_for_a_number_of_threads(monkeypatch):
    graph = graph_of(
        [("a = Conv(x, w)", {"pads": (1, 1, 1, 1)}), ("y = Relu(a)", {})],
        {"x": (1, 64, 28, 28)},
        w=noise(64, 64, 3, 3) / 20,
    )
    monkeypatch.setenv("RELAYOUT_THREADS", "2")
    one, two = graph.plan(threads=1), graph.plan(threads=2)
    assert graph.plan().cost == two.cost < one.cost
    check(graph, threads=1)
    run = check(graph, threads=2)
    run.tune()
    (layer,) = run.profile(noise(1, 64, 28, 28))[-1:]
    assert layer.seconds > 0


def test_a_forced_format_is_everywhere():
    graph = graph_of(
        [("a = Conv(x, w)", {}), ("b = Relu(a)", {}), ("y = Conv(b, w)", {})],
        {"x": (1, 32, 8, 8)},
        w=noise(32, 32, 1, 1),
    )
    found = planned(graph, "nhwc")
    assert {rl.MemoryDesc((1, 32, 8, 8), "f32", "nhwc")} == {found.formats[name] for name in found.formats}
    assert found.solution.exact


def test_inputs_say_what_is_wanted():
    run = compiled(graph_of([("y = Relu(x)", {})], {"x": (2, 3)}))
    with pytest.raises(rl.LayoutError, match=r"x f32 2x3.*3x2"):
        run(np.zeros((3, 2), "f4"))
    with pytest.raises(rl.LayoutError, match="float64"):
        run(np.zeros((2, 3)))
    with pytest.raises(rl.LayoutError, match="needs x"):
        run()
    out = np.zeros((2, 3), "f4")
    (found,) = run(x=np.ones((2, 3), "f4"), out=[out])
    assert found is out
    assert out.all()


@given(st.data())
def test_blocks_of_vectors_change_nothing(data):
    """So there is nothing to convert, and the planner knows it."""
    tag = data.draw(st.sampled_from(["aBcd16b", "aBcd8b", "ABcd4a8b", "aBcd8b2b", "ABcd16b4a"]))
    dims = tuple(data.draw(st.lists(st.sampled_from([1, 1, 2, 8, 16, 20]), min_size=4, max_size=4)))
    desc = rl.MemoryDesc(dims, "f32", tag)
    made = unblocked(desc)
    assert made.layout.same_bytes(desc.layout)
    vector = sum(n > 1 for n in dims) == 1 and desc.padded_dims == dims
    assert made is desc if not vector else not made.inner_blocks


def test_a_pooled_vector_needs_no_conversion():
    x = Value("x", (1, 64, 7, 7), np.dtype(np.float32))
    nodes = (
        Node("Conv", ("x", "w"), ("c",)),
        Node("GlobalAveragePool", ("c",), ("p",)),
        Node("Flatten", ("p",), ("f",)),
        Node("Gemm", ("f", "v"), ("y",)),
    )
    graph = Graph((x,), ("y",), nodes, {"w": noise(64, 64, 1, 1), "v": noise(64, 10)})
    for format in ("nChw16c", "nhwc"):
        values = {one.value for one in graph.plan(format).conversions}
        assert values <= {"x"}, format


@pytest.mark.parametrize("algorithm", ["auto", "direct"])
@pytest.mark.parametrize("format", [None, "nhwc"])
def test_a_convolution_is_asked_for_its_costs_once(format, algorithm, monkeypatch):
    """Whether a kernel does a node is asked before it is planned, and in the same words."""
    known, asked = convolutions._answers, []
    monkeypatch.setattr(convolutions, "_answers", lambda *given: asked.append(given) or known(*given))
    x = {"x": (1, 16, 9, 9)}
    nodes = [("c = Conv(x, w)", {"pads": [1, 1, 1, 1]}), ("y = Relu(c)", {})]
    graph_of(nodes, x, w=noise(16, 16, 3, 3)).plan(format, algorithm=algorithm)
    assert len(asked) > len(set(asked)) == 1
