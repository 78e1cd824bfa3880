"""Arguments of the wrong type: one LayoutError that says what was given, and never Python's own errors."""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import numpy as np
import pytest

import relayout as rl
from relayout import Format, Layout, LayoutError, MemoryDesc
from relayout.errors import described
from relayout.files import Normalise
from relayout.loops.difference import difference

X = rl.tensor(np.zeros((2, 4, 3, 3), np.float32), "nChw4c")
DESC, LAYOUT = X.desc, X.layout
WRONG: list[Any] = [
    None,
    "x",
    "",
    b"n",
    1,
    -1,
    1.5,
    True,
    (),
    [],
    {},
    object(),
    [1, [2]],
    np.array([1, 2]),
    "\0",
]


class NoIndex:
    """Looks like a number until it is asked."""

    def __index__(self) -> int:
        raise TypeError("no number")


CALLS = {
    "same_bytes(text)": lambda: LAYOUT.same_bytes("nchw"),
    "same_bytes(undecided)": lambda: LAYOUT.same_bytes(MemoryDesc((2, 4, 3, 3), "f32", rl.any)),
    "difference": lambda: difference("nchw", LAYOUT),
    "Format.name(None)": lambda: Format("nchw").name(None),
    "Format.name([])": lambda: Format("nchw").name([]),
    "Format(text, 1)": lambda: Format("nchw", 1),
    "Format(text, [])": lambda: Format("nchw", []),
    "attested": lambda: rl.notation.attested(None, "onednn"),
    "attested dialect": lambda: rl.notation.attested("nchw", None),
    "dialect": lambda: rl.notation.dialect(None),
    "dialect([])": lambda: rl.notation.dialect([]),
    "parse": lambda: rl.notation.parse(None),
    "parse([])": lambda: rl.notation.parse([]),
    "parse rank": lambda: rl.notation.parse("aBx16b", rank="4"),
    "parse rank []": lambda: rl.notation.parse("aBx16b", rank=[]),
    "readings": lambda: rl.notation.readings(None),
    "render": lambda: rl.notation.render(None, "onednn"),
    "render dialect": lambda: rl.notation.render(Format("nchw"), None),
    "resolve rank": lambda: Format("aBx16b").resolve("4"),
    "resolve dtype": lambda: Format("os_iyx_osv16").resolve(4, 5),
    "item": lambda: X.item("a", 0, 0, 0),
    "item None": lambda: X.item(None, 0, 0, 0),
    "parts axis": lambda: X.parts(1.0, (2, 2)),
    "parts beyond": lambda: X.parts(7, (2, 2)),
    "parts sizes": lambda: X.parts(1, "ab"),
    "term_size text": lambda: LAYOUT.term_size("n"),
    "term_size beyond": lambda: LAYOUT.term_size(9),
    "nbytes": lambda: rl.dtype("s4").nbytes(None),
    "axes": lambda: rl.reorder(X, "nhwc", axes=[]),
    "axes of a plan": lambda: rl.Reorder(DESC, DESC, axes=None),
    "ragged scale": lambda: rl.reorder(X, "nhwc", src_scale=([1, [2]], 0)),
    "scale None": lambda: rl.reorder(X, "nhwc", src_scale=(None, 0)),
    "scale text": lambda: rl.reorder(X, "nhwc", src_scale="abc"),
    "scale axis": lambda: rl.reorder(X, "nhwc", src_scale=([1.0, 2.0], NoIndex())),
    "scale axis array": lambda: rl.reorder(X, "nhwc", src_scale=([1.0, 2.0], np.array([0, 1]))),
    "beta": lambda: rl.reorder(X, "nhwc", beta="1"),
    "ragged array": lambda: rl.tensor([1, 2, [3]]),
    "threads": lambda: rl.reorder(X, "nhwc", threads=np.array([1, 2])),
    "threads of a plan": lambda: rl.Reorder(DESC, DESC, threads=NoIndex()),
    "threads of a primitive": lambda: rl.primitives.Eltwise(DESC, "relu")(X, threads=np.array([1, 2])),
    "kernel": lambda: rl.primitives.Pooling(DESC, np.array([1, 1]), 2),
    "algorithm": lambda: rl.primitives.Pooling(DESC, [], 2),
    "kernel array": lambda: rl.primitives.Pooling(DESC, "max", np.array([[1, 1], [1, 1]])),
    "physical_shape": lambda: rl.files.physical_shape("x"),
    "from_digits None": lambda: Format.from_digits(None, None),
    "from_digits digits": lambda: Format.from_digits("nc", None),
    "from_digits short": lambda: Format.from_digits("nc", [("n",), ("c", 1, None)]),
    "from_digits weight": lambda: Format.from_digits("nc", [("n", "1", None), ("c", 1, None)]),
    "from_digits extent": lambda: Format.from_digits("nc", [("n", 2, None), ("n", 1, 2.0), ("c", 1, None)]),
    "from_digits axes": lambda: Format.from_digits([["n"]], [("n", 1, None)]),
    "from_digits name": lambda: Format.from_digits("nc", [(1, 1, None), ("c", 1, None)]),
    "blocked None": lambda: Format.blocked(None, None),
    "blocked outer": lambda: Format.blocked("nc", None),
    "blocked inner": lambda: Format.blocked("nc", "nc", [("c",)]),
    "blocked inner None": lambda: Format.blocked("nc", "nc", None),
    "blocked block": lambda: Format.blocked("nc", "nc", [("c", "4")]),
    "blocked axis": lambda: Format.blocked("nc", "nc", [(["c"], 4)]),
    "with_roles": lambda: Format("abcd").with_roles(1),
    "with_roles numbers": lambda: Format("abcd").with_roles([[], 1, 2, 3]),
    "layout with_roles": lambda: LAYOUT.with_roles(1),
    "indexed None": lambda: Format("nchw").indexed(None),
    "indexed text": lambda: Format("nchw").indexed("abcd"),
    "indexed mixed": lambda: Format("nchw").indexed([0, "1", 2, 3]),
    "waiting": lambda: Format.waiting(None, "onednn", ["rank"]),
    "waiting None": lambda: Format.waiting("aBx16b", "onednn", None),
    "waiting what": lambda: Format.waiting("aBx16b", "onednn", ["size"]),
    "files.read": lambda: rl.files.read(None),
    "files.info": lambda: rl.files.info(None),
    "files.write": lambda: rl.files.write(None, X),
    "files.convert": lambda: rl.files.convert(None, None),
    "files.read nul": lambda: rl.files.read("a\0b.npy"),
    "files.info nul": lambda: rl.files.info("a\0b.npy"),
    "files.write nul": lambda: rl.files.write("a\0b.npy", X),
    "files.write no tensor": lambda: rl.files.write("a.npy", None),
    "svg rows": lambda: rl.draw.svg.memory(LAYOUT, rows="x"),
    "svg columns": lambda: rl.draw.svg.memory(LAYOUT, columns=1.5),
    "svg layout": lambda: rl.draw.svg.logical("nchw"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named(name: str) -> None:
    with pytest.raises(LayoutError) as caught:
        CALLS[name]()
    assert len(str(caught.value)) > 10


VIEWS = [getattr(rl.views, name) for name in rl.views.__all__]


@pytest.mark.parametrize("view", VIEWS, ids=rl.views.__all__)
def test_views_of_anything_else_are_refused(view: Any) -> None:
    rest = len(inspect.signature(view).parameters) - 1
    undecided = MemoryDesc((2, 4), "f32", rl.any)
    for given in [*WRONG, "nchw", Format("nchw"), undecided]:
        with pytest.raises(LayoutError, match=r"[Ll]ayout"):
            view(given, *[0] * rest)
    for arguments in product(WRONG, repeat=min(rest, 2)):
        try:
            made = view(LAYOUT, *arguments)
        except LayoutError:
            continue
        assert isinstance(made, Layout), (view, arguments)


def test_views_take_what_has_a_layout() -> None:
    for given in (LAYOUT, DESC, X):
        assert rl.views.permute(given, (0, 2, 3, 1)) == rl.views.permute(LAYOUT, (0, 2, 3, 1))
        assert rl.views.select(layout=given, axis=0, position=1).dims == (4, 3, 3)
        assert LAYOUT.same_bytes(given)
        assert difference(given, LAYOUT).same_bytes


METHODS = [
    *((Format("nchw"), name) for name in ("name", "indexed", "resolve", "with_roles")),
    *((LAYOUT, name) for name in ("index", "is_padding", "moved", "offset", "same_bytes", "term_size")),
    *((LAYOUT, name) for name in ("with_roles", "offsets")),
    *((DESC, name) for name in ("name", "permute_axes", "reshape")),
    *((X, name) for name in ("item", "permute", "reorder", "reshape")),
    *((rl.notation, name) for name in ("dialect", "parse", "readings")),
    (rl.dtype("s4"), "nbytes"),
    *((rl, name) for name in ("Format", "Layout", "MemoryDesc", "Reorder", "from_buffer", "tensor")),
    *((Format, name) for name in ("blocked", "from_digits", "waiting")),
    *((rl.files, name) for name in ("info", "physical_shape", "read")),
]


@pytest.mark.parametrize(("of", "name"), METHODS, ids=[f"{type(o).__name__}.{n}" for o, n in METHODS])
def test_no_wrong_argument_is_pythons_error(of: Any, name: str) -> None:
    """One and two arguments of every wrong kind."""
    call = getattr(of, name)
    for arguments in [*((w,) for w in WRONG), *product(WRONG, repeat=2)]:
        try:
            inspect.signature(call).bind(*arguments)
        except TypeError:
            continue  # not so many
        try:
            call(*arguments)
        except (LayoutError, OSError):
            pass
        except Exception as error:
            given = ", ".join(map(described, arguments))
            raise AssertionError(f"{name}({given}) raised {type(error).__name__}: {error}") from error


@pytest.mark.parametrize(
    ("mean", "std", "axis", "why"),
    [
        ([1], [1, 2], 1, "1 value, and std 2"),
        ([1, 1], [1, 0], 1, "0 in it"),
        ("a", None, 1, "mean must be a number"),
        ([1], None, 1, "std must be a number"),
        ([[1, 2], [3, 4]], 1, 1, "mean"),
        ([1, [2]], 1, 1, "mean must be a number"),
        ([np.inf], [1], 1, "mean must be finite"),
        ([1], [1], "c", "axis"),
        ([1], [1], None, "axis"),
        ([], [1], 1, "mean"),
    ],
)
def test_mean_and_deviation_are_checked_when_they_are_made(mean: Any, std: Any, axis: Any, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        Normalise(mean, std, axis)
