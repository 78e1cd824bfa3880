"""How primitives are held against their definitions: every byte that they write, and all that they must not.

:func:`check` lays logical arrays out in buffers whose holes hold garbage, and runs a primitive into a buffer
that holds garbage too: called as users call it, and part by part in an odd order. Afterwards elements are
what the definition says, rounded as their type rounds; padding is zero; and every other byte is as it was.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

import relayout as rl
from relayout.convert import convert
from relayout.dtypes import dtype
from relayout.ops.operation import Operation
from relayout.ops.products import SumOfProducts
from relayout.primitives.primitive import Primitive
from relayout.tensor import Tensor, address
from strategies import element_places, layouts, padding_offsets
from test_reorder import in_front, writable

FORMATS = ("nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4", "CHWN4", "b_fs_yx_fsv32")
TYPES = ("f32", "bf16", "f16", "s8", "u8", "s32")
EPSILON = {"f64": 1e-12, "f32": 2e-6, "bf16": 2.0**-7, "f16": 2.0**-10}
FRAME = 64  # bytes in front of and behind each buffer


def machine_code() -> bool:
    """Whether there are kernels on this host."""
    return importlib.import_module("relayout.jit.compile").available()


def garbage(size: int, seed: int) -> np.ndarray:
    """Bytes that are NaN, and odd numbers, of every type."""
    return np.random.default_rng(seed).integers(200, 256, size, dtype=np.uint8)


def framed(desc: rl.MemoryDesc, seed: int) -> tuple[np.ndarray, Tensor]:
    """A tensor of garbage, and the bytes around it."""
    outer = garbage(desc.required_bytes + 3 * FRAME, seed)
    start = -address(outer) % FRAME + FRAME
    return outer, Tensor(desc, outer[start : start + desc.required_bytes])


def laid_out(array: np.ndarray, desc: rl.MemoryDesc, seed: int) -> Tensor:
    """A logical array in a descriptor; one that shares places gets an array of its own kind."""
    _, made = framed(desc, seed)
    if writable(desc.layout):
        return rl.reorder(array, desc, out=made)
    flat = made.buffer[: desc.required_bytes].view(desc.dtype.numpy)
    flat[element_places(desc.layout)] = convert(array, desc.dtype)
    flat[padding_offsets(desc.layout)] = 0
    return made


def numbers(dims: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    """Quarters from -4 to 4 that are in the range of a type."""
    found = np.random.default_rng(seed).integers(-16, 17, dims) / 4
    return np.clip(found, 0, None) if kind == "u8" else found


def values(name: str, desc: rl.MemoryDesc, seed: int) -> np.ndarray:
    """Numbers that the argument of a primitive may have.

    Variances are larger than nothing. Bytes are any with one seed in three, and the ends of their range most
    of the time with another, since there sums leave 16 bits and results saturate.
    """
    kind = desc.dtype.name
    if kind in ("s8", "u8") and seed % 3:
        rng, limits = np.random.default_rng(seed), np.iinfo(desc.dtype.numpy)
        if seed % 3 == 1:
            return rng.integers(limits.min, limits.max + 1, desc.dims)
        return rng.choice([limits.min, limits.max, limits.max, limits.max - 1], desc.dims)
    found = numbers(desc.dims, kind, seed)
    return np.abs(found) + 0.25 if name == "variance" else found


def is_exact(operation: Operation) -> bool:
    """Whether results are sums of products of integers as they are."""
    whole = all(not one.dtype.is_float for one in (*operation.inputs, *operation.outputs))
    return whole and isinstance(operation, SumOfProducts) and len(operation.inputs) == 2


def check(
    made: Primitive, seed: int = 0, arrays: Mapping[str, np.ndarray] | None = None, slack: float = 0.0
) -> None:
    """A primitive does what its definition says, and nothing else.

    ``slack`` is by how much results may differ besides, where something is rounded on the way.
    """
    given = {}
    for k, name in enumerate(made.inputs):
        desc = made.descs[name]
        array = (arrays or {}).get(name, values(name, desc, seed + k))
        given[name] = laid_out(array, desc, seed + 100 + k)
    frames = {name: framed(made.descs[name], seed + 50 + k) for k, name in enumerate(made.outputs)}
    targets = {name: target for name, (_, target) in frames.items()}
    old = {}
    for name in made.accumulates:
        desc, target = made.descs[name], targets[name]
        rl.reorder(numbers(desc.dims, desc.dtype.name, seed + 60), desc, out=target)
        flat = target.buffer.view(desc.dtype.numpy)
        flat[padding_offsets(desc.layout)] = 3  # what it held in its padding is no matter
        old[name] = target.numpy().astype(np.float64)
    kept = {name: outer.copy() for name, (outer, _) in frames.items()}
    before = {name: tensor.buffer.copy() for name, tensor in given.items()}
    expected = by_output(made, made.reference(*given.values(), out=old or None))
    found = by_output(made, made(*given.values(), out=targets))
    for name, (outer, target) in frames.items():
        assert found[name] is target
        compare(made, made.descs[name], expected[name], kept[name], outer, target, slack)
    program = made._compiled()
    if program is not None:
        for name, (outer, _) in frames.items():
            outer[:] = kept[name]
        in_parts(program, {name: address(t.buffer) for name, t in (given | targets).items()}, 3)
        for name, (outer, target) in frames.items():
            compare(made, made.descs[name], expected[name], kept[name], outer, target, slack)
    for name, tensor in given.items():
        np.testing.assert_array_equal(tensor.buffer, before[name])


def by_output(made: Primitive, found: Any) -> dict[str, Any]:
    """What a primitive returns, by the names of its outputs."""
    return dict(zip(made.outputs, (found,) if len(made.outputs) == 1 else found, strict=True))


def compare(
    made: Primitive,
    desc: rl.MemoryDesc,
    expected: np.ndarray,
    kept: np.ndarray,
    outer: np.ndarray,
    target: Tensor,
    slack: float = 0.0,
) -> None:
    """Elements are expected, padding is zero, and the rest is as it was."""
    size = desc.dtype.bits // 8
    begin = address(target.buffer) - address(outer)
    places = element_places(desc.layout)
    flat = target.buffer[: target.buffer.size // size * size].view(desc.dtype.numpy)
    found = flat[places].astype(np.float64)
    operation = getattr(made, "operation", None)
    if operation is not None and is_exact(operation):
        np.testing.assert_array_equal(found, convert(expected, desc.dtype), err_msg=repr(made))
    close(found, expected, desc.dtype.name, repr(made), slack)
    padding = padding_offsets(desc.layout)
    assert not flat[padding].view(np.uint8).any(), f"padding of {made!r}"
    touched = np.zeros(outer.size, bool)
    for byte in range(size):
        for some in (places.ravel(), padding):
            touched[begin + some * size + byte] = True
    np.testing.assert_array_equal(outer[~touched], kept[~touched], err_msg=f"outside of {made!r}")


def close(got: np.ndarray, expected: np.ndarray, kind: str, what: str, slack: float = 0.0) -> None:
    """The definition's numbers, but for rounding: in f32, and to the data type."""
    wanted = convert(expected, dtype(kind)).astype(np.float64)
    if dtype(kind).is_float:
        np.testing.assert_allclose(got, wanted, rtol=EPSILON[kind], atol=1e-5 + slack, err_msg=what)
    else:  # the nearest integer of a number that f32 has rounded may be the next one
        assert np.all(np.abs(got - wanted) <= 1 + 1e-6 * np.abs(wanted)), what


def in_parts(program: Any, addresses: Mapping[str, int], parts: int) -> None:
    """All steps of a program, each in so many parts, the last first; scratch holds garbage."""
    known = dict(addresses)
    scratch = program.take()
    for data in scratch.values():
        data[:] = garbage(data.size, 9)
    known |= {name: address(data) for name, data in (*scratch.items(), *program.constants.items())}
    for step in program.steps:
        names = step.operands if isinstance(step.operands, tuple) else (step.operands,)
        block = np.array([known[name] for name in names], np.uint64)
        operands = address(block) if isinstance(step.operands, tuple) else known[step.operands]
        count = min(parts, step.parts) if "slots" in names else parts  # as many as have a slot of scratch
        for part in reversed(range(count)):
            source, target = (known[n] + k for n, k in zip((step.source, step.target), step.at, strict=True))
            step.kernel(source, target, operands, part, count)


@st.composite
def sides(draw: st.DrawFn, count: int, kinds: tuple[str, ...] = TYPES) -> list[rl.MemoryDesc]:
    """Descriptors of the same dims in any layouts; the first one can be written."""
    first = draw(layouts(zeros=True).map(in_front).filter(writable))
    found = [first]
    for _ in range(count - 1):
        how = draw(st.integers(0, 2))
        found.append(first if not how else in_front(draw(layouts(dims=first.dims))))
    return [rl.MemoryDesc(first.dims, draw(st.sampled_from(kinds)), layout) for layout in found]
