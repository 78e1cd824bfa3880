"""Python functions in machine code: buffers are checked and a kernel is called in a fifth of a microsecond.

A kernel that moves 4 KiB takes 0.1 microseconds. To call it from Python takes twenty times as long: two
arrays are checked, their addresses taken, five numbers handed to ctypes. So the checks are machine code too.
:func:`checked` makes what CPython calls a built-in function::

    function(array, array, ...)  ->  True    all was as it has to be, and the kernel has been called
                                     False   something was not; nothing has been done

It only ever says yes where the checks in Python would have. At a no these are asked: they raise the good
error, or find that the call is right after all (a memory map, a list, a view that overlaps and does no harm).
So the fast way needs to know neither messages nor rare cases.

>>> import numpy as np
>>> from relayout.codegen.threads import memcpy_kernel
>>> size = np.array([8])  # what the kernel reads as its operands
>>> row = Buffer(8, (np.dtype("u1"),))
>>> copy = checked(memcpy_kernel(), size.ctypes.data, [row, row._replace(written=True)], keep=size)
>>> source, target = np.arange(8, dtype="u1"), np.zeros(8, "u1")
>>> copy(source, target), copy(source[1:], target), copy(source, target[::-1])
(True, False, False)
>>> target
array([0, 1, 2, 3, 4, 5, 6, 7], dtype=uint8)

There is one piece of code for all functions of a process, and it comes from the disk cache. What a function
checks is in a *block* of numbers, which CPython hands to the code as the ``self`` of the function::

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
* Names of Python's functions are not in the code: LLVM ends the process over one that is missing. The block
  has their addresses.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from string import Template
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.codegen import compile as compiler
from relayout.forking import lock

__all__ = ["MOST", "Buffer", "Holder", "available", "checked"]

MOST = 16  # buffers of one function

METH_FASTCALL = 0x80  # Python's: the function takes (self, arguments, their number)
CONTIGUOUS, WRITEABLE = 0x1, 0x400  # NumPy's flags of an array
WARNS = -1 << 31  # its sign: NumPy wants to warn before somebody writes


class Buffer(NamedTuple):
    """What one argument of a function must be: a NumPy array, contiguous in C's order."""

    needs: int
    """Bytes that it must have at least."""
    dtypes: tuple[np.dtype[Any], ...]
    """One or two data types, any of which it may have."""
    written: bool = False
    """Whether the kernel writes to it: it must be writeable then, and share no byte with any other."""
    meaning: object = None
    """What a :class:`Holder` must say for its array to be taken; None: only arrays are."""


class Holder(NamedTuple):
    """A class whose instances keep, in slots (``__slots__``), an array and an object that says what it means.

    An argument of just this class stands for its array if its meaning *is* that of the :class:`Buffer`.
    """

    cls: type
    array: str
    """The slot with the array."""
    meaning: str
    """The slot that says what it means."""


class _Object(ctypes.Structure):
    """How every object of CPython begins."""

    _fields_ = (("count", ctypes.c_ssize_t), ("type", ctypes.c_void_p))


class _Array(ctypes.Structure):
    """How NumPy's arrays go on; see ``PyArrayObject_fields`` in its headers."""

    _fields_ = (
        ("head", _Object),
        ("data", ctypes.c_void_p),
        ("nd", ctypes.c_int),
        ("dims", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("base", ctypes.c_void_p),
        ("descr", ctypes.c_void_p),
        ("flags", ctypes.c_int),
    )


class _Method(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def _numbers(*names: str) -> list[tuple[str, type[ctypes.c_int64]]]:
    return [(name, ctypes.c_int64) for name in names]


API = {
    "save": "PyEval_SaveThread",
    "restore": "PyEval_RestoreThread",
    "hold": "Py_IncRef",
    "free": "Py_DecRef",
    "truth": "PyBool_FromLong",
    "refuse": "PyErr_BadArgument",
}
"""The functions of Python that the code calls."""


class _Head(ctypes.Structure):
    """How a block begins."""

    _fields_ = (
        *_numbers("count", "kernel", "operands", "together", "array", "holder", "inner", "meaning"),
        *_numbers(*API),
    )


class _Row(ctypes.Structure):
    """How it goes on, once for each buffer: ``flags & mask`` must be ``want``; two types and their sizes."""

    _fields_ = _numbers("needs", "mask", "want", "dtype", "size", "other", "other_size", "meaning")


CODE = Template("""
; What functions are: (block, arguments, their number) -> a new reference to True or False, or null.
define ptr @checked(ptr %self, ptr %arguments, i64 %given) {
entry:
  %froms = alloca [$MOST x i64]
  %tos = alloca [$MOST x i64]
  %arrays = alloca [$MOST x ptr]
  %block = getelementptr i8, ptr %self, i64 $BLOCK
  %rows = getelementptr i8, ptr %block, i64 $ROWS
  %count.at = getelementptr i8, ptr %block, i64 $HEAD_COUNT
  %array.at = getelementptr i8, ptr %block, i64 $HEAD_ARRAY
  %holder.at = getelementptr i8, ptr %block, i64 $HEAD_HOLDER
  %inner.at = getelementptr i8, ptr %block, i64 $HEAD_INNER
  %meaning.at = getelementptr i8, ptr %block, i64 $HEAD_MEANING
  %truth.at = getelementptr i8, ptr %block, i64 $HEAD_TRUTH
  %count = load i64, ptr %count.at
  %array.type = load i64, ptr %array.at
  %holder.type = load i64, ptr %holder.at
  %inner.offset = load i64, ptr %inner.at
  %meaning.offset = load i64, ptr %meaning.at
  %truth = load ptr, ptr %truth.at
  %right = icmp eq i64 %given, %count
  br i1 %right, label %look, label %miscounted

; Each argument is an array, or holds one.
look:
  %i = phi i64 [0, %entry], [%i.next, %apart]
  %row.offset = mul i64 %i, $ROW
  %row = getelementptr i8, ptr %rows, i64 %row.offset
  %argument.at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument.at
  %type.at = getelementptr i8, ptr %argument, i64 $OBJECT_TYPE
  %type = load i64, ptr %type.at
  %plain = icmp eq i64 %type, %array.type
  br i1 %plain, label %found, label %other
other:
  %holds = icmp eq i64 %type, %holder.type
  br i1 %holds, label %open, label %no
open:
  %says.at = getelementptr i8, ptr %argument, i64 %meaning.offset
  %says = load i64, ptr %says.at
  %wanted.at = getelementptr i8, ptr %row, i64 $ROW_MEANING
  %wanted = load i64, ptr %wanted.at
  %meant = icmp eq i64 %says, %wanted
  br i1 %meant, label %unpack, label %no
unpack:
  %inside.at = getelementptr i8, ptr %argument, i64 %inner.offset
  %inside = load ptr, ptr %inside.at
  %empty = icmp eq ptr %inside, null
  br i1 %empty, label %no, label %unpacked
unpacked:
  %inside.type.at = getelementptr i8, ptr %inside, i64 $OBJECT_TYPE
  %inside.type = load i64, ptr %inside.type.at
  %good = icmp eq i64 %inside.type, %array.type
  br i1 %good, label %found, label %no

; Flags, data type, bytes.
found:
  %array = phi ptr [%argument, %look], [%inside, %unpacked]
  %flags.at = getelementptr i8, ptr %array, i64 $ARRAY_FLAGS
  %flags = load i32, ptr %flags.at
  %flags.wide = sext i32 %flags to i64
  %mask.at = getelementptr i8, ptr %row, i64 $ROW_MASK
  %mask = load i64, ptr %mask.at
  %want.at = getelementptr i8, ptr %row, i64 $ROW_WANT
  %want = load i64, ptr %want.at
  %masked = and i64 %flags.wide, %mask
  %usable = icmp eq i64 %masked, %want
  br i1 %usable, label %kind, label %no
kind:
  %descr.at = getelementptr i8, ptr %array, i64 $ARRAY_DESCR
  %descr = load i64, ptr %descr.at
  %dtype.at = getelementptr i8, ptr %row, i64 $ROW_DTYPE
  %dtype = load i64, ptr %dtype.at
  %first = icmp eq i64 %descr, %dtype
  br i1 %first, label %sized, label %second
second:
  %other.at = getelementptr i8, ptr %row, i64 $ROW_OTHER
  %other.dtype = load i64, ptr %other.at
  %same = icmp eq i64 %descr, %other.dtype
  br i1 %same, label %sized, label %no
sized:
  %size.offset = phi i64 [$ROW_SIZE, %kind], [$ROW_OTHER_SIZE, %second]
  %size.at = getelementptr i8, ptr %row, i64 %size.offset
  %size = load i64, ptr %size.at
  %nd.at = getelementptr i8, ptr %array, i64 $ARRAY_ND
  %nd = load i32, ptr %nd.at
  %dims.at = getelementptr i8, ptr %array, i64 $ARRAY_DIMS
  %dims = load ptr, ptr %dims.at
  br label %axis
axis:
  %axes = phi i32 [0, %sized], [%axes.next, %grown]
  %bytes = phi i64 [%size, %sized], [%product, %grown]
  %more = icmp slt i32 %axes, %nd
  br i1 %more, label %grow, label %measured
grow:
  %dim.at = getelementptr i64, ptr %dims, i32 %axes
  %dim = load i64, ptr %dim.at
  %grows = call {i64, i1} @llvm.umul.with.overflow.i64(i64 %bytes, i64 %dim)
  %product = extractvalue {i64, i1} %grows, 0
  %lost = extractvalue {i64, i1} %grows, 1
  br i1 %lost, label %no, label %grown
grown:
  %axes.next = add i32 %axes, 1
  br label %axis
measured:
  %needs.at = getelementptr i8, ptr %row, i64 $ROW_NEEDS
  %needs = load i64, ptr %needs.at
  %enough = icmp uge i64 %bytes, %needs
  br i1 %enough, label %place, label %no

; Where it lies, and that nothing before it lies there if either is written.
place:
  %data.at = getelementptr i8, ptr %array, i64 $ARRAY_DATA
  %from = load i64, ptr %data.at
  %to = add i64 %from, %bytes
  %from.at = getelementptr i64, ptr %froms, i64 %i
  store i64 %from, ptr %from.at
  %to.at = getelementptr i64, ptr %tos, i64 %i
  store i64 %to, ptr %to.at
  %kept.at = getelementptr ptr, ptr %arrays, i64 %i
  store ptr %array, ptr %kept.at
  br label %earlier
earlier:
  %j = phi i64 [0, %place], [%j.next, %disjoint]
  %left = icmp slt i64 %j, %i
  br i1 %left, label %compare, label %apart
compare:
  %j.offset = mul i64 %j, $ROW
  %j.row = getelementptr i8, ptr %rows, i64 %j.offset
  %j.want.at = getelementptr i8, ptr %j.row, i64 $ROW_WANT
  %j.want = load i64, ptr %j.want.at
  %either = or i64 %want, %j.want
  %writes = and i64 %either, $WRITEABLE
  %written = icmp ne i64 %writes, 0
  %j.from.at = getelementptr i64, ptr %froms, i64 %j
  %j.from = load i64, ptr %j.from.at
  %j.to.at = getelementptr i64, ptr %tos, i64 %j
  %j.to = load i64, ptr %j.to.at
  %below = icmp ult i64 %from, %j.to
  %above = icmp ult i64 %j.from, %to
  %crossing = and i1 %below, %above
  %clash = and i1 %written, %crossing
  br i1 %clash, label %no, label %disjoint
disjoint:
  %j.next = add i64 %j, 1
  br label %earlier
apart:
  %i.next = add i64 %i, 1
  %again = icmp slt i64 %i.next, %count
  br i1 %again, label %look, label %hold

; All is well: hold the arrays, and call without the interpreter's lock.
hold:
  %hold.at = getelementptr i8, ptr %block, i64 $HEAD_HOLD
  %holding = load ptr, ptr %hold.at
  br label %hold.next
hold.next:
  %h = phi i64 [0, %hold], [%h.next, %hold.next]
  %h.at = getelementptr ptr, ptr %arrays, i64 %h
  %held = load ptr, ptr %h.at
  call void %holding(ptr %held)
  %h.next = add i64 %h, 1
  %h.more = icmp slt i64 %h.next, %count
  br i1 %h.more, label %hold.next, label %go
go:
  %kernel.at = getelementptr i8, ptr %block, i64 $HEAD_KERNEL
  %kernel = load ptr, ptr %kernel.at
  %operands.at = getelementptr i8, ptr %block, i64 $HEAD_OPERANDS
  %operands = load ptr, ptr %operands.at
  %together.at = getelementptr i8, ptr %block, i64 $HEAD_TOGETHER
  %together = load i64, ptr %together.at
  %save.at = getelementptr i8, ptr %block, i64 $HEAD_SAVE
  %save = load ptr, ptr %save.at
  %restore.at = getelementptr i8, ptr %block, i64 $HEAD_RESTORE
  %restore = load ptr, ptr %restore.at
  %free.at = getelementptr i8, ptr %block, i64 $HEAD_FREE
  %freeing = load ptr, ptr %free.at
  %all = icmp ne i64 %together, 0
  %state = call ptr %save()
  br i1 %all, label %table, label %pair
table:
  call void %kernel(ptr %froms, ptr null, ptr %operands, i64 0, i64 1)
  br label %back
pair:
  %one = load ptr, ptr %froms
  %two.at = getelementptr i64, ptr %froms, i64 1
  %two = load ptr, ptr %two.at
  call void %kernel(ptr %one, ptr %two, ptr %operands, i64 0, i64 1)
  br label %back
back:
  call void %restore(ptr %state)
  br label %free.next
free.next:
  %f = phi i64 [0, %back], [%f.next, %free.next]
  %f.at = getelementptr ptr, ptr %arrays, i64 %f
  %freed = load ptr, ptr %f.at
  call void %freeing(ptr %freed)
  %f.next = add i64 %f, 1
  %f.more = icmp slt i64 %f.next, %count
  br i1 %f.more, label %free.next, label %yes
yes:
  %true = call ptr %truth(i64 1)
  ret ptr %true
no:
  %false = call ptr %truth(i64 0)
  ret ptr %false
miscounted:
  %refuse.at = getelementptr i8, ptr %block, i64 $HEAD_REFUSE
  %refuse = load ptr, ptr %refuse.at
  %error = call i32 %refuse()
  ret ptr null
}

declare {i64, i1} @llvm.umul.with.overflow.i64(i64, i64)

; A kernel that writes down what it is given, for the proof.
define void @note(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  store ptr %source, ptr %operands
  %second = getelementptr i64, ptr %operands, i64 1
  store ptr %target, ptr %second
  %third = getelementptr i64, ptr %operands, i64 2
  store i64 %part, ptr %third
  %fourth = getelementptr i64, ptr %operands, i64 3
  store i64 %parts, ptr %fourth
  ret void
}
""")


def _ir() -> str:
    """The code for this build of Python."""
    structs = {"OBJECT": _Object, "ARRAY": _Array, "HEAD": _Head, "ROW": _Row}
    offsets = {
        f"{prefix}_{field[0].upper()}": getattr(struct, field[0]).offset
        for prefix, struct in structs.items()
        for field in struct._fields_
    }
    return CODE.substitute(
        offsets,
        MOST=MOST,
        BLOCK=_BYTES,
        ROWS=ctypes.sizeof(_Head),
        ROW=ctypes.sizeof(_Row),
        WRITEABLE=WRITEABLE,
    )


_BYTES = bytes.__basicsize__ - 1  # from the address of a bytes object to its bytes


class _Block(bytes):
    """The numbers of one function. Bytes can't change, and an attribute keeps what they point to."""

    keep: object


class _Maker:
    """All that functions share; each of them keeps it."""

    def __init__(self) -> None:
        self.engine = compiler.loaded(_ir(), level=0)  # a call takes 0.015 us longer than with more
        self.note = compiler.address_of(self.engine, "note")
        entry = compiler.address_of(self.engine, "checked")
        self._method = _Method(b"checked", entry, METH_FASTCALL, b"Check buffers and call a kernel.")
        self.api = {field: _address(name) for field, name in API.items()}
        # Prototypes of our own: those of ctypes.pythonapi belong to everybody.
        prototype: Any = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
        )
        self._new = prototype(("PyCFunction_NewEx", ctypes.pythonapi))

    def function(self, block: _Block) -> Callable[..., bool]:
        """The built-in function with this block as its ``self``."""
        made: Callable[..., bool] = self._new(ctypes.addressof(self._method), block, None)
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
) -> Callable[..., bool] | None:
    """Make a built-in function that checks its arguments and calls a kernel once, for all of its work.

    Parameters
    ----------
    kernel : int
        The address of the kernel; see :class:`relayout.codegen.compile.Kernel`.
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
        source, and with 0 as its destination. Otherwise its source is the first buffer and its destination
        the second.

    Returns
    -------
    callable or None
        ``function(*arrays) -> bool``; None where there is none to be had. It raises TypeError for another
        number of arguments, and does not take them by name.

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
    return _function(maker, kernel, operands, buffers, holder, keep, together)


def _function(
    maker: _Maker,
    kernel: int,
    operands: int,
    buffers: Sequence[Buffer],
    holder: Holder | None = None,
    keep: object = None,
    together: bool = False,
) -> Callable[..., bool]:
    head = _Head(
        count=len(buffers),
        kernel=kernel,
        operands=operands,
        together=together,
        array=id(np.ndarray),
        holder=id(holder.cls) if holder else 0,
        inner=_offset(holder.cls, holder.array) if holder else 0,
        meaning=_offset(holder.cls, holder.meaning) if holder else 0,
        **maker.api,
    )
    nothing = object()  # no holder can say this
    block = _Block(bytes(head) + b"".join(bytes(_row(buffer, nothing)) for buffer in buffers))
    block.keep = maker, keep, tuple(buffers), holder, nothing
    return maker.function(block)


def _row(buffer: Buffer, nothing: object) -> _Row:
    """One buffer as the code reads it; objects are known by their addresses."""
    dtype, other = buffer.dtypes[0], buffer.dtypes[-1]
    meaning = nothing if buffer.meaning is None else buffer.meaning
    return _Row(
        needs=buffer.needs,
        mask=CONTIGUOUS | WRITEABLE | WARNS if buffer.written else CONTIGUOUS,
        want=CONTIGUOUS | WRITEABLE if buffer.written else CONTIGUOUS,
        dtype=id(dtype),
        size=dtype.itemsize,
        other=id(other),
        other_size=other.itemsize,
        meaning=id(meaning),
    )


@lru_cache(maxsize=64)
def _offset(cls: type, slot: str) -> int:
    """How many bytes behind the beginning of an instance a slot is: found out by filling one."""
    probe: Any = object.__new__(cls)
    mark = object()
    setattr(probe, slot, mark)
    word = ctypes.sizeof(ctypes.c_void_p)
    places = range(ctypes.sizeof(_Object), cls.__basicsize__, word)
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
    if debugging or object.__basicsize__ != ctypes.sizeof(_Object):  # longer without the interpreter's lock
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
    fixed = np.zeros(6, "f4")
    fixed.flags.writeable = False
    yield fixed


def _as_declared(array: NDArray[Any]) -> bool:
    """Whether an array's struct says what NumPy says."""
    found = _Array.from_address(id(array))
    declared = (found.head.type, found.data, found.nd, found.descr, found.flags)
    spoken = (id(type(array)), _begin(array), array.ndim, id(array.dtype), array.flags.num)
    return declared == spoken and tuple(found.dims[: found.nd]) == array.shape


def _begin(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _proved(maker: _Maker) -> bool:
    """Whether the code answers as it should, reads what NumPy says, and leaves references alone."""
    noted = (ctypes.c_int64 * 4)()
    good, meaning = np.zeros(6, "f4"), object()
    rows = [Buffer(SIZE, (good.dtype, np.dtype("u1")), written, meaning) for written in (False, True)]
    holder = Holder(_Held, "array", "meaning")
    function: Any = _function(maker, maker.note, ctypes.addressof(noted), rows, holder)
    block = function.__self__
    if ctypes.string_at(id(block) + _BYTES, len(block)) != block:
        return False
    if function(good, good) or function(None, good) or function(good, _Held(None, meaning)):
        return False
    for array in _samples():
        before = sys.getrefcount(array), sys.getrefcount(good)
        if not _agrees(function, noted, array, good, meaning):
            return False
        if before != (sys.getrefcount(array), sys.getrefcount(good)):
            return False
    return True


def _agrees(
    function: Callable[..., bool],
    noted: ctypes.Array[ctypes.c_int64],
    array: NDArray[Any],
    good: NDArray[Any],
    meaning: object,
) -> bool:
    """Whether the code takes an array where it should and only there, and finds its data."""
    fits = array.flags.c_contiguous and array.dtype.str in ("<f4", "|u1") and array.nbytes >= SIZE
    here, there = _begin(array), _begin(good)
    for given, fine in ((array, fits), (_Held(array, meaning), fits), (_Held(array, good), False)):
        for pair, places, yes in (
            ((given, good), [here, there], fine),
            ((good, given), [there, here], fine and array.flags.writeable),
        ):
            noted[:] = [0] * 4
            if function(*pair) is not yes or noted[:] != ([*places, 0, 1] if yes else [0] * 4):
                return False
    return True
