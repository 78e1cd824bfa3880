"""Calls that are written down but for the addresses of their arguments, to be made with any.

:func:`relayout.runtime.driver.walk` makes calls whose addresses are all known. Those of a primitive are the
same each time but for a few: where its tensors are. So its rows are kept, as an *image* with open places, and
each call fills in its addresses and walks::

    plan     how many rows, which places are open ...
    image 0  taken | row | row | lists of addresses that kernels get as operands
    image 1  taken | row | row | lists ...                     each with scratch of its own

Several threads may be in the same plan, since they have given the interpreter's lock away, so there are
several images. A call takes the first that is free with a compare-and-swap and gives it back in the end; with
none free it *refuses*: it does nothing, and says so, and somebody else does the call in another way.

The code that does this is a kernel of the kind that :func:`relayout.runtime.builtin.checked` calls for
several buffers, whose operands are the plan. With the checks in front, a call is one built-in function:

>>> import numpy as np
>>> from relayout.runtime import builtin
>>> from relayout.runtime.memcpy import memcpy_kernel
>>> size, between = np.array([8]), np.zeros(8, "u1")
>>> fixed = {"size": size.ctypes.data, "between": between.ctypes.data}
>>> made = prepared(
...     [
...         Call(memcpy_kernel(), "x", "between", "size"),
...         Call(memcpy_kernel(), "between", "y", "size"),
...     ],
...     arguments=("x", "y"),
...     images=[fixed],
... )
>>> row = builtin.Buffer(8, (np.dtype("u1"),))
>>> copy = builtin.checked(
...     made.kernel, made.operands, [row, row._replace(written=True)], keep=made, together=True
... )
>>> x, y = np.arange(8, dtype="u1"), np.zeros(8, "u1")
>>> copy(x, y)
1
>>> y
array([0, 1, 2, 3, 4, 5, 6, 7], dtype=uint8)

Traps:

* After a fork the child has the parent's plans, with images that threads of the parent had taken, and without
  the parent's pool. Neither matters. An image is taken *by a process*, which has a number
  (:class:`relayout.runtime.threads.State`), so in the child it is free. And where the pool is, and whether it
  has threads enough, is read anew in each call: a plan that wants more than are ready refuses, and who does
  the call instead makes them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from string import Template
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.forking import lock
from relayout.runtime import driver
from relayout.runtime import threads as sharing

__all__ = ["DONE", "REFUSED", "Call", "Prepared", "ir", "prepared"]

REFUSED, DONE = 0, 1
"""What a call answers."""

FIELDS = ("state", "threads", "rows", "places", "images", "first", "stride")
"""How a plan begins; the places follow: of each a word of an image, the number of an argument, and how many
bytes behind the argument's address belong there."""

WORD = 8  # bytes
LINE_PAIR_WORDS = 16  # two cache lines, since processors fetch lines in pairs


class Call(NamedTuple):
    """A kernel that is called for all of its parts; buffers by name."""

    kernel: int
    """Its address."""
    source: str
    target: str
    operands: str | tuple[str, ...] = ()
    """A buffer, or a list of buffers, whose addresses the kernel gets."""
    parts: int = 1
    threads: int = 1
    """How many may work."""
    at: tuple[int, int] = (0, 0)
    """Bytes behind the beginnings of source and target at which the kernel finds them."""


class Prepared(NamedTuple):
    """A plan, good as long as it is kept."""

    kernel: int
    """The address of the code, ``i64 call(ptr table, ptr, ptr plan, i64, i64)``; the table has the addresses
    of the arguments."""
    operands: int
    """That of the plan."""
    keep: object


def prepared(
    calls: Sequence[Call], arguments: Sequence[str], images: Sequence[Mapping[str, int]]
) -> Prepared | None:
    """Write down calls.

    Parameters
    ----------
    calls : sequence of Call
        One after the other.
    arguments : sequence of str
        The names of the buffers whose addresses are given with each call, in the order of the table.
    images : sequence of mapping of str to int
        The addresses of all other buffers, once for each call that may be under way at the same time. What
        is written should be in one of them only.

    Returns
    -------
    Prepared or None
        None where there is no driver in machine code, or no native pool and several threads are wanted.
    """
    code = _code()
    most = max((call.threads for call in calls), default=1)
    if code is None or (most > 1 and not sharing.native(most)[0]):
        return None
    lists = sum(len(call.operands) for call in calls if isinstance(call.operands, tuple))
    size = LINE_PAIR_WORDS + -(-(driver.ROW * len(calls) + lists) // LINE_PAIR_WORDS) * LINE_PAIR_WORDS
    words = _aligned(size * len(images))
    places: list[tuple[int, int, int]] = []
    for k, known in enumerate(images):
        image = words[k * size : (k + 1) * size]
        places = _written(image, calls, {name: j for j, name in enumerate(arguments)}, known)
    head = {
        "state": ctypes.addressof(sharing.STATE),
        "threads": most if most > 1 else 0,  # none need to be ready for one
        "rows": len(calls),
        "places": len(places),
        "images": len(images),
        "first": words.ctypes.data,
        "stride": size * WORD,
    }
    plan = np.array([*(head[name] for name in FIELDS), *chain(*places)], np.int64)
    return Prepared(code[1], plan.ctypes.data, (code, plan, words, sharing.STATE))


def _aligned(count: int) -> NDArray[np.int64]:
    """So many words that are 0, from a multiple of :data:`LINE_PAIR_WORDS` words on."""
    raw = np.zeros(count + LINE_PAIR_WORDS, np.int64)
    start = -(raw.ctypes.data // WORD) % LINE_PAIR_WORDS
    return raw[start : start + count]


def _written(
    image: NDArray[np.int64], calls: Sequence[Call], arguments: Mapping[str, int], known: Mapping[str, int]
) -> list[tuple[int, int, int]]:
    """Fill in an image but for its open places, and return these."""
    places: list[tuple[int, int, int]] = []
    end = LINE_PAIR_WORDS + driver.ROW * len(calls)

    def put(word: int, name: str, behind: int = 0) -> None:
        if name in arguments:
            places.append((word, arguments[name], behind))
        else:
            image[word] = known[name] + behind

    for k, call in enumerate(calls):
        word = LINE_PAIR_WORDS + driver.ROW * k
        image[word], image[word + 4], image[word + 5] = call.kernel, call.parts, call.threads
        put(word + 1, call.source, call.at[0])
        put(word + 2, call.target, call.at[1])
        if isinstance(call.operands, str):
            put(word + 3, call.operands)
        elif call.operands:
            image[word + 3] = image.ctypes.data + WORD * end
            for name in call.operands:
                put(end, name)
                end += 1
    return places


@lru_cache(maxsize=1)
def _code() -> tuple[Any, int] | None:
    """The engine and the address of the function, or None where there is no driver in machine code."""
    with lock():
        if driver._native() is None:
            return None
        from relayout.jit.compile import address_of, loaded

        engine = loaded(ir(), level=0)
        return engine, address_of(engine, "prepared")


CODE = Template("""
; Make the calls of a plan with the addresses of a table.
define i64 @prepared(ptr %table, ptr %nothing, ptr %plan, i64 %part, i64 %parts) {
entry:
  %state.at = getelementptr i8, ptr %plan, i64 $PLAN_STATE
  %threads.at = getelementptr i8, ptr %plan, i64 $PLAN_THREADS
  %rows.at = getelementptr i8, ptr %plan, i64 $PLAN_ROWS
  %places.at = getelementptr i8, ptr %plan, i64 $PLAN_PLACES
  %images.at = getelementptr i8, ptr %plan, i64 $PLAN_IMAGES
  %first.at = getelementptr i8, ptr %plan, i64 $PLAN_FIRST
  %stride.at = getelementptr i8, ptr %plan, i64 $PLAN_STRIDE
  %state = load ptr, ptr %state.at
  %threads = load i64, ptr %threads.at
  %rows = load i64, ptr %rows.at
  %places = load i64, ptr %places.at
  %images = load i64, ptr %images.at
  %first = load ptr, ptr %first.at
  %stride = load i64, ptr %stride.at
  %ready.at = getelementptr i8, ptr %state, i64 $STATE_READY
  %ready = load atomic i64, ptr %ready.at acquire, align 8
  %process.at = getelementptr i8, ptr %state, i64 $STATE_PROCESS
  %process = load i64, ptr %process.at
  %enough = icmp sle i64 %threads, %ready
  br i1 %enough, label %look, label %refuse

; The first image that is free.
look:
  %k = phi i64 [0, %entry], [%k.next, %next]
  %left = icmp slt i64 %k, %images
  br i1 %left, label %try, label %refuse
try:
  %offset = mul i64 %k, %stride
  %image = getelementptr i8, ptr %first, i64 %offset
  %taken = load atomic i64, ptr %image monotonic, align 8
  %busy = icmp eq i64 %taken, %process
  br i1 %busy, label %next, label %take
take:
  %result = cmpxchg ptr %image, i64 %taken, i64 %process acquire monotonic, align 8
  %won = extractvalue {i64, i1} %result, 1
  br i1 %won, label %fill, label %next
next:
  %k.next = add i64 %k, 1
  br label %look

; Its open places.
fill:
  %p = phi i64 [0, %take], [%p.next, %put]
  %open = icmp slt i64 %p, %places
  br i1 %open, label %put, label %walk
put:
  %entry.offset = mul i64 %p, $ENTRY
  %entry.first = getelementptr i8, ptr %plan, i64 $PLAN
  %entry.at = getelementptr i8, ptr %entry.first, i64 %entry.offset
  %argument.at = getelementptr i64, ptr %entry.at, i64 1
  %behind.at = getelementptr i64, ptr %entry.at, i64 2
  %word = load i64, ptr %entry.at
  %argument = load i64, ptr %argument.at
  %behind = load i64, ptr %behind.at
  %given.at = getelementptr ptr, ptr %table, i64 %argument
  %given = load ptr, ptr %given.at
  %shifted = getelementptr i8, ptr %given, i64 %behind
  %place = getelementptr ptr, ptr %image, i64 %word
  store ptr %shifted, ptr %place
  %p.next = add i64 %p, 1
  br label %fill
walk:
  %block.at = getelementptr i8, ptr %state, i64 $STATE_BLOCK
  %block = load ptr, ptr %block.at
  %region.at = getelementptr i8, ptr %state, i64 $STATE_REGION
  %region = load ptr, ptr %region.at
  %begin = getelementptr i8, ptr %image, i64 $HEAD
  call void @walk(ptr %block, ptr %region, ptr %begin, i64 %rows, ptr null)
  store atomic i64 0, ptr %image release, align 8
  ret i64 $DONE
refuse:
  ret i64 $REFUSED
}
""")


def ir() -> str:
    """The text of the function, with that of the driver."""
    offsets = {f"PLAN_{name.upper()}": WORD * k for k, name in enumerate(FIELDS)}
    return driver.ir() + CODE.substitute(
        offsets,
        STATE_READY=sharing.State.ready.offset,
        STATE_BLOCK=sharing.State.block.offset,
        STATE_REGION=sharing.State.region.offset,
        STATE_PROCESS=sharing.State.process.offset,
        PLAN=WORD * len(FIELDS),
        ENTRY=3 * WORD,
        HEAD=LINE_PAIR_WORDS * WORD,
        REFUSED=REFUSED,
        DONE=DONE,
    )
