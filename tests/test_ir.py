"""The typed builder: what it writes is IR, folding changes no value, and wrong types are refused at once."""

from __future__ import annotations

import ctypes
import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout.ir.builder import Builder, Function, table
from relayout.ir.types import DOUBLE, FLOAT, I1, I8, I16, I32, I64, PTR, Value, constant, integer, vector
from relayout.ir.vectors import cut, join, load_pieces, pieces_of, reduce, runs, store_pieces
from strategies import examples

llvm = pytest.importorskip("llvmlite.binding")
compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")

runs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")
LANES = 4
ROOM = 64  # variables
X, Y = Value("%x", vector(8, FLOAT)), Value("%y", vector(8, I32))


def compiled(text, name):
    """A function ``void name(ptr, ptr)`` that can be called with two arrays."""
    code = compile_.assemble(text, machine_.host())
    target = llvm.Target.from_triple(machine_.host().triple).create_target_machine(reloc="pic")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address(name))

    def call(source, to):
        assert engine
        function(source.ctypes.data, to.ctypes.data)

    return call


# --- random expressions ------------------------------------------------------------------------------------

INTEGERS = ("add", "sub", "mul", "and_", "or_", "xor")
SHIFTS = ("shl", "lshr", "ashr")
DIVISIONS = ("udiv", "urem", "sdiv", "srem")
REALS = ("fadd", "fsub", "fmul", "fdiv")
ORDERS = ("eq", "ne", "slt", "ule", "sgt", "uge")


@st.composite
def numbers(draw, kind):
    if kind.is_float:
        return np.float32(draw(st.sampled_from((0.0, -0.0, 1.0, -1.0, 0.1, 1e30, float("inf")))))
    edge = 1 << (kind.bits - 1)
    drawn = draw(st.sampled_from((0, 1, -1, 2, -edge, edge - 1)) | st.integers(-edge, edge - 1))
    return np.array(drawn).astype(f"i{kind.bits // 8}")[()]


@st.composite
def trees(draw, kind, depth=4):
    """A tree of operations: leaves are numbers, and a constant's are known when the code is written."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return ("leaf", draw(numbers(kind)), draw(st.booleans()))
    below = trees(kind, depth - 1)
    if kind.is_float:
        return (draw(st.sampled_from(REALS)), draw(below), draw(below))
    what = draw(st.sampled_from(("plain", "plain", "shift", "divide", "choose", "extreme", "turn")))
    if what == "shift":
        return (
            draw(st.sampled_from(SHIFTS)),
            draw(below),
            ("leaf", draw(st.integers(0, kind.bits - 1)), True),
        )
    if what == "divide":
        return (draw(st.sampled_from(DIVISIONS)), draw(below), ("leaf", draw(st.integers(1, 100)), True))
    if what == "choose":
        return ("choose", draw(st.sampled_from(ORDERS)), *(draw(below) for _ in range(4)))
    if what == "extreme":
        return (draw(st.sampled_from(("smin", "smax"))), draw(below), draw(below))
    if what == "turn":
        return ("turn", draw(below))
    return (draw(st.sampled_from(INTEGERS)), draw(below), draw(below))


def written(b, tree, kind, variables, folds):
    """The value of a tree; leaves that are no constants, or all of them, are loaded."""
    what, *parts = tree
    if what == "leaf":
        number, known = parts
        if known and (folds or not isinstance(number, np.generic)):
            return constant(kind, number.item() if isinstance(number, np.generic) else number)
        variables.append(number)
        at = b.gep(b.arguments[0], len(variables) - 1, kind.bits // 8)
        element = b.load(kind.element, at)
        return b.splat(element, kind.count) if kind.count else element
    if what == "choose":
        order, *four = parts
        one, two, yes, no = (written(b, part, kind, variables, folds) for part in four)
        return b.select(b.icmp(order, one, two), yes, no)
    values = [written(b, part, kind, variables, folds) for part in parts]
    if what == "turn":
        return b.bits(b.bitcast(values[0], values[0].type))
    return getattr(b, what)(*values)


def evaluated(tree, kind):
    """The number that a tree is, by NumPy and Python's integers."""
    what, *parts = tree
    if what == "leaf":
        return parts[0] if kind.is_float else int(parts[0])
    if what == "choose":
        order, *four = parts
        one, two, yes, no = (evaluated(part, kind) for part in four)
        if order[0] == "u":
            one, two = (x % (1 << kind.bits) for x in (one, two))
        found = {"eq": one == two, "ne": one != two, "slt": one < two, "ule": one <= two, "sgt": one > two}
        return yes if found.get(order, one >= two) else no
    values = [evaluated(part, kind) for part in parts]
    if what == "turn":
        return values[0]
    if kind.is_float:
        with np.errstate(all="ignore"):
            ufunc = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide}[what]
            return ufunc(*values, dtype=np.float32)
    one, two = values
    unsigned = one % (1 << kind.bits)
    quotient = abs(one) // abs(two) * (1 if one >= 0 else -1) if what in ("sdiv", "srem") else 0
    result = {
        "add": lambda: one + two,
        "sub": lambda: one - two,
        "mul": lambda: one * two,
        "and_": lambda: one & two,
        "or_": lambda: one | two,
        "xor": lambda: one ^ two,
        "shl": lambda: one << two,
        "lshr": lambda: unsigned >> two,
        "ashr": lambda: one >> two,
        "udiv": lambda: unsigned // two,
        "urem": lambda: unsigned % two,
        "sdiv": lambda: quotient,
        "srem": lambda: one - quotient * two,
        "smin": lambda: min(one, two),
        "smax": lambda: max(one, two),
    }[what]()
    edge = 1 << (kind.bits - 1)
    return (result + edge) % (2 * edge) - edge


@runs_code
@examples(60)
@given(st.data())
def test_expressions_are_what_numpy_says_folded_or_not(data):
    element = data.draw(st.sampled_from((I8, I16, I32, I64, FLOAT)))
    kind = vector(data.draw(st.sampled_from((0, 1, LANES))), element)
    some = data.draw(st.lists(trees(kind), min_size=1, max_size=4))
    numpy_kind = np.dtype(np.float32 if element.is_float else f"i{element.bits // 8}")
    expected = np.array([evaluated(tree, kind) for tree in some]).astype(numpy_kind)
    for folds in (True, False):
        f, variables = Function("f", {"source": PTR, "to": PTR}, machine_.host()), []
        for k, tree in enumerate(some):
            f.store(written(f, tree, kind, variables, folds), f.gep(f.arguments[1], k * kind.bytes))
        call = compiled(f.text(), "f")
        source = np.array([*variables, 0]).astype(numpy_kind)
        got = np.zeros((len(some), max(1, kind.count)), numpy_kind)
        call(source, got)
        assert (got == got[:, :1]).all() or element.is_float
        wrong = got[:, 0].view(f"u{numpy_kind.itemsize}") != expected.view(f"u{numpy_kind.itemsize}")
        if element.is_float:
            wrong &= ~(np.isnan(got[:, 0]) & np.isnan(expected))
        assert not wrong.any(), f.text()


@runs_code
@examples(30)
@given(st.integers(-3, 9), st.integers(-3, 9), st.integers(1, 4), st.booleans())
def test_loops_turn_as_often_as_ranges_do(start, stop, step, known):
    turns = len(range(start, stop, step))
    f = Function("f", {"source": PTR, "to": PTR}, machine_.host())
    source, to = f.arguments
    ends = (start, stop) if known else (f.load(I64, source), f.load(I64, f.gep(source, 8)))
    kept = f.repeat(*ends, step, [constant(I64, 0)], lambda i, given: [f.add(f.mul(given[0], 7), i)])
    f.store(kept[0], to)
    got, expected = np.zeros(1, np.int64), 0
    compiled(f.text(), "f")(np.array([start, stop]), got)
    for i in range(start, stop, step):
        expected = expected * 7 + i
    assert got[0] == expected, turns


@runs_code
@examples(30)
@given(st.integers(1, 16), st.integers(0, 16))
def test_pieces_touch_nothing_else(count, first):
    valid = min(count, first)
    kind = vector(1 << (count - 1).bit_length(), I16)
    f = Function("f", {"source": PTR, "to": PTR}, machine_.host())
    pieces = pieces_of(0, valid, 0, 2)
    store_pieces(f, load_pieces(f, kind, f.arguments[0], pieces), f.arguments[1], pieces)
    source, to = np.arange(1, 17, dtype=np.int16), np.zeros(16, np.int16)
    compiled(f.text(), "f")(source, to)
    assert to.tolist() == [*range(1, valid + 1), *[0] * (16 - valid)]
    assert sum(length for _, length in runs(count)) == count


@runs_code
def test_vectors_cut_joined_and_reduced_keep_their_order():
    f = Function("f", {"source": PTR, "to": PTR}, machine_.host())
    source, to = f.arguments
    x = f.load(vector(16, I32), source)
    f.store(join(f, cut(f, x, 4)), to)
    f.store(reduce(f, x, f.add), f.gep(to, 64))
    got = np.zeros(17, np.int32)
    compiled(f.text(), "f")(np.arange(16, dtype=np.int32), got)
    assert got.tolist() == [*range(16), 120]


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda b: b.fadd(X, Y),
        lambda b: b.add(X, X),
        lambda b: b.add(Y, 0.5),
        lambda b: b.add(Y, Value("%z", I32)),
        lambda b: b.fadd(2.0, 3.0),
        lambda b: b.icmp("eq", X, X),
        lambda b: b.fcmp("oeq", Y, Y),
        lambda b: b.select(Y, X, X),
        lambda b: b.select(Value("%c", vector(4, I1)), X, X),
        lambda b: b.zext(Y, I8),
        lambda b: b.zext(Y, I32),
        lambda b: b.zext(X, I64),
        lambda b: b.fptrunc(X, DOUBLE),
        lambda b: b.bitcast(X, I64),
        lambda b: b.shuffle(X, [16]),
        lambda b: b.shuffle(X, [0], Y),
        lambda b: b.shuffle(Value("%s", FLOAT), [0]),
        lambda b: b.insert(X, Value("%i", I32), 0),
        lambda b: b.gep(Y, 4),
        lambda b: b.gep(Value("%p", PTR), Value("%i", I32)),
        lambda b: b.load(I32, Y),
        lambda b: b.store(X, Y),
        lambda b: b.when(Y, lambda: None),
        lambda b: b.unless(Value("%c", I1), X, lambda: Y),
        lambda b: b.repeat(0, 3, 1, [X], lambda i, given: [Y]),
        lambda b: b.intrinsic("fma", X, X, Y),
        lambda b: b.fmuladd(X, X, Y),
    ],
)
def test_wrong_types_raise_where_they_are_written(wrong):
    with pytest.raises(TypeError):
        wrong(Builder())


def test_what_has_no_value_is_refused():
    with pytest.raises(ZeroDivisionError):
        Builder().udiv(Y, 0)
    with pytest.raises(ValueError, match="shl of"):
        Builder().shl(Y, 32)
    with pytest.raises(OverflowError):
        Builder().fadd(X, 1e39)


def test_what_changes_nothing_is_not_written():
    b, p, i = Builder(), Value("%p", PTR), Value("%i", I64)
    assert [b.add(i, 0), b.sub(i, 0), b.mul(1, i), b.shl(i, 0), b.udiv(i, 1), b.or_(0, i), b.and_(i, -1)] == [
        i
    ] * 7
    assert b.gep(p, i, 0) is p
    assert b.bitcast(X, X.type) is X
    assert b.select(constant(I1, 1), i, 3) is i
    b.when(constant(I1, 0), lambda: b.line("unreachable"))
    assert b.lines == []


def test_types_are_interned_and_print_as_llvm_reads_them():
    assert vector(8, FLOAT) is vector(8, DOUBLE.of(FLOAT)) is X.type
    assert X.type.element is FLOAT
    assert integer(8) is I8
    assert str(vector(1, PTR)) == "<1 x ptr>"
    assert "[i64 1, i64 -2]" in str(llvm.parse_assembly(table("t", [1, -2])))
