"""The C library's ``memcpy`` as a kernel that threads share: a yardstick for others."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from relayout.errors import Unsupported
from relayout.forking import locked

if TYPE_CHECKING:
    from relayout.jit.abi import Kernel

__all__ = ["memcpy_kernel"]

PAGE = 4096  # bytes; what a shared memcpy is cut at, so that no two threads write to one page


def memcpy_kernel() -> int:
    """The address of a kernel that copies bytes with the C library's ``memcpy``: a yardstick for others.

    Its operands are one i64, the number of bytes; parts are cut at multiples of 4096. It needs a host that
    lets a process make machine code.

    Raises
    ------
    Unsupported
        There is no machine code here; the message tells what is missing.
    """
    return _memcpy().address


@lru_cache(maxsize=1)
@locked
def _memcpy() -> Kernel:
    from relayout.jit.support import missing

    if missing():
        raise Unsupported(f"there is no kernel that copies: {missing()}")
    from relayout.jit.compile import compiled

    return compiled(MEMCPY, ["copy"])["copy"]


MEMCPY = f"""
declare ptr @memcpy(ptr, ptr, i64)

define void @copy(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {{
  %size = load i64, ptr %operands
  %up = add i64 %size, {PAGE - 1}
  %pages = udiv i64 %up, {PAGE}
  %next = add i64 %part, 1
  %a = mul i64 %pages, %part
  %b = mul i64 %pages, %next
  %first = udiv i64 %a, %parts
  %last = udiv i64 %b, %parts
  %from = mul i64 %first, {PAGE}
  %to = mul i64 %last, {PAGE}
  %stop = call i64 @llvm.umin.i64(i64 %to, i64 %size)
  %bytes = sub i64 %stop, %from
  %in = getelementptr i8, ptr %source, i64 %from
  %out = getelementptr i8, ptr %target, i64 %from
  %same = call ptr @memcpy(ptr %out, ptr %in, i64 %bytes)
  ret void
}}

declare i64 @llvm.umin.i64(i64, i64)
"""
