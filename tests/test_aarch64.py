"""Sums of narrow products on AArch64: the kernels themselves, run by QEMU where that is installed."""

from __future__ import annotations

import numpy as np
import pytest

import aarch64
import relayout as rl
from relayout import MemoryDesc
from relayout.kernels.conv.module import ENTRY
from test_amx_products import modules_of, tiles
from test_products import judge, machines, problem, products, random_values, tolerance

compile_ = pytest.importorskip("relayout.jit.compile")
pytestmark = pytest.mark.skipif(aarch64.QEMU is None, reason="QEMU for AArch64 is not installed")
TRIPLE = "aarch64-unknown-linux-gnu"
BYTES, SIGNED, REALS = ("u8", "s8", "s32"), ("s8", "s8", "s32"), ("bf16", "bf16", "f32")


def computed(make, cpu, instruction, monkeypatch, folder, seed=0):
    """Run a primitive for another processor, and judge what it writes."""
    machine = machines.machine(cpu, TRIPLE)
    text = modules_of(make, machine, monkeypatch, instruction)[-1]
    with tiles(1, machine, instruction):
        made = make()
        lowered = products.products(made._as_products(made.descs))
    (step,) = lowered.program.steps
    assert f"by {instruction}" in str(lowered)
    rng = np.random.default_rng(seed)
    buffers, arrays = {}, {}
    for name in made.inputs:
        desc = made.descs[name]
        values = rng.integers(0, 9, desc.dims) if "zero" in name else random_values(desc, rng)
        tensor = rl.reorder(rl.tensor(np.asarray(values, np.float64), dtype=desc.dtype), desc)
        buffers[name], arrays[name] = tensor.buffer.tobytes(), tensor.numpy().astype(np.float64)
    buffers |= {name: b"\xff" * size for name, size in lowered.program.scratch.items()}
    buffers["dst"] = b"\xff" * made.dst.required_bytes
    places, memory = {}, bytearray()
    for name, content in buffers.items():
        places[name] = len(memory)
        memory += content + b"\xff" * (-len(content) % aarch64.LINE + aarch64.LINE)
    size = len(buffers["dst"])
    text += aarch64.program(ENTRY, places, len(memory), step.operands, size)
    written = aarch64.run(compile_.assemble(text, machine), bytes(memory), folder)
    found = rl.from_buffer(np.frombuffer(written, np.uint8).copy(), made.dst).numpy().astype(np.float64)
    exact = made.reference(**arrays)
    judge(found, exact, tolerance(made, arrays, exact, None), made.dst.dtype.name, str(lowered))


def three(kinds, **more):
    """Three taps a side, with padding: rows are packed, or borders are read in place."""
    return lambda: problem(((1, 134, 9, 11), "nhwc"), (45, 134, 3, 3), 1, 1, kinds, out="nhwc", **more)


def single(kinds, form=None, **more):
    """One tap: the source is read where it lies."""
    return lambda: problem(((2, 72, 5, 7), "nhwc"), (44, 72, 1, 1), 1, 0, kinds, "nhwc", plain=form, **more)


POINT = {"src_zero_point": MemoryDesc((1,), "s32", "a")}
CASES = [
    *((make(kinds), "neoverse-v1", name) for make in (three, single) for kinds, name in (
        (BYTES, "usmmla"), (SIGNED, "smmla"), (REALS, "bfmmla")
    )),
    *((make(kinds), "neoverse-n1", "sdot") for make in (three, single) for kinds in (BYTES, SIGNED)),
    (single(BYTES, "OhwI4o4i"), "neoverse-v1", "usdot"),
    (single(SIGNED, "OhwI4o4i"), "neoverse-v1", "sdot"),
    (single(REALS, "OhwI4o2i"), "neoverse-v1", "bfdot"),
    (three(BYTES, **POINT), "neoverse-v1", "usmmla"),
    (three(SIGNED, **POINT), "neoverse-v1", "smmla"),
    (three(BYTES, **POINT), "neoverse-n1", "sdot"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "cpu", "instruction"), CASES)
def test_kernels_compute_what_definitions_say(make, cpu, instruction, monkeypatch, tmp_path):
    computed(make, cpu, instruction, monkeypatch, tmp_path)
