"""PyTorch's memory-format rules, in four ways.

Against answers recorded from torch 2.13, against torch itself where one is installed, against definitions by
enumeration, and as properties.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import pytorch as rules
from relayout.errors import LayoutError, UnknownFormat
from relayout.pytorch.convolution import strides_seen_by_convolution
from relayout.pytorch.formats import channels_last_of_rank, rank_of
from relayout.pytorch.propagation import broadcast_dims

Geometry = tuple[tuple[int, ...], tuple[int, ...]]
Vectors = Callable[[str], Any]


# --- recorded answers of torch 2.13 -----------------------------------------------------------------------


def or_refusal(rule: Callable[..., tuple[int, ...]], *arguments: Any) -> list[int] | str:
    try:
        return list(rule(*arguments))
    except LayoutError:
        return "RuntimeError"


def for_each_format(rule: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda *x: [rule(*x, name) for name in rules.MEMORY_FORMATS]


def strides_or_refusal(rule: Callable[..., tuple[int, ...]]) -> Callable[..., list[Any]]:
    return for_each_format(lambda *arguments: or_refusal(rule, *arguments))


UNARY: dict[str, Callable[..., Any]] = {
    "contig": for_each_format(rules.is_contiguous),
    "suggest": rules.suggest_memory_format,
    "nod": rules.is_non_overlapping_and_dense,
    "to": strides_or_refusal(rules.to),
    "contiguous": strides_or_refusal(rules.contiguous),
    "clone": lambda *x: list(rules.clone(*x)),
    "empty_like": lambda *x: list(rules.empty_like(*x)),
    "empty_like_fmt": strides_or_refusal(rules.empty_like),
    "neg": lambda *x: list(rules.elementwise([x])),
    "add_scalar": lambda *x: list(rules.elementwise([x, rules.NUMBER])),
}


@pytest.mark.parametrize("field", UNARY)
def test_recorded_answers_for_one_tensor(vectors: Vectors, field: str) -> None:
    cases = vectors("pytorch_strides")["unary"]
    wrong = [case["x"] for case in cases if UNARY[field](*case["x"]) != case[field]]
    assert cases
    assert wrong == []


def test_every_recorded_field_is_checked(vectors: Vectors) -> None:
    recorded = vectors("pytorch_strides")
    assert recorded["formats"] == list(rules.MEMORY_FORMATS)
    assert {field for case in recorded["unary"] for field in case} == {"x", *UNARY}


@pytest.mark.parametrize(
    ("group", "operands", "operation"), [("binary", "ab", "add"), ("ternary", "abc", "addcmul")]
)
def test_recorded_answers_for_several_tensors(
    vectors: Vectors, group: str, operands: str, operation: str
) -> None:
    cases = vectors("pytorch_strides")[group]
    assert cases
    for case in cases:
        tensors = [case[name] for name in operands]
        dims, strides = case[operation]
        assert list(rules.elementwise(tensors)) == strides, tensors
        assert list(broadcast_dims([tuple(tensor[0]) for tensor in tensors])) == dims


# --- a torch, where one is installed ----------------------------------------------------------------------


def random_geometry(source: random.Random, rank: int, sizes: list[int]) -> Geometry:
    """Permuted, sliced, expanded and overlapping strides, with unlikely ones on axes of size 0 and 1."""
    dims = tuple(source.choice(sizes) for _ in range(rank))
    order = list(range(rank))
    if source.random() < 0.8:
        source.shuffle(order)
    strides, step = [0] * rank, 1
    for axis in order:
        strides[axis] = step
        step *= max(dims[axis], 1) * source.choice([1, 1, 1, 1, 2])
    for axis in range(rank):
        if source.random() < (0.4 if dims[axis] < 2 else 0.1):
            strides[axis] = source.choice([0, 1, 2, 3, *strides])
    return dims, tuple(strides)


def random_operands(source: random.Random, dims: tuple[int, ...], count: int) -> list[Geometry]:
    """Tensors that broadcast to these dims, most of them with some axes of size 1 or left out."""
    operands = []
    for _ in range(count):
        _, strides = random_geometry(source, len(dims), [1, 2, 3])
        kept = tuple(1 if source.random() < 0.2 else size for size in dims)
        missing = source.choice([0, 0, 0, 1]) if dims else 0
        operands.append((kept[missing:], strides[missing:]))
    return operands


def attempt(call: Callable[[], Any]) -> Any:
    """What the call returns, or None where torch refuses it."""
    try:
        return call()
    except RuntimeError:
        return None


def test_same_answers_as_torch() -> None:
    torch = pytest.importorskip("torch")
    source = random.Random(1900)
    memory = torch.ones(100_000)
    for _ in range(400):
        rank = source.choice([0, 1, 2, 3, 4, 4, 4, 5, 5, 6])
        x = random_geometry(source, rank, [0, 1, 1, 1, 2, 2, 3, 3, 4])
        tensor = memory.as_strided(*x)
        for name in rules.MEMORY_FORMATS:
            torch_format = getattr(torch, name)
            assert rules.is_contiguous(*x, name) == tensor.is_contiguous(memory_format=torch_format), (
                x,
                name,
            )
            moved = attempt(lambda f=torch_format, x=tensor: x.to(memory_format=f))
            packed = attempt(lambda f=torch_format, x=tensor: x.contiguous(memory_format=f))
            for result, rule, copies in (
                (moved, rules.to, rules.to_copies),
                (packed, rules.contiguous, rules.contiguous_copies),
            ):
                if result is None:
                    assert or_refusal(rule, *x, torch_format) == "RuntimeError"
                else:
                    assert rule(*x, torch_format) == result.stride(), (x, name, rule)
                    assert copies(*x, torch_format) == (result is not tensor), (x, name, rule)
        kept = attempt(lambda x=tensor: x.contiguous(memory_format=torch.preserve_format))
        if kept is None:
            assert or_refusal(rules.contiguous, *x, torch.preserve_format) == "RuntimeError"
        else:
            assert rules.contiguous(*x, torch.preserve_format) == kept.stride()
            assert not rules.contiguous_copies(*x, torch.preserve_format)
        assert str(rules.explain(tensor)) == str(rules.explain(*x))
        assert rules.clone(*x) == tensor.clone().stride(), x
        assert rules.empty_like(*x) == torch.empty_like(tensor).stride(), x

        operands = [x, *random_operands(source, x[0], 2)]
        source.shuffle(operands)
        a, b, c = (memory.as_strided(*operand) for operand in operands)
        assert rules.elementwise(operands[:1]) == (-a).stride(), operands
        assert rules.elementwise([operands[0], rules.NUMBER]) == (a + 1).stride(), operands
        assert rules.elementwise(operands[:2]) == (a + b).stride(), operands
        assert rules.elementwise(operands) == torch.addcmul(a, b, c).stride(), operands
        packed_first = (operands[0][0], rules.empty_like(*operands[0]))
        doubles = memory.double().as_strided(*operands[1])
        assert rules.elementwise([packed_first, operands[1]]) == (a + doubles).stride(), operands


def test_explanations_hold_in_torch() -> None:
    """Every call that an explanation prints is made, and does what the explanation says."""
    torch = pytest.importorskip("torch")
    source = random.Random(1901)
    memory = torch.ones(100_000)
    for _ in range(300):
        geometry = random_geometry(source, source.choice([2, 3, 4, 4, 4, 5]), [1, 1, 1, 2, 3])
        x, report = memory.as_strided(*geometry), rules.explain(*geometry)
        names = {"x": x, "torch": torch}
        assert (-x).stride() == report.unary_strides
        assert (x + 1).stride() == report.number_strides
        for conversion in report.conversions:
            result = attempt(lambda call=conversion.call, names=names: eval(call, names))
            assert (result is None) == (conversion.strides is None)
            if result is not None:
                answer = (result.stride(), result is not x)
                assert answer == (conversion.strides, conversion.copies), geometry
        for remedy in report.remedies:
            if remedy.call:
                result = eval(remedy.call, names)
                torch_format = getattr(torch, remedy.memory_format)
                assert (result.data_ptr() != x.data_ptr()) == remedy.copies
                assert result.is_contiguous(memory_format=torch_format), geometry
                assert result.to(memory_format=torch_format) is result, geometry


def test_convolutions_work_in_the_format_that_the_rule_names() -> None:
    torch = pytest.importorskip("torch")
    source = random.Random(1902)
    memory = torch.ones(100_000)
    backends = torch._C._ConvBackend
    for _ in range(150):
        x = random_geometry(source, source.choice([3, 4, 4, 5]), [1, 2, 3])
        seen = strides_seen_by_convolution(*x)
        assert seen is not None
        if len(x[0]) == 3:
            assert memory.as_strided(*x).unsqueeze(0).stride() == seen[1]
        rank = len(seen[0])
        weight_dims = (2, seen[0][1], *[1] * (rank - 2))
        weight = (weight_dims, random_geometry(source, rank, [1, 3])[1])
        if source.random() < 0.5:
            weight = (weight_dims, rules.strides_for(weight_dims, "contiguous_format"))
        tensors = memory.as_strided(*seen), memory.as_strided(*weight)
        ones, zeros = [1] * (rank - 2), [0] * (rank - 2)
        backend = torch._C._select_conv_backend(
            *tensors,
            bias=None,
            stride=ones,
            padding=zeros,
            dilation=ones,
            transposed=False,
            output_padding=zeros,
            groups=1,
            bias_sizes=None,
        )
        chosen = torch._C._conv_determine_backend_memory_format(*tensors, backend)
        expected = rules.convolution_memory_format(seen, weight)
        if backend == backends.Slow3d:
            expected = "contiguous_format"
        assert str(chosen) == f"torch.{expected}", (seen, weight)


# --- definitions by enumeration ---------------------------------------------------------------------------

small_dims = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@st.composite
def geometries(draw: st.DrawFn, dims: st.SearchStrategy[tuple[int, ...]] = small_dims) -> Geometry:
    """Packed strides in any order of the axes, some of them then replaced."""
    sizes = draw(dims)
    order = draw(st.permutations(range(len(sizes))))
    strides, step = [0] * len(sizes), 1
    for axis in order:
        strides[axis] = step
        step *= max(sizes[axis], 1) * draw(st.sampled_from([1, 1, 1, 2]))
    replaced = draw(st.dictionaries(st.integers(0, len(sizes)), st.integers(0, 6), max_size=2))
    return sizes, tuple(replaced.get(axis, stride) for axis, stride in enumerate(strides))


four_axes = st.tuples(*[st.sampled_from([0, 1, 1, 2, 3])] * 4)
five_axes = st.tuples(*[st.sampled_from([0, 1, 1, 2, 3])] * 5)
images = geometries(four_axes | five_axes)


def addresses(
    dims: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...] | None = None
) -> list[int]:
    """Addresses of all elements, counted through with the last axis of ``order`` fastest."""
    axes = range(len(dims)) if order is None else order
    counted = product(*(range(dims[axis]) for axis in axes))
    return [sum(i * strides[axis] for i, axis in zip(index, axes, strict=True)) for index in counted]


@given(geometries())
def test_overlap_is_two_elements_at_one_address(x: Geometry) -> None:
    places = addresses(*x)
    assert rules.overlaps(*x) == (len(set(places)) < len(places))


@given(geometries())
def test_dense_is_every_address_once(x: Geometry) -> None:
    places = addresses(*x)
    assert rules.is_non_overlapping_and_dense(*x) == (sorted(places) == list(range(len(places))))


@given(images.filter(lambda x: 0 not in x[0]))
def test_contiguous_is_counting_through_memory(x: Geometry) -> None:
    last = tuple(axis for axis in range(len(x[0])) if axis != 1)
    in_memory_order = list(range(prod(x[0])))
    channels_last = channels_last_of_rank(len(x[0]))
    assert rules.is_contiguous(*x) == (addresses(*x) == in_memory_order)
    assert rules.is_contiguous(*x, channels_last) == (addresses(*x, (*last, 1)) == in_memory_order)


def test_overlap_of_large_tensors_is_found_or_left_open() -> None:
    assert rules.overlaps((10**9, 10**9), (10**9, 1)) is False
    assert rules.overlaps((10**9, 10**9 + 1), (10**9, 1)) is True
    assert rules.overlaps((10**9, 10**9), (10**9 + 3, 10**9 + 1)) is False
    assert rules.overlaps((10**9 + 2, 10**9 + 4), (10**9 + 3, 10**9 + 1)) is True
    strides = [1724248422488, 1113531570773, 1861390455763, 1062173204960, 1360911013981, 1306520402976]
    assert rules.overlaps((30,) * 8, [*strides, 1738617225063, 1139414508770]) is None


# --- properties -------------------------------------------------------------------------------------------

memory_formats = st.sampled_from(rules.MEMORY_FORMATS)


@given(images, memory_formats)
def test_new_tensors_are_contiguous_in_their_format(x: Geometry, name: str) -> None:
    dims, _ = x
    if rank_of(name) in (None, len(dims)):
        assert rules.is_contiguous(dims, rules.strides_for(dims, name), name)


@given(images, memory_formats)
def test_contiguous_delivers_and_leaves_alone_what_is_right(x: Geometry, name: str) -> None:
    dims, strides = x
    if rank_of(name) in (None, len(dims)):
        result = rules.contiguous(dims, strides, name)
        assert rules.is_contiguous(dims, result, name)
        assert rules.contiguous(dims, result, name) == result
        assert (result == strides) or not rules.is_contiguous(dims, strides, name)


@given(images)
def test_to_contiguous_format_is_final_and_taken_for_it(x: Geometry) -> None:
    dims, strides = x
    result = rules.to(dims, strides, "contiguous_format")
    assert rules.suggest_memory_format(dims, result) == "contiguous_format"
    assert rules.to(dims, result, "contiguous_format") == result


@given(images)
def test_to_channels_last_is_taken_for_it_unless_no_strides_can_say_it(x: Geometry) -> None:
    dims, strides = x
    name = channels_last_of_rank(len(dims))
    taken = rules.suggest_memory_format(dims, rules.to(dims, strides, name)) == name
    sayable = 0 not in dims and prod(dims[1:]) > 1
    assert taken or not sayable


@given(geometries())
def test_clone_is_dense_and_keeps_dense_strides(x: Geometry) -> None:
    dims, strides = x
    result = rules.clone(dims, strides)
    assert rules.is_non_overlapping_and_dense(dims, result)
    assert result == strides or not rules.is_non_overlapping_and_dense(dims, strides)


@given(geometries(st.lists(st.integers(2, 4), max_size=5).map(tuple)))
def test_without_size_1_axes_a_dense_tensor_keeps_its_strides(x: Geometry) -> None:
    dims, strides = x
    if rules.is_non_overlapping_and_dense(dims, strides):
        assert rules.elementwise([x]) == rules.elementwise([x, x]) == strides
        assert rules.elementwise([x, rules.NUMBER]) == rules.elementwise([rules.NUMBER, x]) == strides
        assert rules.dense_strides_like(dims, strides) == strides


@given(st.lists(geometries(), min_size=1, max_size=4))
def test_results_of_elementwise_operations_are_dense(operands: list[Geometry]) -> None:
    try:
        shape = broadcast_dims([dims for dims, _ in operands])
    except LayoutError:
        with pytest.raises(LayoutError, match="do not broadcast"):
            rules.elementwise(operands)
        return
    assert rules.is_non_overlapping_and_dense(shape, rules.elementwise(operands))


@given(images, images)
def test_exact_suggestions_are_suggestions(x: Geometry, weight: Geometry) -> None:
    exact = rules.suggest_memory_format(*x, exact=True)
    assert exact in ("contiguous_format", rules.suggest_memory_format(*x))
    assert exact == "contiguous_format" or x[1] == rules.strides_for(x[0], exact)


# --- explanations -----------------------------------------------------------------------------------------


def words(dims: tuple[int, ...], strides: tuple[int, ...]) -> str:
    """The explanation on one line, so that line breaks do not matter."""
    return " ".join(str(rules.explain(dims, strides)).split())


@given(geometries() | images)
def test_every_tensor_can_be_explained(x: Geometry) -> None:
    dims, strides = x
    report = rules.explain(dims, strides)
    assert all(len(line) <= 110 for line in str(report).splitlines())
    assert report.suggested == rules.suggest_memory_format(dims, strides)
    assert set(report.mistakable) == set(report.memory_formats) - {report.suggested}
    for remedy in report.remedies:
        after = strides if remedy.state == "done" else rules.strides_for(dims, remedy.memory_format)
        delivered = (
            rules.suggest_memory_format(dims, after) == remedy.memory_format
            and rules.is_contiguous(dims, after, remedy.memory_format)
        )  # fmt: skip
        assert delivered != (remedy.state == "impossible")
        assert bool(remedy.call) == (remedy.state not in ("done", "impossible"))


def test_a_plain_case_is_explained_without_doubt() -> None:
    report = rules.explain((2, 3, 4, 5), (60, 1, 15, 3))
    assert (report.memory_formats, report.suggested, report.convolution) == (
        ("channels_last",), "channels_last", "channels_last",
    )  # fmt: skip
    assert not report.ambiguous
    assert "mistaken" not in str(report)


@pytest.mark.parametrize(
    ("dims", "plain", "hinted", "axes"),
    [
        ((8, 1, 7, 7), (49, 49, 7, 1), (49, 1, 7, 1), "C has size 1"),
        ((8, 64, 1, 1), (64, 1, 1, 1), (64, 1, 64, 64), "H and W have size 1"),
        ((8, 64, 1, 1, 1), (64, 1, 1, 1, 1), (64, 1, 64, 64, 64), "D, H and W have size 1"),
    ],
)
def test_what_size_1_axes_leave_open(
    dims: tuple[int, ...], plain: tuple[int, ...], hinted: tuple[int, ...], axes: str
) -> None:
    channels_last = str(channels_last_of_rank(len(dims)))
    without, with_hint = rules.explain(dims, plain), rules.explain(dims, hinted)
    assert without.ambiguous
    assert with_hint.ambiguous
    assert (without.mistakable, with_hint.mistakable) == ((channels_last,), ("contiguous_format",))
    assert (without.convolution, with_hint.convolution) == ("contiguous_format", channels_last)
    assert f"contiguous_format and {channels_last} at once: {axes}" in words(dims, plain)
    assert f"can be mistaken for {channels_last}" in words(dims, plain)
    assert "can be mistaken for contiguous_format" in words(dims, hinted)
    assert f"channels_last{'_3d' * (len(dims) == 5)}: x.as_strided({dims}, {hinted})" in words(dims, plain)
    # The hint is lost by negation and not by adding a number.
    assert (with_hint.unary_strides, with_hint.number_strides) == (plain, hinted)


def test_some_dims_cannot_say_channels_last() -> None:
    assert rules.explain((1, 1, 1, 1), (4, 1, 2, 2)).remedies[1].state == "done"
    report = rules.explain((8, 1, 1, 1), (1, 1, 1, 1))
    assert report.mistakable == ("channels_last",)
    assert report.remedies[1].state == "impossible"
    assert "C, H and W have size 1" in words((8, 1, 1, 1), (1, 1, 1, 1))


def test_slices_keep_the_hint_and_their_gaps() -> None:
    sliced = (8, 64, 7, 7), (6272, 1, 896, 128)
    report = rules.explain(*sliced)
    assert (report.memory_formats, report.suggested, report.dense) == ((), "channels_last", False)
    assert report.remedies[1].call == "x.contiguous(memory_format=torch.channels_last)"
    assert "there are gaps" in words(*sliced)


def test_an_image_that_got_its_batch_axis_late_is_not_recognised() -> None:
    late = (1, 3, 32, 32), (3, 1, 96, 3)
    report = rules.explain(*late)
    assert (report.memory_formats, report.convolution) == (("channels_last",), "contiguous_format")
    assert "N has 3 (a new tensor: 3072)" in words(*late)
    assert rules.explain((3, 32, 32), (1, 96, 3)).convolution == "contiguous_format"


def test_three_axes_are_refused_with_the_way_out() -> None:
    text = words((3, 32, 32), (1024, 32, 1))
    assert "x.to(memory_format=torch.channels_last) is refused" in text
    assert "x.unsqueeze(0).to(memory_format=torch.channels_last)" in text


def test_broadcast_and_overlapping_tensors_are_named() -> None:
    expanded = rules.explain((8, 3, 4, 5), (0, 20, 5, 1))
    assert (expanded.broadcast_axes, expanded.overlapping) == ((0,), True)
    assert "broadcast along N" in words((8, 3, 4, 5), (0, 20, 5, 1))
    assert "overlapping: 12 elements within 6 places" in words((4, 3), (1, 1))


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [rules.to, rules.contiguous, rules.empty_like, rules.clone])
def test_wrong_ranks_are_refused_by_name(rule: Callable[..., Any]) -> None:
    with pytest.raises(
        LayoutError, match=r"channels_last takes 4 axes .* dims \(3, 4, 5\) have 3.*unsqueeze"
    ):
        rule((3, 4, 5), (20, 5, 1), "channels_last")
    with pytest.raises(LayoutError, match=r"channels_last_3d takes 5 axes .* have 4: use channels_last$"):
        rule((2, 3, 4, 5), (120, 20, 5, 1), "channels_last_3d")
    with pytest.raises(LayoutError, match=r"have 2: use contiguous_format"):
        rule((4, 5), (5, 2), "channels_last")


def test_asking_for_a_format_of_another_rank_is_no_error() -> None:
    assert rules.is_contiguous((4, 5), (5, 1), "channels_last") is False


@pytest.mark.parametrize(
    ("dims", "strides", "message"),
    [
        ((2, 3), (3,), "have 2 axes but strides"),
        ((2, -3), (3, 1), "axis 1 has size -3"),
        ((2, 3), (3, -1), "axis 1 has stride -1.*step backwards"),
        ((2, 2**63), (3, 1), r"axis 1 has size .*2\*\*63 - 1"),
        ((2, 3), (3, 0.5), "no sequence of integers"),
        (5, (3, 1), "no sequence of integers"),
        ("23", (3, 1), "no sequence of integers"),
    ],
)
@pytest.mark.parametrize(
    "rule",
    [
        rules.is_contiguous, rules.suggest_memory_format, rules.is_non_overlapping_and_dense, rules.overlaps,
        rules.to, rules.contiguous, rules.clone, rules.explain, rules.dense_strides_like,
        lambda *x: rules.elementwise([x]),
    ],
)  # fmt: skip
def test_what_is_no_tensor_is_refused(
    rule: Callable[..., Any], dims: Any, strides: Any, message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        rule(dims, strides)


def test_overflowing_strides_are_refused() -> None:
    with pytest.raises(LayoutError, match="axis 0 has stride"):
        rules.strides_for((2, 2**40, 2**40), "contiguous_format")


def test_unknown_formats_are_refused_with_those_that_exist() -> None:
    for name in ("nhwc", "channels-last", None, ""):
        with pytest.raises(UnknownFormat, match="write contiguous_format, channels_last or channels_last_3d"):
            rules.strides_for((2, 3, 4, 5), name)
    with pytest.raises(UnknownFormat, match="preserve_format names no order"):
        rules.contiguous((2, 3), (1, 2), "preserve_format")
    assert rules.contiguous((2, 3), (3, 1), "preserve_format") == (3, 1)
    assert rules.to((2, 3), (1, 9), "preserve_format") == (1, 9)


def test_operands_are_refused_unless_they_are_pairs() -> None:
    with pytest.raises(LayoutError, match="at least one operand"):
        rules.elementwise([])
    with pytest.raises(LayoutError, match=r"operand 2.0 is not a pair .*\(\(\), \(\)\) for a Python number"):
        rules.elementwise([((2, 3), (3, 1)), 2.0])  # type: ignore[list-item]
    with pytest.raises(LayoutError, match="axis 1 has size 3 and 4"):
        rules.elementwise([((2, 3), (3, 1)), ((2, 4), (4, 1))])


def test_convolutions_refuse_other_ranks() -> None:
    image, weight = ((3, 8, 8), (64, 8, 1)), ((4, 3, 1, 1), (3, 1, 1, 1))
    with pytest.raises(LayoutError, match=r"not of 3 and 4: give an input without batch"):
        rules.convolution_memory_format(image, weight)


def test_explain_says_what_it_takes() -> None:
    for wrong in ((2, 3), None, "x", [[1.0]]):
        with pytest.raises(LayoutError, match=r"explain takes a torch.Tensor, or dims and strides"):
            rules.explain(wrong)
