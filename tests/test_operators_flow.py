"""Sequences, optionals, text, graphs within nodes, and what operators refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.operators import OPERATORS, Fact
from strategies import tried

F32 = np.dtype(np.float32)


def run(name: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
    """What a definition gives: the one result, or several."""
    made = OPERATORS[name](*inputs, outputs=outputs, **attributes)
    return made if outputs > 1 else made[0]


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def number(x: int) -> Any:
    return np.array(x, np.int64)


@dataclass(frozen=True)
class Body:
    """An inner graph that is a function."""

    function: Callable[..., tuple[Any, ...]]
    inputs: tuple[str, ...] = ()

    def evaluate(self, *inputs: Any) -> tuple[Any, ...]:
        return self.function(*inputs)


elements = st.lists(st.integers(-5, 5), max_size=5)


@given(elements, st.integers(-6, 6), st.integers(-5, 5))
def test_sequences_are_lists(numbers, position, other):
    """Insertion, erasure and access are those of lists, within what ONNX allows."""
    sequence = [ints(n) for n in numbers]
    before = list(sequence)
    n = len(sequence)
    place, x = number(position), ints(other)
    if -n <= position < n:
        assert run("SequenceAt", sequence, place) is sequence[position]
        erased = list(sequence)
        del erased[position]
        assert run("SequenceErase", sequence, place) == erased
    else:
        for name in ("SequenceAt", "SequenceErase"):
            with pytest.raises(LayoutError, match=name):
                run(name, sequence, place)
    if -n <= position <= n:
        inserted = list(sequence)
        inserted.insert(position, x)
        assert run("SequenceInsert", sequence, x, place) == inserted
    else:
        with pytest.raises(LayoutError, match=f"position {position} is outside"):
            run("SequenceInsert", sequence, x, place)
    assert run("SequenceInsert", sequence, x) == [*sequence, x]
    assert run("SequenceLength", sequence) == n
    assert sequence == before


def test_making_and_joining_sequences():
    x = np.arange(12).reshape(3, 4)
    assert run("SequenceEmpty") == []
    assert run("SequenceConstruct", x, x) == [x, x]
    with pytest.raises(LayoutError, match="empty"):
        run("SequenceErase", [])
    for split, sizes in ((None, [1, 1, 1, 1]), (number(3), [3, 1]), (ints(1, 0, 3), [1, 0, 3])):
        parts = run("SplitToSequence", x, split, axis=-1)
        assert [part.shape for part in parts] == [(3, n) for n in sizes]
        np.testing.assert_array_equal(run("ConcatFromSequence", parts, axis=1), x)
    rows = run("SplitToSequence", x, axis=0, keepdims=0)
    assert [row.shape for row in rows] == [(4,)] * 3
    np.testing.assert_array_equal(run("ConcatFromSequence", rows, axis=0, new_axis=1), x)
    np.testing.assert_array_equal(run("ConcatFromSequence", rows, axis=-1, new_axis=1), x.T)
    assert run("SplitToSequence", np.zeros((0, 2))) == []
    for split in (ints(1, 2), number(0), ints(5, -1)):
        with pytest.raises(LayoutError, match="SplitToSequence"):
            run("SplitToSequence", x, split, axis=1)


def test_optionals():
    x = ints(1)
    assert run("Optional", x) is x
    assert run("Optional", type="any") is None
    assert run("OptionalGetElement", [x]) == [x]
    assert [bool(run("OptionalHasElement", *one)) for one in ((x,), ([],), (None,), ())] == [
        True,
        True,
        False,
        False,
    ]
    assert run("Identity", None) is None
    assert OPERATORS["Identity"].inferred(None)[0].dims is None
    with pytest.raises(LayoutError, match="the optional is empty"):
        run("OptionalGetElement", None)


def test_text():
    words = np.array(["Monday", "tuesday", "MONDAY"], object)
    assert run("StringNormalizer", words, stopwords=("monday",)).tolist() == ["tuesday"]
    assert run("StringNormalizer", words, stopwords=("MONDAY",), is_case_sensitive=1).tolist() == [
        "Monday",
        "tuesday",
    ]
    upper = run("StringNormalizer", words[None], case_change_action="UPPER", stopwords=("Tuesday",))
    assert upper.tolist() == [["MONDAY", "MONDAY"]]
    assert run("StringNormalizer", words[1:2], stopwords=("tuesday",)).tolist() == [""]
    with pytest.raises(LayoutError, match="case_change_action"):
        run("StringNormalizer", words, case_change_action="Title")
    parts, counts = run("StringSplit", np.array([["a b", " c "], ["", "d e f"]], object), outputs=2)
    assert parts.tolist() == [[["a", "b", ""], ["c", "", ""]], [["", "", ""], ["d", "e", "f"]]]
    assert counts.tolist() == [[2, 1], [0, 3]]
    parts, counts = run("StringSplit", np.array(["a,,b,c"], object), outputs=2, delimiter=",", maxsplit=2)
    assert parts.tolist() == [["a", "", "b,c"]]
    assert run("StringSplit", np.zeros((0, 2), object), outputs=2)[0].shape == (0, 2, 0)
    assert run("StringConcat", words[:1], np.array([["x"], ["y"]], object)).tolist() == [
        ["Mondayx"],
        ["Mondayy"],
    ]
    assert run("RegexFullMatch", words, pattern="[a-z]+").tolist() == [False, True, False]
    for name, given_, attributes in (
        ("RegexFullMatch", words, {"pattern": "("}),
        ("RegexFullMatch", words, {}),
        ("RegexFullMatch", ints(1), {"pattern": "a"}),
        ("StringSplit", ints(1), {}),
    ):
        with pytest.raises(LayoutError, match=name):
            run(name, given_, **attributes)


def test_one_of_two_graphs():
    branches = {
        "then_branch": Body(lambda x, y: (x + y, x)),
        "else_branch": Body(lambda x, y: (x - y, y)),
    }
    for condition, expected in ((True, [5, 2]), (np.array([False]), [-1, 3])):
        made = run("If", np.asarray(condition), ints(2), ints(3), outputs=2, captured=2, **branches)
        assert [x.item() for x in made] == expected
    with pytest.raises(LayoutError, match="the condition must be one number"):
        run("If", np.array([True, False]), **branches)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(-3, 3))
def test_loops_are_loops(trips, stop, step):
    """A count, a condition, a state, and a result of each turn; ``step`` comes from outside."""

    def turn(i: Any, condition: Any, state: Any, by: Any) -> tuple[Any, ...]:
        assert condition.dtype == bool
        assert i.dtype == np.int64
        return np.array(i + 1 < stop), state + by, np.array([i, state.item()])

    state, results = 10, []
    for i in range(trips):
        if i and i >= stop:
            break
        results.append([i, state])
        state += step
    last, stacked = run(
        "Loop",
        number(trips),
        np.array(True),
        number(10),
        number(step),
        body=Body(turn),
        captured=1,
        outputs=2,
    )
    assert last == state
    assert stacked.tolist() == results
    forever = Body(lambda i, condition, state: (np.array(i < 4), state + 1))
    assert run("Loop", None, np.array(True), number(0), body=forever) == 5
    assert run("Loop", None, np.array(False), number(0), body=forever) == 0
    assert run("Loop", number(7), None, number(0), body=forever) == 7  # without a condition none is asked


def test_loops_carry_sequences():
    body = Body(lambda i, condition, sequence: (condition, [*sequence, i]))
    assert [int(i) for i in run("Loop", number(3), None, [], body=body)] == [0, 1, 2]


def test_loops_refuse_what_is_no_body():
    with pytest.raises(LayoutError, match="has 1 output; it must have 2"):
        run("Loop", number(3), None, number(1), body=Body(lambda *_: (np.array(True),)))
    with pytest.raises(LayoutError, match="changes its dims"):
        run("Loop", number(3), None, body=Body(lambda i, c: (c, np.zeros(int(i)))))


def test_scans():
    x = np.arange(6.0).reshape(2, 3)
    body = Body(lambda total, row, by: (total + row, row * by))
    total, rows = run("Scan", np.zeros(3), x, number(2), body=body, num_scan_inputs=1, captured=1, outputs=2)
    np.testing.assert_array_equal(total, x.sum(0))
    np.testing.assert_array_equal(rows, x * 2)
    columns = Body(lambda left, right: (left, right + left))
    given_ = {"scan_input_axes": (1, -1), "scan_input_directions": (0, 1)}
    first, sums = run(
        "Scan",
        x,
        x,
        body=columns,
        num_scan_inputs=2,
        outputs=2,
        scan_output_axes=(1, 0),
        scan_output_directions=(1, 0),
        **given_,
    )
    np.testing.assert_array_equal(first, x[:, ::-1])
    np.testing.assert_array_equal(sums, (x + x[:, ::-1]).T)
    with pytest.raises(LayoutError, match="scanned inputs have sizes 2, 3"):
        run("Scan", x, x.T, body=columns, num_scan_inputs=2, outputs=2)


def test_turns_that_never_happen():
    body = Body(lambda *_: pytest.fail("called"))
    last, stacked = run("Loop", number(0), None, ints(1), body=body, outputs=2)
    assert last.tolist() == [1]
    assert stacked.shape == (0,)
    assert run("SequenceMap", [], ints(1), body=body, outputs=2) == ([], [])


@pytest.mark.parametrize(("axis", "dims"), [(0, (0, 2, 0)), (1, (2, 0, 0)), (-1, (2, 0, 0))])
def test_no_turn_leaves_what_is_known_of_the_inner_graph(axis, dims):
    """Its results have a size of 0 along the new axis, and where theirs is not known."""
    inputs = Value("a", (1,)), Value("e", (4,))
    known = {"r": Value("r", (2, None), np.dtype(np.int64))}
    body = Graph(inputs, ("a", "r"), (Node("Shrink", ("e",), ("r",)),), values=known)
    x = np.zeros((0, 4))
    _, stacked = run("Scan", ints(1), x, body=body, num_scan_inputs=1, scan_output_axes=(axis,), outputs=2)
    assert (stacked.shape, stacked.dtype) == (dims, np.int64)


def test_maps():
    body = Body(lambda x, y, whole, around: (x + y, whole * around))
    sums, products = run(
        "SequenceMap",
        [ints(1), ints(2)],
        [ints(3), ints(4)],
        ints(5),
        ints(6),
        body=body,
        captured=1,
        outputs=2,
    )
    assert [x.item() for x in sums] == [4, 6]
    assert [x.item() for x in products] == [30, 30]
    with pytest.raises(LayoutError, match="one length"):
        run("SequenceMap", [ints(1)], [], body=body)


X = np.zeros((2, 3), np.float32)

REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("Add", (X, np.zeros(2, np.float32)), {}, "2x3"),
    ("Add", (X, X.astype(np.float64)), {}, "float32, float64"),
    ("Equal", (X, ints(1)), {}, "one data type"),
    ("Sum", (X, ints(1)), {}, "one data type"),
    ("BitShift", (ints(1), ints(1)), {"direction": "UP"}, "'UP'"),
    ("Where", (np.array(True), X, ints(1)), {}, "one data type"),
    ("PRelu", (X, np.zeros((4, 2, 3), np.float32)), {}, "4x2x3"),
    ("Gelu", (X,), {"approximate": "erf"}, "'erf'"),
    ("Softmax", (X,), {"axis": 2}, "axis 2 is outside of -2 to 1"),
    ("Cast", (X,), {"to": 99}, "99 is no data type"),
    ("Cast", (np.array(["one"], object),), {"to": 1}, "one"),
    ("BitCast", (X,), {"to": 7}, "float32 has 32, int64 has 64"),
    ("BitCast", (X,), {"to": 8}, "texts can't be cast bit by bit"),
    ("CumSum", (X, ints(0, 1)), {}, "axis must be one number"),
    ("ReduceSum", (X, ints(2)), {}, "axis 2"),
    ("ReduceSum", (X, ints(0, -2)), {}, "twice"),
    ("ArgMax", (np.zeros((0, 3)),), {}, "axis 0 is empty"),
    ("TopK", (X, ints(4)), {}, "no 4 elements"),
    ("MatMul", (X, X), {}, "2x3, float32 2x3"),
    ("Gemm", (X, X.T, np.zeros((3, 2, 2), np.float32)), {}, "3x2x2"),
    ("Gemm", (X[0], X), {}, "matrices"),
    ("Einsum", (X,), {"equation": "ij,jk->ik"}, "2 terms for 1 input"),
    ("Einsum", (X,), {"equation": "ijk->i"}, "'ijk' is not for 2 axes"),
    ("Reshape", (X, ints(4, 2)), {}, "2x3 can't be arranged as 4x2"),
    ("Reshape", (X, ints(4, -1)), {}, "2x3 can't be arranged as 4x-1"),
    ("Reshape", (X, ints(-1, -1)), {}, "no shape"),
    ("Reshape", (X, ints(0, -1)), {"allowzero": 1}, "no shape"),
    ("Reshape", (X, ints(2, 3, 0)), {}, "behind the 2 axes that there are"),
    ("Squeeze", (X, ints(0)), {}, "axis 0 has size 2"),
    ("Unsqueeze", (X, ints(0, 0)), {}, "twice"),
    ("Unsqueeze", (X, ints(3)), {}, "axis 3"),
    ("Transpose", (X,), {"perm": (0, 0)}, "twice"),
    ("Transpose", (X,), {"perm": (0,)}, "no order of 2 axes"),
    ("Expand", (X, ints(4)), {}, "Expand"),
    ("Flatten", (X,), {"axis": 3}, "axis 3"),
    ("Concat", (X, X[:1]), {"axis": 1}, "sizes of axis 0 differ: 2, 1"),
    ("Concat", (X, X[0]), {"axis": 1}, "same number of axes, got 2, 1"),
    ("Concat", (X, ints(1)), {"axis": 0}, "one data type"),
    ("Split", (X, ints(1, 1)), {"axis": 1}, "3 elements can't be split into parts of 1, 1"),
    ("Split", (X,), {"num_outputs": 5}, "can't be split"),
    ("Slice", (X, ints(0), ints(1), ints(0), ints(0)), {}, "a step must not be 0"),
    ("Slice", (X, ints(0), ints(1, 1)), {}, "of one length, got 1, 2, 1, 1"),
    ("Slice", (X, number(0), ints(1)), {}, "must be vectors"),
    ("Tile", (X, ints(2)), {}, "1 repeats for 2 axes"),
    ("Pad", (X, ints(1, 1)), {}, "2 pads for 2 axes"),
    ("Pad", (X, ints(-3, 0, 0, 0)), {}, "take away more elements"),
    ("Pad", (X, ints(1, 1, 1, 1)), {"mode": "mirror"}, "'mirror'"),
    ("Pad", (np.zeros((0, 2)), ints(1, 0, 0, 0)), {"mode": "reflect"}, "Pad"),
    ("DepthToSpace", (np.zeros((1, 3, 2, 2)),), {"blocksize": 2}, "size 3 is no multiple of 4"),
    ("SpaceToDepth", (np.zeros((1, 3, 2, 3)),), {"blocksize": 2}, "size 3 is no multiple of 2"),
    ("ReverseSequence", (X, ints(3, 1, 1)), {}, "[3, 1, 1]"),
    ("CenterCropPad", (X, ints(1)), {}, "1 sizes for 2 axes"),
    ("TensorScatter", (np.zeros((2, 3, 4)), np.zeros((2, 2, 4)), ints(2, 0)), {}, "beyond axis 1 of size 3"),
    ("Gather", (X, ints(2)), {}, "Gather"),
    ("GatherElements", (X, ints(0)), {}, "indices have 1 axis and data 2"),
    ("GatherND", (X, ints(0, 0, 0)), {}, "3 coordinates in data of 2 axes"),
    ("GatherND", (X, ints(5)), {}, "GatherND"),
    ("GatherND", (X, ints(0)[None]), {"batch_dims": -1}, "batch_dims -1 must be 0 or more"),
    ("GatherND", (X, ints(0)), {"batch_dims": 1}, "must be less than the number of axes of indices, 1"),
    ("Trilu", (X[0],), {}, "must hold matrices, and has 1 axis"),
    ("ScatterND", (X, ints(1)[None], X), {}, "updates must be 1x3"),
    ("ScatterElements", (X, ints(1)[None], X), {}, "one update for each"),
    ("ScatterElements", (X, np.zeros((1, 1), int), X[:1, :1]), {"reduction": "sub"}, "'sub'"),
    ("Constant", (), {}, "none"),
    ("Constant", (), {"value_int": 1, "value_float": 1.0}, "value_float, value_int"),
    ("ConstantOfShape", (ints(-1),), {}, "ConstantOfShape"),
    ("Range", (number(0), number(1), number(0)), {}, "a step must not be 0"),
    ("EyeLike", (X[0],), {}, "matrix"),
    ("OneHot", (ints(1), ints(1, 2), ints(0, 1)), {}, "depth must be one number, got 2"),
    ("Compress", (X, np.array([True])), {"axis": 3}, "axis 3"),
]


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "words"), REFUSED, ids=[f"{i}-{r[0]}" for i, r in enumerate(REFUSED)]
)
def test_errors_name_the_operator_and_the_numbers(name, inputs, attributes, words):
    with pytest.raises(LayoutError) as caught:
        OPERATORS[name](*inputs, **attributes)
    text = str(caught.value)
    assert text.startswith(f"{name} of ")
    assert words in text
    facts = [Fact(x.shape, x.dtype, x) for x in inputs]
    try:
        OPERATORS[name].inferred(*facts, **attributes)
    except LayoutError as error:  # inference may know less, but fails in no other way
        assert str(error).startswith(name)  # noqa: PT017


def test_what_no_call_looks_like():
    for arguments, attributes, words in (
        ((), {}, "takes x; got 0 inputs"),
        ((X, X), {}, "takes x; got 2 inputs"),
        ((X,), {"alpha": 1}, "has no attribute 'alpha'"),
    ):
        with pytest.raises(LayoutError, match=words):
            OPERATORS["Relu"](*arguments, **attributes)
    with pytest.raises(LayoutError, match="needs the attribute 'axis'"):
        OPERATORS["Concat"](X)


N = Fact(("n", 3, None, 4), F32)

NAMED: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("Reshape", (N, ints(0, 3, 0, -1)), {}, ("n", 3, None, 4)),
    ("Reshape", (N, ints(-1, 12)), {}, (None, 12)),
    ("Reshape", (Fact(("n", 3, 4)), ints(-1, 12)), {}, ("n", 12)),
    ("Reshape", (Fact(("n", 3, 4)), ints(-1, 6)), {}, (None, 6)),
    ("Reshape", (Fact(("n", 3, 4)), ints(0, -1)), {}, ("n", 12)),
    ("Reshape", (Fact((None, 3, 4)), ints(0, -1)), {}, (None, 12)),
    ("Reshape", (Fact((0, 3, 4)), ints(0, -1)), {}, (0, 12)),
    ("Reshape", (Fact(), ints(0, -1, 5)), {}, (None, None, 5)),
    ("Reshape", (N, Fact((2,))), {}, (None, None)),
    ("Flatten", (Fact(("n", 3, 4)),), {}, ("n", 12)),
    ("Flatten", (N,), {"axis": 2}, (None, None)),
    ("Flatten", (Fact(),), {}, (None, None)),
    ("Squeeze", (Fact(("n", 1)),), {}, None),
    ("Squeeze", (Fact(("n", 1)), ints(1)), {}, ("n",)),
    ("Squeeze", (Fact((2, 1)),), {}, (2,)),
    ("Squeeze", (N, Fact((1,))), {}, None),
    ("Unsqueeze", (N, ints(0, -1)), {}, (1, "n", 3, None, 4, 1)),
    ("Unsqueeze", (N, Fact((1,))), {}, (None,) * 5),
    ("Expand", (Fact(("n", 1)), ints(1, 4)), {}, ("n", 4)),
    ("Expand", (Fact(("n", 1)), Fact((3,))), {}, (None,) * 3),
    ("Transpose", (N,), {"perm": (1, 0, 3, 2)}, (3, "n", 4, None)),
    ("Transpose", (N,), {}, (4, None, 3, "n")),
    ("Shape", (N,), {"start": 1, "end": 2}, (1,)),
    ("Concat", (N, Fact((None, 3, 2, 4))), {"axis": 0}, (None, 3, 2, 4)),
    ("Concat", (N,), {"axis": 0}, ("n", 3, None, 4)),
    ("Concat", (N, Fact(("m", 5, None, 4))), {"axis": 1}, ("n", 8, None, 4)),
    ("Concat", (N, Fact()), {"axis": 1}, (None,) * 4),
    ("Slice", (N, ints(0, 1), ints(2**63 - 1, 9), ints(0, 3)), {}, ("n", 3, None, 3)),
    ("Slice", (N, ints(1), ints(2**63 - 1)), {}, (None, 3, None, 4)),
    ("Slice", (N, Fact((1,)), Fact((1,)), ints(1)), {}, ("n", None, None, 4)),
    ("Slice", (N, Fact((1,)), Fact((1,)), Fact((1,))), {}, (None,) * 4),
    ("Slice", (N, Fact((1,)), Fact((1,))), {}, (None, 3, None, 4)),
    ("Slice", (N, ints(1), Fact((1,))), {}, (None, 3, None, 4)),
    ("Slice", (N, ints(1), ints(2), ints(1), Fact((1,))), {}, ("n", None, None, 4)),
    ("Tile", (N, ints(1, 2, 1, 1)), {}, ("n", 6, None, 4)),
    ("Tile", (N, ints(2, 1, 1, 1)), {}, (None, 3, None, 4)),
    ("Pad", (N, ints(0, 1, 0, 0, 0, 1, 0, 0)), {}, ("n", 5, None, 4)),
    ("Pad", (N, ints(1, 0, 0, 0, 0, 0, 0, 0)), {}, (None, 3, None, 4)),
    ("Pad", (N, Fact((8,))), {}, (None,) * 4),
    ("Split", (N,), {"num_outputs": 2, "axis": 3}, ("n", 3, None, 2)),
    ("Split", (N, ints(1, 2)), {"axis": 0}, (1, 3, None, 4)),
    ("DepthToSpace", (Fact(("n", 8, "h", 3)),), {"blocksize": 2}, ("n", 2, None, 6)),
    ("SpaceToDepth", (Fact(("n", 8, "h", 4)),), {"blocksize": 2}, ("n", 32, None, 2)),
    ("ReduceMean", (N, ints(-1)), {}, ("n", 3, None, 1)),
    ("ReduceMean", (N, ints(-1)), {"keepdims": 0}, ("n", 3, None)),
    ("ReduceMean", (N, Fact((1,))), {}, (None,) * 4),
    ("ReduceMean", (N, Fact((1,))), {"keepdims": 0}, None),
    ("ArgMax", (N,), {"axis": 1, "keepdims": 0}, ("n", None, 4)),
    ("TopK", (N, ints(2)), {"axis": 0}, (2, 3, None, 4)),
    ("TopK", (N, Fact((1,))), {}, ("n", 3, None, None)),
    ("Gather", (N, Fact(("m", 2))), {"axis": 1}, ("n", "m", 2, None, 4)),
    ("Gather", (N, number(0)), {"axis": 0}, (3, None, 4)),
    ("GatherND", (N, Fact(("m", 2))), {}, ("m", None, 4)),
    ("GatherND", (N, Fact(("m", None))), {}, None),
    ("GatherElements", (N, Fact(("m", 2, 2, 2))), {}, ("m", 2, 2, 2)),
    ("MatMul", (Fact(("n", "t", 8)), Fact((8, 16))), {}, ("n", "t", 16)),
    ("MatMul", (Fact(("n", 1, 2, 8)), Fact(("h", 8, "t"))), {}, ("n", "h", 2, "t")),
    ("Gemm", (Fact((8, "n")), Fact((5, 8))), {"transA": 1, "transB": 1}, ("n", 5)),
    ("OneHot", (Fact(("n",)), number(7), ints(0, 1)), {}, ("n", 7)),
    ("ConstantOfShape", (Fact((3,)),), {}, (None,) * 3),
    ("Range", (number(0), Fact(()), number(1)), {}, (None,)),
    ("Add", (Fact(("n", 1, 4)), Fact(("m", 1))), {}, ("n", "m", 4)),
    ("Add", (Fact(("n", 4)), Fact(("m", 4))), {}, (None, 4)),
    ("Where", (Fact(("n", 1)), Fact((3,)), Fact(())), {}, ("n", 3)),
    ("NonZero", (N,), {}, (4, None)),
]


@pytest.mark.parametrize(
    ("name", "given_", "attributes", "dims"), NAMED, ids=[f"{i}-{r[0]}" for i, r in enumerate(NAMED)]
)
def test_sizes_that_are_not_known(name, given_, attributes, dims):
    """As much as can be known, and no more: names stay where a size stays."""
    facts = [Fact(x.shape, x.dtype, x) if isinstance(x, np.ndarray) else x for x in given_]
    assert OPERATORS[name].inferred(*facts, **attributes)[0].dims == dims


SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(SHAPES, st.data())
@settings(max_examples=tried(300))
def test_inferred_dims_of_reshapes(dims, data):
    """With one size unknown, what is inferred for -1 is right or left open."""
    size = int(np.prod(dims))
    divisors = [n for n in range(1, size + 1) if size % n == 0] or [0]
    first = data.draw(st.sampled_from(divisors))
    rest = size // first if first else data.draw(st.integers(0, 3))
    shape = data.draw(
        st.sampled_from([(first, rest), (first, -1), (-1, rest), (-1,), (0, -1), (1, first, 1, rest)])
    )
    hidden = data.draw(st.sampled_from([None, *range(len(dims))]))
    x = np.zeros(dims, np.float32)
    try:
        (made,) = OPERATORS["Reshape"](x, ints(*shape))
    except LayoutError:
        return
    given_ = tuple(f"n{n}" if axis == hidden else n for axis, n in enumerate(dims))
    (fact,) = OPERATORS["Reshape"].inferred(Fact(given_, F32), Fact((len(shape),), None, ints(*shape)))
    assert fact.dims is not None
    assert len(fact.dims) == made.ndim
    for n, size in zip(fact.dims, made.shape, strict=True):
        assert n in (None, size, f"n{size}")
    if hidden is None:
        assert fact.dims == made.shape


@given(st.integers(0, 6), *[st.integers(-9, 9)] * 2, st.integers(-4, 4).filter(bool))
def test_slices_are_those_of_the_text(size, start, end, step):
    """ONNX's own words, element by element: starts and ends are shifted, and cut off at what there is."""
    first, last = (n + size if n < 0 else n for n in (start, end))
    if step > 0:
        first, last = min(max(first, 0), size), min(max(last, 0), size)
    else:
        first, last = min(max(first, 0), size - 1), min(max(last, -1), size - 1)
    x = np.arange(size)
    expected = [x[i] for i in range(first, last, step)] if size else []
    assert run("Slice", x, ints(start), ints(end), ints(0), ints(step)).tolist() == expected


def test_every_result_is_an_array():
    """Scalars too: what NumPy returns as a number of its own is an array without axes."""
    zero = np.zeros((), np.float32)
    for name in ("Relu", "Exp", "Gelu", "Softplus", "Identity", "IsNaN", "Not"):
        (made,) = OPERATORS[name](zero.astype(bool) if name == "Not" else zero)
        assert type(made) is np.ndarray
    for name, inputs in (
        ("Add", (zero, zero)),
        ("Less", (zero, zero)),
        ("Where", (zero > 0, zero, zero)),
        ("ReduceSum", (X, None)),
        ("MatMul", (X[0], X[0])),
        ("Gather", (X[0], number(1))),
        ("Det", (np.eye(2),)),
        ("Max", (zero, zero)),
    ):
        attributes = {"keepdims": 0} if name == "ReduceSum" else {}
        (made,) = OPERATORS[name](*inputs, **attributes)
        assert type(made) is np.ndarray
        assert made.shape == ()


def test_nothing_writes_to_its_inputs():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    x.flags.writeable = False
    for name, inputs, attributes in (
        ("ScatterND", (x, ints(0)[None], x[:1]), {"reduction": "add"}),
        ("ScatterElements", (x, np.zeros((1, 3), int), x[:1]), {}),
        ("TensorScatter", (x[None], x[None, :1]), {}),
        ("Softmax", (x,), {}),
        ("Pad", (x, ints(1, 1, 1, 1)), {}),
    ):
        OPERATORS[name](*inputs, **attributes)
