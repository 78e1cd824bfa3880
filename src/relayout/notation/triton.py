"""Triton's encodings: which of them are layouts of memory, and which are not.

Triton compiles GPU kernels. Its intermediate code attaches an *encoding* to every tensor, and most encodings
do not say where an element lies in memory, but which thread holds it in which register::

    #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], ...}>       registers of threads
    #ttg.linear<{register = [[0, 1]], lane = [...], warp = [...]}>             the same, bit by bit

These are refused. So are shared-memory encodings that swizzle: they take the exclusive or of address bits
with row bits, so that threads hit different banks, and an xor is no sum of digits times strides. Two kinds
are left.

Shared memory without a swizzle
===============================

::

    #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>

``maxPhase = 1`` means that there is nothing to swizzle. ``order`` lists the axes, the fastest first: [1, 0]
is row-major.

Linear layouts that are digits
==============================

A linear layout gives, for each bit of the offset, the index that this bit is worth::

    #ttg.shared_linear<{offset = [[0, 1], [0, 2], [1, 0], [2, 0], [0, 4]]}, alignment = 16>

Bits 0 and 1 of the offset are ``b % 4``, bits 2 and 3 are ``a % 4``, bit 4 is ``b // 4``. Where every vector
is a single power of two, the bits of an axis are digits of extent 2, and neighbours that continue each other
are one digit: ``b//4, a, b%4``. A vector such as [2, 2] is an xor. As with CuTe, the sizes are forgotten, and
the most significant digit of each axis is open.

Source: Triton's ``TritonGPUAttrDefs.td``; "Linear Layouts", arXiv 2505.23819.
"""

from __future__ import annotations

import re

from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format, letters

TITLE = "Triton"

__all__ = ["TITLE", "names", "parse", "render"]

_ENCODING = re.compile(r"#(?:ttg|ttng|tlx|triton_gpu|triton_nvidia_gpu|triton_amd_gpu)\.(\w+)(.*)", re.DOTALL)
_ALIAS = re.compile(r"#(?:blocked|linear|shared|mma|smem|tmem)[0-9]*")
_LINEAR = re.compile(r"LinearLayout\b.*", re.DOTALL)
_VECTOR = re.compile(r"\[([^\[\]]*)\]")
_REGISTERS = "says which thread holds which element in which register; that is no layout of memory"
_XOR = "swizzles, i.e. takes the exclusive or of address bits, which is no sum of digits times strides"
_SPREAD = "spreads a tensor over several blocks of threads, each with a buffer of its own"
_REASONS = {
    "nvmma_shared": _XOR,
    "amd_rotating_shared": _XOR,
    "padded_shared": "leaves gaps at certain offsets, which belong to no axis",
    "shared_memory": "names a kind of memory, not a layout",
    "tensor_memory": "names a kind of memory, not a layout",
}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a shared-memory encoding that is an order of digits; None if the text is no encoding.

    Raises
    ------
    Unsupported
        The encoding distributes registers, swizzles, or spreads over several blocks of threads.
    LayoutError
        The encoding's parameters can't be read.

    Examples
    --------
    >>> parse("#ttg.shared_linear<{offset = [[0, 1], [0, 2], [1, 0], [0, 4]]}, alignment = 16>").digits_text()
    'ab -> b//4, a, b%4'
    """
    if _ALIAS.fullmatch(text):
        raise Unsupported(
            f"{text} only names an encoding that its file defines elsewhere; write that definition, #ttg..."
        )
    if _LINEAR.fullmatch(text):
        raise Unsupported(
            f"Triton's LinearLayout {_REGISTERS}, unless it is that of shared memory: then write it as "
            "#ttg.shared_linear<{offset = [[...]]}>"
        )
    match = _ENCODING.fullmatch(text)
    if match is None:
        return None
    kind, parameters = match.groups()
    if kind in ("swizzled_shared", "shared"):
        return _swizzled(text, parameters)
    if kind == "shared_linear":
        return _shared_linear(text, parameters)
    raise Unsupported(f"Triton's encoding {kind!r} {_REASONS.get(kind, _REGISTERS)}")


def _swizzled(text: str, parameters: str) -> Format:
    values = dict(re.findall(r"(\w+)\s*=\s*(\[[^\[\]]*\]|\w+)", parameters))
    if "order" not in values:
        raise LayoutError(
            f"encoding {text!r} has no 'order = [...]', the axes from the fastest to the slowest"
        )
    if values.get("maxPhase", "1") != "1":
        raise Unsupported(
            f"encoding {text!r} has maxPhase = {values['maxPhase']} and so {_XOR}; maxPhase = 1 does not"
        )
    if set(re.findall(r"[0-9]+", values.get("CTAsPerCGA", "1"))) - {"1"}:
        raise Unsupported(f"encoding {text!r} {_SPREAD}")
    order = _numbers(text, values["order"].strip("[]"))
    if not order or sorted(order) != list(range(len(order))):
        raise LayoutError(
            f"encoding {text!r}: order = {order} must name each axis from 0 to {max(len(order) - 1, 0)} once"
        )
    axes = letters(len(order))
    return Format.blocked(axes, [axes[a] for a in reversed(order)])


def _shared_linear(text: str, parameters: str) -> Format:
    offset = re.search(r"offset\s*=\s*\[((?:\s*\[[^\[\]]*\]\s*,?)*)\s*\]", parameters)
    bases = [_numbers(text, vector) for vector in _VECTOR.findall(offset[1])] if offset else []
    if not bases or not bases[0] or len({len(vector) for vector in bases}) != 1:
        raise LayoutError(
            f"encoding {text!r} needs 'offset = [[...], ...]': for each bit a vector with a number an axis"
        )
    if re.search(r"block\s*=\s*\[\s*\[", parameters):
        raise Unsupported(f"encoding {text!r} {_SPREAD}")
    axes = letters(len(bases[0]))
    digits: list[tuple[int, int, int]] = []  # axis, weight, extent; innermost first
    for vector in bases:
        found = [(axis, value) for axis, value in enumerate(vector) if value]
        if len(found) != 1 or found[0][1] & (found[0][1] - 1):
            raise Unsupported(
                f"encoding {text!r}: basis vector {vector} is no single power of two; it {_XOR}"
            )
        axis, weight = found[0]
        if digits and digits[-1][0] == axis and digits[-1][1] * digits[-1][2] == weight:
            digits[-1] = (axis, digits[-1][1], digits[-1][2] * 2)
        else:
            digits.append((axis, weight, 2))
    top = {axis: max((w for a, w, _ in digits if a == axis), default=None) for axis in range(len(axes))}
    digits += [(axis, 1, 1) for axis, weight in top.items() if weight is None]  # an axis of size 1
    opened = [(axes[a], w, None if top[a] in (None, w) else e) for a, w, e in reversed(digits)]
    return Format.from_digits(axes, opened)


def _numbers(text: str, values: str) -> list[int]:
    words = [word.strip() for word in values.split(",") if word.strip()]
    if not all(re.fullmatch(r"[0-9]{1,18}", word) for word in words):
        raise LayoutError(f"encoding {text!r}: can't read the numbers [{values}]")
    return [int(word) for word in words]


def render(format: Format) -> str | None:
    """Spell a plain format as an unswizzled encoding; None where axes are cut, since bases need sizes.

    >>> render(Format("ba"))
    '#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0, 1]}>'
    """
    if not format.rank or len(format.terms) != format.rank or any(format.radices):
        return None
    order = [term for term, _ in reversed(format.order)]
    return f"#ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = {order}}}>"


def names() -> tuple[str, ...]:
    """Row-major and column-major shared memory, and a linear layout."""
    return (
        "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>",
        "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0, 1]}>",
        "#ttg.shared_linear<{offset = [[0, 1], [0, 2], [1, 0], [2, 0]]}, alignment = 16>",
    )
