"""Python functions in machine code: buffers are checked and a kernel is called in a fifth of a microsecond.

A kernel that moves 4 KiB takes 0.1 microseconds. To call it from Python takes twenty times as long: two
arrays are checked, their addresses taken, five numbers handed to ctypes. So the checks are machine code too.
:func:`checked` makes what CPython calls a built-in function::

    function(array, array, ...)  ->  True    all was as it has to be, and the kernel has been called
                                     False   something was not; nothing has been done

(A kernel of more than two buffers answers itself, in numbers: 0 is a no.)

It only ever says yes where the checks in Python would have. At a no these are asked: they raise the good
error, or find that the call is right after all (a memory map, a list, a view that overlaps and does no harm).
So the fast way needs to know neither messages nor rare cases.

>>> import numpy as np
>>> from relayout.runtime.memcpy import memcpy_kernel
>>> size = np.array([8])  # what the kernel reads as its operands
>>> row = Buffer(8, (np.dtype("u1"),))
>>> copy = checked(memcpy_kernel(), size.ctypes.data, [row, row._replace(written=True)], keep=size)
>>> source, target = np.arange(8, dtype="u1"), np.zeros(8, "u1")
>>> copy(source, target), copy(source[1:], target), copy(source, target[::-1])
(True, False, False)
>>> target
array([0, 1, 2, 3, 4, 5, 6, 7], dtype=uint8)

There is one piece of code for all functions of a process (:mod:`relayout.runtime.checks`), and it comes from
the disk cache. What a function checks is in a *block* of numbers, which CPython hands to the code as the
``self`` of the function::

    function -> block: bytes   head | row | row ...     a row for each buffer
                  `-> keep     what the numbers are addresses of, so that it lives as long

What the code reads of an array is the public head of NumPy's C struct (``PyArrayObject_fields``): where the
data begins, the shape, the data type and the flags. A data type is compared by its address: those of native
byte order exist once.

Traps:

* Nothing tells machine code that a struct has changed. So before the first function is handed out, structs
  are compared with what NumPy says of some arrays, and then the code with what it should answer for them. One
  difference, and there are no functions: they are only about speed. Nor are there any in builds of Python
  with other object headers (without the interpreter's lock, or for debugging), in other implementations, and
  in subinterpreters.
* The kernel runs without the interpreter's lock. Meanwhile another thread may give a tensor another buffer,
  so the code holds a reference to each array that it has checked.
* An array by itself may mean something else than the same array in a holder: physical bytes to one who calls,
  a logical array to another. Those who make the function say which of them it takes.
* Names of Python's functions are not in the code: LLVM ends the process over one that is missing. The block
  has their addresses.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.forking import lock
from relayout.jit import compile as compiler
from relayout.runtime import checks
from relayout.runtime.checks import CONTIGUOUS, MOST, WARNS, WRITEABLE

__all__ = ["MOST", "Buffer", "Holder", "available", "checked"]

METH_FASTCALL = 0x80  # Python's: the function takes (self, arguments, their number)


class Buffer(NamedTuple):
    """What one argument of a function must be: a NumPy array, contiguous in C's order."""

    needs: int
    """Bytes that it must have at least."""
    dtypes: tuple[np.dtype[Any], ...]
    """One or two data types, any of which it may have."""
    written: bool = False
    """Whether the kernel writes to it: it must be writeable then, and share no byte with any other."""
    meanings: tuple[object, ...] = ()
    """One or two objects, any of which a :class:`Holder` may say for its array to be taken."""
    shares: bool = False
    """Whether it may begin just where another one does, though either is written: a call in place."""


class Holder(NamedTuple):
    """A class whose instances keep, in slots (``__slots__``), an array and an object that says what it means.

    An argument of just this class stands for its array if its meaning *is* one of those of the
    :class:`Buffer`.
    """

    cls: type
    array: str
    """The slot with the array."""
    meaning: str
    """The slot that says what it means."""


class _Method(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Block(bytes):
    """The numbers of one function. Bytes can't change, and an attribute keeps what they point to."""

    keep: object


class _Maker:
    """All that functions share; each of them keeps it."""

    def __init__(self) -> None:
        self.engine = compiler.loaded(checks.ir(), level=0)  # a call takes 0.015 us longer than with more
        self.note, self.note_table = (
            compiler.address_of(self.engine, name) for name in ("note", "note_table")
        )
        entry = compiler.address_of(self.engine, "checked")
        self._method = _Method(b"checked", entry, METH_FASTCALL, b"Check buffers and call a kernel.")
        self.api = {field: _address(name) for field, name in checks.API.items()}
        self.answers = {together: _address(name) for together, name in checks.ANSWERS.items()}
        # Prototypes of our own: those of ctypes.pythonapi belong to everybody.
        prototype: Any = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
        )
        self._new = prototype(("PyCFunction_NewEx", ctypes.pythonapi))

    def function(self, block: _Block) -> Callable[..., int]:
        """The built-in function with this block as its ``self``."""
        made: Callable[..., int] = self._new(ctypes.addressof(self._method), block, None)
        return made


def available() -> bool:
    """Whether there are functions in this process; the first to ask has the code made and proved."""
    with lock():
        return _maker() is not None


def checked(
    kernel: int,
    operands: int,
    buffers: Sequence[Buffer],
    *,
    holder: Holder | None = None,
    keep: object = None,
    together: bool = False,
    bare: bool = True,
) -> Callable[..., int] | None:
    """Make a built-in function that checks its arguments and calls a kernel once, for all of its work.

    Parameters
    ----------
    kernel : int
        The address of the kernel; see :class:`relayout.jit.compile.Kernel`.
    operands : int
        The address that it is given as its operands.
    buffers : sequence of Buffer
        What each argument must be; two, or with ``together`` up to :data:`MOST`.
    holder : Holder, optional
        A class that arguments may be of.
    keep : object, optional
        What must live as long as the function: the owner of the operands, say.
    together : bool
        The kernel is called with the address of a table, which has the addresses of all buffers, as its
        source, and with 0 as its destination; it returns an i64, which the function answers: 0 is a no, so
        it must not have done anything. Otherwise its source is the first buffer, its destination the second,
        and it returns nothing.
    bare : bool
        Whether arrays are taken as they are, and not only in holders.

    Returns
    -------
    callable or None
        ``function(*arrays)``, which answers True or False, or with ``together`` 0 or what the kernel has
        returned; None where there is none to be had. It raises TypeError for another number of arguments,
        and does not take them by name.

    Raises
    ------
    ValueError
        A kernel can't be called with that many buffers.
    """
    if not (1 <= len(buffers) <= MOST and (together or len(buffers) == 2)):
        raise ValueError(f"a kernel takes 2 buffers, or up to {MOST} together, not {len(buffers)}")
    maker = _maker() if available() else None
    if maker is None:
        return None
    return _function(maker, kernel, operands, buffers, holder, keep, together, bare)


def _function(
    maker: _Maker,
    kernel: int,
    operands: int,
    buffers: Sequence[Buffer],
    holder: Holder | None = None,
    keep: object = None,
    together: bool = False,
    bare: bool = True,
) -> Callable[..., int]:
    head = checks.Head(
        count=len(buffers),
        kernel=kernel,
        operands=operands,
        together=together,
        answer=maker.answers[together],
        array=id(np.ndarray),
        bare=id(np.ndarray) if bare else 0,
        holder=id(holder.cls) if holder else 0,
        inner=_offset(holder.cls, holder.array) if holder else 0,
        meaning=_offset(holder.cls, holder.meaning) if holder else 0,
        **maker.api,
    )
    nothing = object()  # no holder can say this
    block = _Block(bytes(head) + b"".join(bytes(_row(buffer, nothing)) for buffer in buffers))
    block.keep = maker, keep, tuple(buffers), holder, nothing
    return maker.function(block)


def _row(buffer: Buffer, nothing: object) -> checks.Row:
    """One buffer as the code reads it; objects are known by their addresses."""
    dtype, other = buffer.dtypes[0], buffer.dtypes[-1]
    meanings = buffer.meanings or (nothing,)
    return checks.Row(
        needs=buffer.needs,
        mask=CONTIGUOUS | WRITEABLE | WARNS if buffer.written else CONTIGUOUS,
        want=CONTIGUOUS | WRITEABLE if buffer.written else CONTIGUOUS,
        dtype=id(dtype),
        size=dtype.itemsize,
        other=id(other),
        other_size=other.itemsize,
        meaning=id(meanings[0]),
        other_meaning=id(meanings[-1]),
        shares=buffer.shares,
    )


@lru_cache(maxsize=64)
def _offset(cls: type, slot: str) -> int:
    """How many bytes behind the beginning of an instance a slot is: found out by filling one."""
    probe: Any = object.__new__(cls)
    mark = object()
    setattr(probe, slot, mark)
    word = ctypes.sizeof(ctypes.c_void_p)
    places = range(ctypes.sizeof(checks.Object), cls.__basicsize__, word)
    found = [at for at in places if ctypes.c_void_p.from_address(id(probe) + at).value == id(mark)]
    if len(found) != 1:
        raise TypeError(f"{cls.__name__}.{slot} is no slot")
    return found[0]


@lru_cache(maxsize=1)
def _maker() -> _Maker | None:
    """What makes functions, or None where any of it is not as it should be."""
    try:
        if not _usual() or not compiler.available() or not all(map(_as_declared, _samples())):
            return None
        maker = _Maker()
        return maker if _proved(maker) else None
    except Exception:  # whatever it was: without functions all goes the usual way
        return None


def _address(name: str) -> int:
    """The address of one of Python's functions."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _usual() -> bool:
    """Whether this is CPython with 64 bits, objects as they usually are, and its main interpreter."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    debugging = hasattr(sys, "gettotalrefcount") or hasattr(sys, "getobjects")
    if debugging or object.__basicsize__ != ctypes.sizeof(
        checks.Object
    ):  # longer without the interpreter's lock
        return False
    current, main = (
        ctypes.PYFUNCTYPE(ctypes.c_void_p)((f"PyInterpreterState_{name}", ctypes.pythonapi))
        for name in ("Get", "Main")
    )
    return bool(current() == main())


# -- the proof ----------------------------------------------------------------------------------------------

SIZE = 24  # bytes that the function of the proof needs


class _Held:
    """A holder for the proof."""

    __slots__ = ("array", "meaning")

    def __init__(self, array: object, meaning: object) -> None:
        self.array, self.meaning = array, meaning


def _samples() -> Iterator[NDArray[Any]]:
    """Arrays of many kinds, some of them as the function of the proof wants them."""
    words, more = np.zeros(6, "f4"), np.zeros((2, 3, 4), "f4")
    yield from (words, more, more[1:], more[:, 1:], more[0].T, words.reshape(1, 2, 1, 3, 1), words[:5])
    yield from (more[..., 0], np.zeros(SIZE, "u1"), np.zeros(SIZE + 1, "u1")[1:], np.zeros(SIZE - 1, "u1"))
    yield from (np.zeros(6, "i4"), np.zeros(6, ">f4"), np.zeros((), "f4"), np.zeros((0, 7), "f4"))
    yield _fixed()


def _fixed() -> NDArray[Any]:
    """An array that may be read only."""
    made = np.zeros(6, "f4")
    made.flags.writeable = False
    return made


def _as_declared(array: NDArray[Any]) -> bool:
    """Whether an array's struct says what NumPy says."""
    found = checks.Array.from_address(id(array))
    declared = (found.head.type, found.data, found.nd, found.descr, found.flags)
    spoken = (id(type(array)), _begin(array), array.ndim, id(array.dtype), array.flags.num)
    return declared == spoken and tuple(found.dims[: found.nd]) == array.shape


def _begin(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _proved(maker: _Maker) -> bool:
    """Whether the code answers as it should, reads what NumPy says, and leaves references alone."""
    pair, table = _Pair(maker), _Table(maker)
    block = pair.function.__self__
    if ctypes.string_at(id(block) + checks.BYTES, len(block)) != block:
        return False
    good = pair.goods[0]
    if pair.function(good, good) or pair.function(None, good) or pair.function(good, _Held(None, good)):
        return False
    few = np.zeros(6, "f4"), np.zeros(5, "f4"), _fixed()  # what an array is, both find out in the same way
    return all(map(pair.agrees, _samples())) and all(map(table.agrees, few)) and table.shares()


class _Pair:
    """A function of two arrays, the second of which is written, and what it should do."""

    count, together = 2, False

    def __init__(self, maker: _Maker) -> None:
        self.noted = (ctypes.c_int64 * 7)()
        self.goods = [np.zeros(6, "f4") for _ in range(self.count)]
        self.meanings = object(), object()
        kinds = self.goods[0].dtype, np.dtype("u1")
        rows = [
            Buffer(SIZE, kinds, k == self.count - 1, self.meanings, shares=self.together and k == 0)
            for k in range(self.count)
        ]
        self.function: Any = _function(
            maker,
            maker.note_table if self.together else maker.note,
            ctypes.addressof(self.noted),
            rows,
            Holder(_Held, "array", "meaning"),
            together=self.together,
            bare=not self.together,
        )

    def good(self, k: int) -> Any:
        """An argument that is as it should be."""
        return self.goods[k]

    def calls(self, given: list[Any], places: list[int], fine: bool) -> bool:
        """Whether a call is answered as it should be; the kernel is called just then, with these places."""
        self.noted[:] = [0] * 7
        return self.function(*given) is fine and self.noted[:4] == ([*places, 0, 1] if fine else [0] * 4)

    def agrees(self, array: NDArray[Any]) -> bool:
        """Whether the code takes an array where it should and only there, and finds its data."""
        watched = [array, *self.goods, *self.meanings]
        before = [sys.getrefcount(one) for one in watched]
        fits = array.flags.c_contiguous and array.dtype.str in ("<f4", "|u1") and array.nbytes >= SIZE
        for k in range(self.count):
            fine = fits and (k < self.count - 1 or array.flags.writeable)
            kinds: list[tuple[Any, bool]] = [(_Held(array, meaning), fine) for meaning in self.meanings]
            kinds += [(_Held(array, array), False), (array, fine and not self.together)]
            for one, taken in kinds:
                given = [one if j == k else self.good(j) for j in range(self.count)]
                places = [_begin(array if j == k else good) for j, good in enumerate(self.goods)]
                if not self.calls(given, places, taken):
                    return False
            del given, one, kinds
        return before == [sys.getrefcount(one) for one in watched]


class _Table(_Pair):
    """The same of three holders, the first of which may be the last; its kernel answers."""

    count, together = 3, True

    def good(self, k: int) -> Any:
        """An argument that is as it should be."""
        return _Held(self.goods[k], self.meanings[0])

    def calls(self, given: list[Any], places: list[int], fine: bool) -> bool:
        """Whether the function answers what the kernel does."""
        for told in (0, 1, 2):
            self.noted[:] = [0, 0, 0, 0, told, 0, 0]
            if self.function(*given) is not (told if fine else 0):
                return False
            first, second, third = places
            if self.noted[:] != ([second, 0, third, 1, told, first, 0] if fine else [0, 0, 0, 0, told, 0, 0]):
                return False
        return True

    def shares(self) -> bool:
        """Whether buffers may only be in the same place where the first and the last one are just there."""
        both = np.zeros(7, "f4")
        for first, second, third in product(range(3), repeat=3):
            chosen = [(both[:6], both[1:], self.goods[j])[k] for j, k in enumerate((first, second, third))]
            fine = third == 2 or (second == 2 and first in (2, third))
            given = [_Held(array, self.meanings[0]) for array in chosen]
            if not self.calls(given, [_begin(array) for array in chosen], fine):
                return False
        return True
