"""The code of the functions of :mod:`relayout.runtime.builtin`, and the structs that it reads.

CPython calls a function with its *block*, the addresses of its arguments, and their number. The block is a
:class:`Head` and a :class:`Row` for each argument::

    function(x, w, y)      block    Head          which kernel, how it is called, what an array is
                                    Row of x      bytes, flags, data types, meanings that are needed
                                    Row of w
                                    Row of y      flags: it must be writeable

The code goes over the arguments once. Each is unpacked, looked at, and compared with those before it: if
either is written, they must not overlap. Then it gives the interpreter's lock away and calls the kernel.

Offsets are those of ctypes structures, so that the numbers in the code and those in the blocks can't differ.

Traps:

* The code never fails half way: it answers no before anything is held or called, or it goes to the end.
* Whatever is compared by address must be kept alive by the block, or something else may come to lie there.
"""

from __future__ import annotations

import ctypes
from string import Template

__all__ = [
    *("ANSWERS", "API", "BYTES", "CODE", "CONTIGUOUS", "MOST", "WARNS", "WRITEABLE"),
    *("Array", "Head", "Object", "Row", "ir"),
]

MOST = 16  # buffers of one function

CONTIGUOUS, WRITEABLE = 0x1, 0x400  # NumPy's flags of an array
WARNS = -1 << 31  # its sign: NumPy wants to warn before somebody writes


BYTES = bytes.__basicsize__ - 1  # from the address of a bytes object to its bytes


class Object(ctypes.Structure):
    """How every object of CPython begins."""

    _fields_ = (("count", ctypes.c_ssize_t), ("type", ctypes.c_void_p))


class Array(ctypes.Structure):
    """How NumPy's arrays go on; see ``PyArrayObject_fields`` in its headers."""

    _fields_ = (
        ("head", Object),
        ("data", ctypes.c_void_p),
        ("nd", ctypes.c_int),
        ("dims", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("base", ctypes.c_void_p),
        ("descr", ctypes.c_void_p),
        ("flags", ctypes.c_int),
    )


def _numbers(*names: str) -> list[tuple[str, type[ctypes.c_int64]]]:
    return [(name, ctypes.c_int64) for name in names]


API = {
    "save": "PyEval_SaveThread",
    "restore": "PyEval_RestoreThread",
    "hold": "Py_IncRef",
    "free": "Py_DecRef",
    "refuse": "PyErr_BadArgument",
}
"""The functions of Python that the code calls."""

ANSWERS = {False: "PyBool_FromLong", True: "PyLong_FromLong"}
"""The one that makes an answer of a number; True: for kernels that answer themselves."""


class Head(ctypes.Structure):
    """How a block begins; ``bare`` is the type of arguments that stand for themselves, or 0."""

    _fields_ = (
        *_numbers("count", "kernel", "operands", "together", "answer"),
        *_numbers("array", "bare", "holder", "inner", "meaning"),
        *_numbers(*API),
    )


class Row(ctypes.Structure):
    """How it goes on, once for each buffer: ``flags & mask`` must be ``want``; two types and their sizes."""

    _fields_ = (
        *_numbers("needs", "mask", "want", "dtype", "size", "other", "other_size"),
        *_numbers("meaning", "other_meaning", "shares"),
    )


CODE = Template("""
; What functions are: (block, arguments, their number) -> a new reference to the answer, or null.
define ptr @checked(ptr %self, ptr %arguments, i64 %given) {
entry:
  %froms = alloca [$MOST x i64]
  %tos = alloca [$MOST x i64]
  %arrays = alloca [$MOST x ptr]
  %block = getelementptr i8, ptr %self, i64 $BLOCK
  %rows = getelementptr i8, ptr %block, i64 $ROWS
  %count.at = getelementptr i8, ptr %block, i64 $HEAD_COUNT
  %array.at = getelementptr i8, ptr %block, i64 $HEAD_ARRAY
  %bare.at = getelementptr i8, ptr %block, i64 $HEAD_BARE
  %holder.at = getelementptr i8, ptr %block, i64 $HEAD_HOLDER
  %inner.at = getelementptr i8, ptr %block, i64 $HEAD_INNER
  %meaning.at = getelementptr i8, ptr %block, i64 $HEAD_MEANING
  %answer.at = getelementptr i8, ptr %block, i64 $HEAD_ANSWER
  %count = load i64, ptr %count.at
  %array.type = load i64, ptr %array.at
  %bare.type = load i64, ptr %bare.at
  %holder.type = load i64, ptr %holder.at
  %inner.offset = load i64, ptr %inner.at
  %meaning.offset = load i64, ptr %meaning.at
  %answering = load ptr, ptr %answer.at
  %right = icmp eq i64 %given, %count
  br i1 %right, label %look, label %miscounted

; Each argument is an array, or holds one, or only the latter will do.
look:
  %i = phi i64 [0, %entry], [%i.next, %apart]
  %row.offset = mul i64 %i, $ROW
  %row = getelementptr i8, ptr %rows, i64 %row.offset
  %argument.at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument.at
  %type.at = getelementptr i8, ptr %argument, i64 $OBJECT_TYPE
  %type = load i64, ptr %type.at
  %plain = icmp eq i64 %type, %bare.type
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
  br i1 %meant, label %unpack, label %otherwise
otherwise:
  %also.at = getelementptr i8, ptr %row, i64 $ROW_OTHER_MEANING
  %also = load i64, ptr %also.at
  %meant.too = icmp eq i64 %says, %also
  br i1 %meant.too, label %unpack, label %no
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

; Where it lies, and that nothing before it lies there if either is written; but one may be just where the
; other is, if it shares.
place:
  %shares.at = getelementptr i8, ptr %row, i64 $ROW_SHARES
  %shares = load i64, ptr %shares.at
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
  br i1 %clash, label %met, label %disjoint
met:
  %j.shares.at = getelementptr i8, ptr %j.row, i64 $ROW_SHARES
  %j.shares = load i64, ptr %j.shares.at
  %sharing = or i64 %shares, %j.shares
  %may = icmp ne i64 %sharing, 0
  %there = icmp eq i64 %from, %j.from
  %fine = and i1 %may, %there
  br i1 %fine, label %disjoint, label %no
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
  %told = call i64 %kernel(ptr %froms, ptr null, ptr %operands, i64 0, i64 1)
  br label %back
pair:
  %one = load ptr, ptr %froms
  %two.at = getelementptr i64, ptr %froms, i64 1
  %two = load ptr, ptr %two.at
  call void %kernel(ptr %one, ptr %two, ptr %operands, i64 0, i64 1)
  br label %back
back:
  %answer = phi i64 [%told, %table], [1, %pair]
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
  %result = call ptr %answering(i64 %answer)
  ret ptr %result
no:
  %refusal = call ptr %answering(i64 0)
  ret ptr %refusal
miscounted:
  %refuse.at = getelementptr i8, ptr %block, i64 $HEAD_REFUSE
  %refuse = load ptr, ptr %refuse.at
  %error = call i32 %refuse()
  ret ptr null
}

declare {i64, i1} @llvm.umul.with.overflow.i64(i64, i64)

; Kernels that write down what they are given, for the proof.
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

; The same of a table with three addresses; the fifth number is what it answers.
define i64 @note_table(ptr %table, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  %second.at = getelementptr i64, ptr %table, i64 1
  %third.at = getelementptr i64, ptr %table, i64 2
  %second = load ptr, ptr %second.at
  %third = load i64, ptr %third.at
  call void @note(ptr %second, ptr %target, ptr %operands, i64 %third, i64 %parts)
  %first = load i64, ptr %table
  %apart = getelementptr i64, ptr %operands, i64 5
  %last = getelementptr i64, ptr %operands, i64 6
  store i64 %first, ptr %apart
  store i64 %part, ptr %last
  %told.at = getelementptr i64, ptr %operands, i64 4
  %told = load i64, ptr %told.at
  ret i64 %told
}
""")


def ir() -> str:
    """The code for this build of Python."""
    structs: dict[str, type[ctypes.Structure]] = {"OBJECT": Object, "ARRAY": Array, "HEAD": Head, "ROW": Row}
    offsets = {
        f"{prefix}_{field[0].upper()}": getattr(struct, field[0]).offset
        for prefix, struct in structs.items()
        for field in struct._fields_
    }
    return CODE.substitute(
        offsets,
        MOST=MOST,
        BLOCK=BYTES,
        ROWS=ctypes.sizeof(Head),
        ROW=ctypes.sizeof(Row),
        WRITEABLE=WRITEABLE,
    )
