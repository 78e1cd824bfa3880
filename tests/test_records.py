"""Records (:mod:`relayout.records`) held against what :mod:`dataclasses` makes of the same classes."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
import sys
from typing import Any, ClassVar

import pytest

from relayout import records


def classes(made: Any) -> tuple[Any, Any, Any]:
    """Three classes as one of the modules makes them."""

    @made.dataclass(frozen=True)
    class Base:
        kind: ClassVar[str] = ""
        first: int
        second: str = "two"
        note: str = made.field(default="", compare=False, repr=False, kw_only=True)

    @made.dataclass(frozen=True, kw_only=True)
    class Kind(Base):
        kind = "kind"
        third: dict[str, int] = made.field(default_factory=dict, compare=False)
        fourth: float

        def __post_init__(self) -> None:
            if self.fourth < 0:
                raise ValueError("fourth is negative")

    @made.dataclass
    class Open:
        several: list[int] = made.field(default_factory=list)
        count: int = 0

    return Base, Kind, Open


THEIRS, OURS = classes(dataclasses), classes(records)


def text(value: object) -> str:
    return repr(value).replace(type(value).__qualname__, type(value).__name__)


@pytest.mark.parametrize(
    ("which", "args", "given"),
    [
        (0, (1,), {}),
        (0, (1, "x"), {"note": "seen by nobody"}),
        (1, (1,), {"fourth": 0.5}),
        (1, (1, "y"), {"fourth": 0.5, "third": {"a": 1}}),
        (2, (), {}),
        (2, ([1, 2], 3), {}),
    ],
)
def test_records_are_what_dataclasses_makes(which: int, args: Any, given: Any) -> None:
    theirs, ours = (several[which](*args, **given) for several in (THEIRS, OURS))
    assert text(ours) == text(theirs)
    assert ours == OURS[which](*args, **given)
    assert ours != theirs
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert [one.name for one in dataclasses.fields(ours)] == [one.name for one in dataclasses.fields(theirs)]
    assert list(inspect.signature(OURS[which]).parameters) == list(
        inspect.signature(THEIRS[which]).parameters
    )
    assert (type(ours).__hash__ is None) == (type(theirs).__hash__ is None)
    if which < 2:
        assert hash(ours) == hash(theirs) == hash(copy.copy(ours))
        assert records.replace(ours, first=7) == OURS[which](7, *args[1:], **given)
        with pytest.raises(AttributeError, match="frozen"):
            ours.first = 2


@pytest.mark.parametrize(
    ("which", "args", "given"),
    [
        (0, (), {}),
        (0, (1, "x", "note"), {}),
        (0, (1,), {"first": 1}),
        (0, (1,), {"fifth": 1}),
        (1, (1,), {}),
        (1, (1, "x", {}, 0.5), {}),
    ],
)
def test_what_is_refused_there_is_refused_here(which: int, args: Any, given: Any) -> None:
    for several in (THEIRS, OURS):
        with pytest.raises(TypeError):
            several[which](*args, **given)


def test_what_a_class_checks_is_checked_of_changed_ones_too() -> None:
    good = OURS[1](1, fourth=0.0)
    for make in (lambda: OURS[1](1, fourth=-1.0), lambda: records.replace(good, fourth=-1.0)):
        with pytest.raises(ValueError, match="negative"):
            make()


def test_a_dataclass_may_inherit_from_a_record() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(OURS[0]):  # type: ignore[misc,valid-type]
        third: int = 3

    made = Mine(1)
    assert (made.first, made.second, made.third) == (1, "two", 3)
    assert records.replace(made, third=4) == Mine(1, third=4) != made


def test_a_class_that_only_has_another_name_is_a_record_too() -> None:
    """It needs nothing of ``dataclasses``, which a process that reorders does not load."""

    class Mine(OURS[0]):  # type: ignore[misc,valid-type]
        pass

    assert dataclasses.fields(Mine)[0].name == "first"
    assert "__dataclass_fields__" not in vars(Mine)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "dataclasses")
        made = records.replace(Mine(1), first=2)
    assert type(made) is Mine
    assert made == Mine(2)


def test_factories_make_one_for_each() -> None:
    one, other = OURS[2](), OURS[2]()
    one.several.append(1)
    assert other.several == []


def test_operations_are_pickled() -> None:
    from relayout.dtypes import dtype
    from relayout.ops.elementwise import Eltwise
    from relayout.ops.functions import Function
    from relayout.ops.operation import Spec

    x = Spec("src", (2, 3), dtype("f32"))
    made = Eltwise((x,), (x.named("dst"),), function=Function("relu"))
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("made", [dataclasses, records])
def test_what_is_kept_besides_fields_is_not_compared(made: Any) -> None:
    """A class without fields that are compared, whose objects keep what they have computed."""

    @made.dataclass(frozen=True)
    class Lazy:
        note: str = made.field(default="", compare=False)

        @functools.cached_property
        def length(self) -> int:
            return len(self.note)

    one, other = Lazy("one"), Lazy("other")
    before = hash(one)
    assert one.length == 3
    assert one == other
    assert hash(one) == before == hash(other)


@pytest.mark.parametrize("made", [dataclasses, records])
def test_a_field_that_is_given_again_takes_part_in_what_is_said_last(made: Any) -> None:
    @made.dataclass(frozen=True)
    class Above:
        first: int
        second: int = 0

    @made.dataclass(frozen=True)
    class Below(Above):
        second: int = made.field(default=3, compare=False, repr=False)

    assert Below(1, 2) == Below(1, 4)
    assert hash(Below(1, 2)) == hash(Below(1, 4))
    assert text(Below(1, 2)) == "Below(first=1)"
    assert Above(1, 2) != Above(1, 4)


@pytest.mark.parametrize("made", [dataclasses, records])
def test_a_default_that_all_would_share_is_refused(made: Any) -> None:
    with pytest.raises(ValueError, match="default"):

        @made.dataclass
        class Shared:
            several: list[int] = []  # noqa: RUF012 - that is what is tried


@pytest.mark.parametrize("made", [dataclasses, records])
def test_what_holds_itself_is_shown(made: Any) -> None:
    @made.dataclass
    class Knot:
        end: Any = None

    knot = Knot()
    knot.end = [knot]
    assert text(knot) == "Knot(end=[...])"


def test_a_value_too_many_is_told() -> None:
    @records.dataclass
    class Named:
        first: int
        second: int = records.field(default=0, kw_only=True)

    with pytest.raises(TypeError, match="was given 2 values"):
        Named(1, 2)  # type: ignore[misc]
