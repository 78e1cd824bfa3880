"""Sums of narrow products on AArch64: the kernels themselves, run by QEMU where that is installed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import aarch64
import foreign
import relayout as rl
from elementwise import compare, framed, laid_out, values
from relayout import MemoryDesc
from relayout.kernels.conv import ENTRY
from test_amx_products import modules_of, tiles
from test_any_primitive import slack_of
from test_products import judge, machines, problem, products, random_values, tolerance

DRAWN = 40
"""How many primitives are drawn."""

pytestmark = pytest.mark.skipif(aarch64.QEMU is None, reason="QEMU for AArch64 is not installed")
BYTES, SIGNED, REALS = ("u8", "s8", "s32"), ("s8", "s8", "s32"), ("bf16", "bf16", "f32")


def computed(make, cpu, instruction, monkeypatch, folder, seed=0):
    """Run a primitive for another processor, and judge what it writes."""
    machine = machines.machine(cpu, aarch64.TRIPLE)
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
    buffers |= {name: aarch64.EDGE * size for name, size in lowered.program.scratch.items()}
    buffers["dst"] = aarch64.EDGE * made.dst.required_bytes
    held = aarch64.Buffers(buffers)
    held.run(step, text, ENTRY, machine, folder)
    found = rl.from_buffer(np.frombuffer(held["dst"], np.uint8).copy(), made.dst).numpy().astype(np.float64)
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


def run_elsewhere(draft, machine, folder, seed, slack):
    """Run a primitive that was made for another processor, and judge every byte that it writes."""
    given, targets, buffers = {}, {}, {}
    for k, one in enumerate(draft.operation.inputs):
        desc = draft.descs[one.name]
        given[one.name] = laid_out(values(one.name, desc, seed + k), desc, seed + 100 + k)
        buffers[one.name] = given[one.name].buffer.tobytes()
    for k, one in enumerate(draft.operation.outputs):
        outer, target = framed(draft.descs[one.name], seed + 50 + k)
        targets[one.name] = outer, outer.copy(), target
        buffers[one.name] = target.buffer.tobytes()
    scratch = {name: aarch64.EDGE * size for name, size in draft.scratch.items()}
    held = aarch64.Buffers(buffers | draft.constants | scratch)
    edges = held.outside()
    for step in draft.steps:
        held.run(step, step.kernel.ir, step.kernel.name, machine, folder)
    assert held.outside() == edges, f"beside the buffers of {draft.said}"
    for name in (*given, *draft.constants):
        assert held[name] == (buffers | draft.constants)[name], f"{name} of {draft.said}"
    arrays = {name: tensor.numpy().astype(np.float64) for name, tensor in given.items()}
    expected = draft.operation.definition(arrays)
    for name, (outer, kept, target) in targets.items():
        target.buffer[:] = np.frombuffer(held[name], np.uint8)
        compare(draft, draft.descs[name], expected[name], kept, outer, target, slack)


@pytest.mark.turns(2)
@pytest.mark.parametrize("cpu", ["neoverse-v1", "cortex-a72"])
def test_any_primitive_computes_what_its_definition_says(cpu, tmp_path):
    """Those of :mod:`drawn`: all kinds of kernels, with and without narrow products."""
    seed = Random().getrandbits(32)
    machine = machines.machine(cpu, aarch64.TRIPLE)
    seeds = [f"{seed} {k}" for k in range(DRAWN)]
    made = foreign.drafts(cpu, aarch64.TRIPLE, seeds)
    for k, draft in enumerate(made):
        if draft is not None:
            run_elsewhere(draft, machine, tmp_path, k, slack_of(draft.operation.kind))
    assert sum(draft is not None for draft in made) > DRAWN // 2
