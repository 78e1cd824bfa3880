"""Expressions on truth values, integers and real numbers: what the definition says, in any layout."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from elementwise import check, machine_code, sides
from relayout import LayoutError
from relayout.ir.kinds import KINDS
from relayout.ops.expressions import NUMPY, OPERATIONS, Expression, narrowed
from relayout.primitives.lowering import elementwise
from relayout.primitives.plain import plain, remade
from relayout.primitives.pointwise import Pointwise
from relayout.tensor import address
from strategies import examples, has_clean_padding, layouts, padding_places
from test_products import HERE, on
from test_reorder import in_front

pytestmark = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")

MEMORY = {kind: "u8" if kind == "bool" else kind for kind in KINDS}
REALS = {"f32": ("f32", "f16", "bf16"), "f64": ("f64", "f32", "f16", "bf16")}


def single(name, kind):
    """The expression of one operation."""
    made = OPERATIONS[name]
    return Expression.of((kind,) * made.takes, [(name, made.gives or kind, tuple(range(made.takes)))])


SINGLE = [single(name, kind) for name, made in OPERATIONS.items() for kind in made.kinds]
CASTS = [Expression.of((one,), [("cast", two, (0,))]) for one in KINDS for two in KINDS if one != two]
SELECTS = [Expression.of(("bool", kind, kind), [("select", kind, (0, 1, 2))]) for kind in KINDS]


@st.composite
def chains(draw):
    """Expressions of some terms, each of which reads operands and terms before it."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    known, terms = list(kinds), []
    for _ in range(draw(st.integers(0, 5))):
        k = draw(st.integers(0, len(known) - 1))
        fitting = [name for name, made in OPERATIONS.items() if known[k] in made.kinds]
        name = draw(st.sampled_from([*fitting, "cast", "constant"]))
        if name == "cast":
            term = ("cast", draw(st.sampled_from(list(KINDS))), (k,))
        elif name == "constant":
            number = draw(st.integers(0, 3))
            term = ("constant", known[k], (), bool(number) if known[k] == "bool" else number)
        else:
            made = OPERATIONS[name]
            other = draw(st.sampled_from([j for j, kind in enumerate(known) if kind == known[k]]))
            term = (name, made.gives or known[k], (k, other, other)[: made.takes])
        terms.append(term)
        known.append(term[1])
    return Expression.of(kinds, terms)


@st.composite
def calls(draw):
    """An expression with descriptors: operands broadcast, and lie in any layouts."""
    expression = draw(st.one_of(st.sampled_from([*SINGLE, *CASTS, *SELECTS]), chains()))
    dst, *operands = draw(sides(1 + len(expression.operands)))
    given = []
    for desc, kind in zip(operands, expression.operands, strict=True):
        gone = {a for a in range(len(dst.dims)) if draw(st.integers(0, 3)) == 0}
        dims = tuple(1 if a in gone else size for a, size in enumerate(dst.dims))
        layout = desc.layout if dims == dst.dims else in_front(draw(layouts(dims=dims)))
        memory = draw(st.sampled_from(REALS.get(kind, (MEMORY[kind],))))
        given.append(rl.MemoryDesc(dims, memory, layout))
    assume(all(has_clean_padding(desc.layout) for desc in given))
    count = len(expression.operands) + len(expression.terms)
    results = draw(st.lists(st.integers(0, count - 1), max_size=3))
    expression = Expression(expression.operands, expression.terms, tuple(results))
    kept = [draw(st.sampled_from(REALS.get(kind, (MEMORY[kind],)))) for kind in expression.kinds]
    return Pointwise(expression, given, [rl.MemoryDesc(dst.dims, memory, dst.layout) for memory in kept])


def exact(made, arrays):
    """The bits of the result are those of the definition."""
    given = [rl.tensor(x.view(np.uint8) if x.dtype == bool else x) for x in arrays]
    found = made(*given).numpy()
    (wanted,) = made.operation.natively(*arrays)
    np.testing.assert_array_equal(found, wanted.view(np.uint8) if wanted.dtype == bool else wanted)


@given(calls(), st.integers(0, 2**16))
@examples(150)
def test_any_layouts(made, seed):
    check(made, seed)


@given(calls())
@examples(30)
def test_as_text(made):
    again = remade(json.loads(json.dumps(plain(made))))
    assert again.expression == made.expression


CONSTANTS = [
    Expression.of((), [("constant", "f32", (), 1.5)]),
    Expression.of((), [("constant", "s32", (), -7), ("abs", "s32", (0,)), ("mul", "s32", (0, 1))]),
    Expression.of((), [("constant", "f32", (), 0.25), ("neg", "f32", (0,))], (1, 0)),
]


@pytest.mark.parametrize("form", ["nhwc", "nChw16c", "nChw4c"])
@pytest.mark.parametrize("expression", CONSTANTS)
def test_what_reads_nothing_is_written_all_the_same(form, expression):
    """A nest in which nothing is read writes zeros, which is for padding."""
    kinds = expression.kinds
    descs = [rl.MemoryDesc((2, 17, 3, 5), kind, form) for kind in kinds]
    names = ["dst", *(f"dst{k}" for k in range(1, len(kinds)))]
    made = elementwise(descs[0], {}, expression, further=dict(zip(names[1:], descs[1:], strict=True)))
    tensors = [rl.from_buffer(np.full(desc.nbytes, 77, np.uint8), desc) for desc in descs]
    made({name: address(one.buffer) for name, one in zip(names, tensors, strict=True)}, 1)
    wanted = expression.definition()
    for tensor, value in zip(tensors, wanted if len(kinds) > 1 else [wanted], strict=True):
        np.testing.assert_array_equal(tensor.numpy(), np.full(tensor.dims, value))
        assert not tensor.buffer.view(tensor.numpy().dtype)[sorted(padding_places(tensor.desc.layout))].any()


def ends(kind):
    """Numbers of a kind where something goes wrong first."""
    dtype = NUMPY[kind]
    if kind == "bool":
        return np.array([False, True])
    if dtype.kind == "f":
        info = np.finfo(dtype)
        special = [0, -0.0, 0.5, -0.5, 1, -1, 1.5, -2.5, 127, 128, -129, 255.9, 2.0**31, -(2.0**31), 2.0**63]
        return np.array([*special, -(2.0**64), info.max, info.tiny, np.inf, -np.inf, np.nan], dtype)
    info = np.iinfo(dtype)
    return np.array(sorted({info.min, info.min + 1 if info.min else 0, info.max, 0, 1, 2, 3, 7, 100}), dtype)


@pytest.mark.parametrize("expression", [*SINGLE, *CASTS], ids=str)
def test_ends_of_the_range_and_divisions_by_nothing(expression):
    values = [ends(kind) for kind in expression.operands]
    if NUMPY[expression.operands[0]].kind == "i":
        values = [np.append(x, x.dtype.type(-1)) for x in values]
    grid = [np.ascontiguousarray(x).reshape(-1) for x in np.meshgrid(*values)]
    descs = [rl.MemoryDesc(x.shape, MEMORY[k], "a") for x, k in zip(grid, expression.operands, strict=True)]
    dst = rl.MemoryDesc(grid[0].shape, MEMORY[expression.kind], "a")
    exact(Pointwise(expression, descs, dst=dst), grid)


@pytest.mark.parametrize("number", [2, 3, -1, -7, 0])
@pytest.mark.parametrize("name", ["div", "mod", "rem"])
def test_divisions_by_constants(name, number):
    expression = Expression.of(("s64",), [("constant", "s64", (), number), (name, "s64", (0, 1))])
    x = np.array([-(2**63), 2**63 - 1, -8, -7, -1, 0, 1, 7, 8] * 5, np.int64)
    desc = rl.MemoryDesc(x.shape, "s64", "a")
    exact(Pointwise(expression, [desc], dst=desc), [x])


def test_one_rounding_from_double():
    expression = Expression.of(("f64",))
    x = np.float64([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 65520 - 2.0**-20, 1e-8])
    desc, dst = rl.MemoryDesc(x.shape, "f64", "a"), rl.MemoryDesc(x.shape, "f16", "a")
    np.testing.assert_array_equal(
        Pointwise(expression, [desc], dst=dst)(rl.tensor(x)).numpy(), x.astype("f2")
    )


def test_a_scalar_and_nothing():
    add = Expression.of(("s64", "s64"), [("add", "s64", (0, 1))])
    for dims, layout in (((), ""), ((0, 3), "ab")):
        desc = rl.MemoryDesc(dims, "s64", layout) if layout else rl.tensor(np.int64(3)).desc
        x = rl.tensor(np.full(dims, 3, np.int64))
        assert Pointwise(add, [desc, desc], dst=desc)(x, x).numpy().tolist() == np.full(dims, 6).tolist()


def test_casts_to_integers_are_saturated():
    x = np.float64([2.0**63, -(2.0**63), 2.0**31, 2.0**31 - 0.5, -1e300])
    assert narrowed(x, np.dtype("i8")).tolist() == [2**63 - 1, -(2**63), 2**31, 2**31 - 1, -(2**63)]
    assert narrowed(x, np.dtype("i4")).tolist() == [2**31 - 1, -(2**31), 2**31 - 1, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize(
    ("operands", "terms", "message"),
    [
        (("s64",), [("plus", "s64", (0, 0))], "'plus' is no operation"),
        (("s64", "f32"), [("add", "s64", (0, 1))], "operands of one kind"),
        (("f32",), [("and", "f32", (0, 0))], "given are f32, f32"),
        (("s64",), [("lt", "s64", (0, 0))], "gives bool, not s64"),
        (("s64",), [("not", "s64", (1,))], "reads what is not there"),
        (("s64",), [("constant", "s64", (), "1")], "can't be '1'"),
        (("s64", "f32"), [("select", "f32", (0, 1, 1))], "select to f32 takes bool"),
        (("u64",), [], "nothing to compute with"),
        ((), [], "an operand or a term"),
        (("s64",), [("cast", "f32", ())], "cast takes one operand"),
    ],
)
def test_what_is_no_expression(operands, terms, message):
    with pytest.raises(LayoutError, match=message):
        Expression.of(operands, terms)


@pytest.mark.parametrize(
    ("descs", "dst", "message"),
    [
        ([("f32", (2, 3)), ("s64", (2, 3))], ("bool", (2, 3)), "src0 f32:ab:2x3 must be s64"),
        ([("s64", (2, 3))], ("u8", (2, 3)), "2 operands are wanted, got 1"),
        ([("s64", (2, 3)), ("s64", (3,))], ("u8", (2, 3)), "does not broadcast to 2x3"),
        ([("s64", (2, 3)), ("s64", (2, 3))], ("s8", (2, 3)), "u8, truth values"),
    ],
)
def test_descriptors_that_do_not_fit(descs, dst, message):
    less = single("lt", "s64")
    given = [rl.MemoryDesc(dims, kind, "ab"[: len(dims)]) for kind, dims in descs]
    with pytest.raises(LayoutError, match=message):
        Pointwise(less, given, dst=rl.MemoryDesc(dst[1], dst[0].replace("bool", "u8"), "ab"))


def test_what_is_lost_is_the_same_where_nothing_is_fused():
    """Processors without fused instructions compute it in double."""
    rng = np.random.default_rng(2)
    x, y = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    desc = rl.MemoryDesc(x.shape, "f32", "a")
    wanted = (x.astype(np.float64) * y - x * y).astype(np.float32)
    assert np.any(wanted)
    for cpu in (HERE[0], None):
        with on(cpu):
            program = elementwise(desc, {"x": desc, "y": desc}, single("lost", "f32"))
            got = np.ones_like(x)
            program({"x": address(x), "y": address(y), "dst": address(got)}, 1)
        np.testing.assert_array_equal(got, wanted)
