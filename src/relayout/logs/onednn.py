"""oneDNN's verbose output, of all its ages, also amid what else a program prints.

::

    mkldnn_verbose,exec,reorder,jit:uni,undef,in:f32_nchw out:f32_nChw8c,num:1,2x16x7x7,0.0229492
    dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd:f0 dst_f32::blocked:...
    onednn_verbose,primitive,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd::f0 dst_f32:p:...
    onednn_verbose,v1,1795440289643.6,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:...

=====================  ======================================================================================
field                  where it stands
=====================  ======================================================================================
marker                 anywhere in a line, since other threads and log handlers write in front of it
``v1``, time stamp,    any of them may be missing; what counts is ``exec``, which follows
``primitive``
engine                 behind ``exec``; MKL-DNN 0.x had none
primitive              ``reorder``, ``convolution``, ...
implementation, kind   ``jit:uni``, ``undef``
descriptors            between blanks (:mod:`relayout.notation.verbose`); MKL-DNN's are ``in:f32_nchw``
attributes, auxiliary  MKL-DNN had the second only
problem                the sizes: ``2x16x7x7``
time                   milliseconds; where a program has set a locale with a decimal comma, two fields
=====================  ======================================================================================

A line says nothing of who made its source. So producer and consumer are found by descriptor: who wrote a
tensor of these sizes in this format shortly before, and who reads one shortly after. A consumer that reads it
as ``wei`` makes it a conversion of weights. Nor does it say where a call of the network begins; how often the
operations repeat themselves tells (:mod:`relayout.logs.periods`).
"""

from __future__ import annotations

import re
from array import array
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.logs.events import Event, Log, Side
from relayout.logs.onednn_problems import arguments, sizes
from relayout.logs.periods import repetitions
from relayout.logs.sides import named_type, tagged
from relayout.notation.verbose import read as descriptor

__all__ = ["MARKER", "Reader"]

MARKER = re.compile(r"(onednn|dnnl|mkldnn)_verbose,")
NEAR = 24  # operations between a conversion and whoever made or reads its tensor
BEFORE_EXEC = 4  # fields: version, time stamp, component and one that may come
AFTER_PRIMITIVE = {"mkldnn": 6, "dnnl": 7, "onednn": 7}
"""Fields behind the primitive's name: implementation, kind, descriptors, (attributes,) auxiliary, problem,
time."""

_VERSION = re.compile(r"info,(?:oneDNN|DNNL|Intel\(R\) MKL-DNN|Intel MKL-DNN) (v[0-9.]+)")
_OLD = re.compile(r"(?:[a-z_]+:)?(?:(?P<dtype>f32|f16|bf16|s32|s16|s8|u8)_)?(?P<tag>[A-Za-z0-9]+)")
_KINDS = ("blocked", "wino", "rnn_packed", "opaque", "sparse", "any", "undef")
_WEIGHTS = ("wei", "bia", "fwei", "fbia", "weights", "bias")


class _Line(NamedTuple):
    """What ran, by one line."""

    primitive: str
    descriptors: str
    problem: str
    seconds: float
    old: bool


class _Argument(NamedTuple):
    """An argument of an operation."""

    name: str
    side: Side
    dims: tuple[int, ...] | None
    appended: str


class Reader:
    """Reads line after line; :meth:`log` is what came of it.

    >>> reader = Reader()
    >>> reader.feed(
    ...     7, "0: mkldnn_verbose,exec,reorder,jit:uni,undef,in:f32_nchw out:f32_nChw8c,num:1,2x16x7x7,0.5"
    ... )
    >>> event, = reader.log().events
    >>> event.dst.desc, event.seconds, event.line
    (MemoryDesc('f32:nChw8c:2x16x7x7'), 0.0005, 7)
    """

    def __init__(self) -> None:
        self.found = False
        """Whether there was any line of oneDNN's."""
        self._events: list[Event] = []
        self._seconds = 0.0
        self._operations = 0
        self._written: dict[MemoryDesc, tuple[int, str]] = {}
        self._awaited: dict[MemoryDesc, list[tuple[int, int]]] = {}
        self._uses: dict[MemoryDesc, int] = {}
        self._kinds: dict[str, int] = {}
        self._ran = array("i")
        self._version = ""
        self._runs = 0
        self._unread: list[int] = []
        self._appends = False

    def feed(self, number: int, text: str) -> None:
        """Take a line."""
        if "_verbose," not in text:
            return
        places = [found.start() for found in MARKER.finditer(text)]
        for k, start in enumerate(places):
            self.found = True
            self._part(number, text[start : places[k + 1] if k + 1 < len(places) else len(text)])

    def _part(self, number: int, text: str) -> None:
        if version := _VERSION.search(text):
            self._version = self._version or version[1]
            self._runs += 1
        line = _read(text)
        if line is None:
            return
        if isinstance(line, str):
            self._unread.append(number)
            return
        self._operations += 1
        self._seconds += line.seconds
        kind = f"{line.primitive} {line.descriptors} {line.problem}"
        self._ran.append(self._kinds.setdefault(kind, len(self._kinds)))
        given = _arguments(line.primitive, line.descriptors, line.problem, line.old)
        if line.primitive == "reorder":
            self._reorder(number, line, given)
        else:
            label = f"{line.primitive} (line {number})"
            for one in given:
                if one.side.desc is not None and not one.name.startswith(("dst", "fdst", "out", "diff_src")):
                    self._reads(one, label)
                    if one.name in _WEIGHTS:
                        self._uses[one.side.desc] = self._uses.get(one.side.desc, 0) + 1
            for one in given:
                if one.side.desc is not None and one.name.startswith(("dst", "fdst", "out", "data", "diff_")):
                    self._written[one.side.desc] = self._operations, label

    def _reorder(self, number: int, line: _Line, given: tuple[_Argument, ...]) -> None:
        dims = sizes(line.problem)
        src = next((one for one in given if one.name in ("src", "in")), None)
        dst = next((one for one in given if one.name in ("dst", "out")), None)
        if src is None or dst is None:
            self._unread.append(number)
            return
        self._appends = self._appends or bool(dst.appended)
        producer = ""
        if src.side.desc is not None:
            self._reads(src, f"reorder (line {number})")
            since, label = self._written.get(src.side.desc, (0, ""))
            producer = label if since and self._operations - since <= NEAR else ""
        if dst.side.desc is not None:
            self._written[dst.side.desc] = self._operations, f"reorder (line {number})"
            near = [one for one in self._awaited.get(dst.side.desc, ()) if self._operations - one[1] <= NEAR]
            self._awaited[dst.side.desc] = [*near, (len(self._events), self._operations)]
        operation = "convert" if src.side.format == dst.side.format else "reorder"
        if operation == "convert" and src.side.dtype == dst.side.dtype and not dst.appended:
            operation = "copy"
        self._events.append(
            Event(operation, "reorder", src.side, dst.side, dims, line.seconds, producer, line=number)
        )

    def _reads(self, argument: _Argument, reader: str) -> None:
        """Note who reads a tensor that conversions have written."""
        assert argument.side.desc is not None
        for place, since in self._awaited.pop(argument.side.desc, ()):
            if self._operations - since <= NEAR:
                weights = argument.name in _WEIGHTS
                self._events[place] = replace(self._events[place], consumer=reader, weights=weights)

    def log(self) -> Log:
        """All that was read."""
        problems = []
        if self._unread:
            where = ", ".join(map(str, self._unread[:3])) + (", ..." if len(self._unread) > 3 else "")
            problems.append(
                f"{len(self._unread)} of oneDNN's lines are cut or damaged and left out (line {where})"
            )
        notes = ["producers and consumers are found by format and sizes among the neighbouring lines"]
        if self._appends:
            notes.append("oneDNN appends sums to some weights (flags such as s8m1); bytes are without them")
        if self._runs > 1:
            notes.append(f"oneDNN begins {self._runs} times here: several programs or runs are added up")
        if not self._operations:
            notes.append("no operation ran under oneDNN's log; ONEDNN_VERBOSE=1 or profile_exec shows them")
        return Log(
            "onednn",
            f"oneDNN {self._version} verbose output".replace("  ", " "),
            tuple(self._events),
            self._seconds,
            self._operations,
            repetitions(self._ran),
            problems=tuple(problems),
            notes=tuple(notes),
            uses=self._uses,
        )


def _read(text: str) -> _Line | str | None:
    """A line that says what ran; None for any other line, text for a damaged one."""
    marker, *fields = text.rstrip().split(",")
    system = marker.removesuffix("_verbose")
    at = next((k for k, field in enumerate(fields[: BEFORE_EXEC + 1]) if field == "exec"), None)
    if at is None or "graph" in fields[:at] or "info" in fields[:at]:
        return None  # parts of a graph run primitives, which have lines of their own
    fields = fields[at + 1 :]
    if fields and re.fullmatch(r"(?:cpu|gpu)[0-9:]*", fields[0]):
        fields = fields[1:]
    elif system != "mkldnn":
        return "no engine"
    if not fields or not re.fullmatch(r"[a-z_0-9]+", fields[0]):
        return "no primitive"
    primitive, fields = fields[0], fields[1:]
    expected = AFTER_PRIMITIVE[system]
    if len(fields) == expected + 1 and fields[-1].isdigit() and fields[-2].isdigit():
        fields[-2:] = [f"{fields[-2]}.{fields[-1]}"]
    if len(fields) < expected:
        return "cut"
    try:
        milliseconds = float(fields[-1])
    except ValueError:
        return "no time"
    if not 0 <= milliseconds < 1e12:
        return "no time"
    return _Line(primitive, fields[2], fields[-2], milliseconds * 1e-3, system == "mkldnn")


@lru_cache(maxsize=4096)
def _arguments(primitive: str, descriptors: str, problem: str, old: bool) -> tuple[_Argument, ...]:
    """The arguments of a line with their sizes."""
    shapes = arguments(primitive, problem)
    found = []
    for word in descriptors.split():
        one = _old(word, shapes) if old else _new(word, shapes)
        if one is not None:
            found.append(one)
    return tuple(found)


def _dims(name: str, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    short = name.removeprefix("diff_")
    for key in (name, short, short.removeprefix("f"), "*"):
        if key in shapes:
            return shapes[key]
    return None


def _old(word: str, shapes: dict[str, tuple[int, ...]]) -> _Argument | None:
    """An argument in MKL-DNN's words: ``in:f32_nchw``, ``fsrc:nchw``."""
    name, colon, _ = word.partition(":")
    found = _OLD.fullmatch(word)
    if not colon or found is None:
        return None
    dims = _dims(name, shapes)
    return _Argument(name, tagged(found["tag"], found["dtype"] or "f32", dims), dims, "")


def _new(word: str, shapes: dict[str, tuple[int, ...]]) -> _Argument | None:
    """An argument in the words of DNNL and oneDNN."""
    try:
        read = descriptor(word)
    except LayoutError:
        read = None
    if read is None:
        fields = word.split(":")
        name = fields[0].split("_")[0]
        kind = next((field for field in fields[1:] if field in _KINDS), "")
        return (
            _Argument(name, Side("strides of run time" if kind == "blocked" else kind), None, "")
            if kind
            else None
        )
    dims = _dims(read.argument, shapes)
    spelled = read.tag + ("" if read.strides is None else " strides " + "x".join(map(str, read.strides)))
    side = Side(spelled or read.kind, named_type(read.dtype))
    with suppress(LayoutError, OverflowError):
        side = Side(side.format, side.dtype, read.elements.desc(dims))
    return _Argument(read.argument, side, dims, read.appended)
