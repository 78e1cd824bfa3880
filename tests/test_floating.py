"""Threads that round upwards, or flush subnormal numbers to zero: results are the same to the bit."""

from __future__ import annotations

import importlib

import pytest

from processes import is_done

compile_ = pytest.importorskip("relayout.jit.compile")
floating = importlib.import_module("relayout.jit.floating")
machine_ = importlib.import_module("relayout.targets.machine")

runs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")

# ``odd`` sets this thread to flush to zero, take subnormal numbers for zero and round upwards, and to
# interrupt at inexact results where ``traps``; ``state`` reads the control register.
REGISTER = """
import ctypes, platform, sys
import numpy as np
import relayout as rl
from relayout import primitives
from relayout.jit import compile as compile_

if platform.machine() in ("x86_64", "AMD64"):
    ODD = 0xDFC0
    engine = compile_.loaded('''
    declare void @llvm.x86.sse.stmxcsr(ptr)
    declare void @llvm.x86.sse.ldmxcsr(ptr)
    define void @set(i64 %new) {
      %place = alloca i32
      %word = trunc i64 %new to i32
      store i32 %word, ptr %place
      call void @llvm.x86.sse.ldmxcsr(ptr %place)
      ret void
    }
    define i64 @get() {
      %place = alloca i32
      call void @llvm.x86.sse.stmxcsr(ptr %place)
      %word = load i32, ptr %place
      %control = and i32 %word, 65472
      %wide = zext i32 %control to i64
      ret i64 %wide
    }''', level=0)
else:
    ODD = 0x1400000
    engine = compile_.loaded('''
    declare i64 @llvm.aarch64.get.fpcr()
    declare void @llvm.aarch64.set.fpcr(i64)
    define void @set(i64 %new) {
      call void @llvm.aarch64.set.fpcr(i64 %new)
      ret void
    }
    define i64 @get() {
      %word = call i64 @llvm.aarch64.get.fpcr()
      ret i64 %word
    }''', level=0)
put = ctypes.CFUNCTYPE(None, ctypes.c_int64)(compile_.address_of(engine, "set"))
get = ctypes.CFUNCTYPE(ctypes.c_int64)(compile_.address_of(engine, "get"))
USUAL = get()

def oddly(call):
    "What a call gives in an odd state, which it must leave behind as it was."
    put(ODD)
    try:
        result, after = call(), get()
    finally:
        put(USUAL)
    assert after == ODD, hex(after)
    return result

def same(call):
    usual = call()
    got = oddly(call)
    assert usual.tobytes() == got.tobytes(), (usual, got)

rng = np.random.default_rng(1)
bits = rng.integers(0, 2**32, 1 << 16, dtype=np.uint64).astype(np.uint32)
bits[::2] &= 0x807FFFFF  # subnormal
numbers = bits.view(np.float32)
tiny = numbers.view(np.float32).reshape(256, 256)
tiny[np.isnan(tiny)] = 1e-40
half = np.float32([1e-40, -1e-42, 2**24, 0.1])
assert oddly(lambda: np.float32(half * np.float32(0.7))).tobytes() != (half * np.float32(0.7)).tobytes()
"""


@runs_code
@pytest.mark.parametrize(
    "calls",
    [
        # planned: by Python, from the 64th call on by machine code, and shared among threads
        """
        src, dst = rl.MemoryDesc((256, 256), "f32", "ab"), rl.MemoryDesc((256, 256), "f32", "ba")
        out = np.zeros((256, 256), np.float32)
        for threads in (1, 3):
            plan = rl.Reorder(src, dst, src_scale=0.7, threads=threads)
            assert "machine code" in plan.explain()
            for _ in range(70):
                same(lambda: (plan(tiny, out), out.copy())[1])
        """,
        # a plan that is made, and its scales rounded, in an odd state
        """
        src = rl.MemoryDesc((256, 256), "f32", "ab")
        scales = (("bf16", {"src_scale": 0.1}), ("f16", {"dst_scale": 1e-40}), ("s8", {"dst_scale": 0.3}))
        for kind, given in scales:
            dst, out = rl.MemoryDesc((256, 256), kind, "ba"), np.zeros(1 << 18, np.uint8)
            same(lambda: (rl.Reorder(src, dst, **given)(tiny, out), out.copy())[1])
        """,
        # the NumPy engine
        """
        from relayout.reorder.conversion import Conversion
        for kind in ("f32", "f64", "bf16", "u8"):
            few = tiny[:3, :5].copy()
            assert Conversion.uncompiled(rl.tensor(few).desc, rl.tensor(few).desc).kernels is None
            usual = rl.reorder(few, dtype=kind, src_scale=0.7, beta=0).buffer
            got = oddly(lambda: rl.reorder(few, dtype=kind, src_scale=0.7).buffer)
            assert usual.tobytes() == got.tobytes(), kind
        """,
        # primitives: elementwise, reduced, and products; a thread is made in an odd state
        """
        x = rl.tensor(tiny.reshape(1, 16, 64, 64))
        for made in (
            primitives.Eltwise(x.desc, "linear", alpha=0.7),
            primitives.Binary("mul", x.desc, x.desc, scales=(0.7, 3)),
            primitives.Softmax(x.desc, axis=1),
        ):
            for threads in (1, 2):
                same(lambda: made(*[x] * len(made.inputs), threads=threads).numpy())
        a = rl.tensor(np.abs(tiny[:64, :64]).clip(0, 1e-20))
        made = primitives.Matmul(a.desc, a.desc)
        same(lambda: made(a, a).numpy())
        """,
    ],
    ids=["planned", "made", "numpy", "primitives"],
)
def test_results_do_not_depend_on_the_thread(tmp_path, calls):
    if not floating.HEADS.keys() & {machine_.host().triple.split("-")[0].replace("arm64", "aarch64")}:
        pytest.skip("this processor's control register is not known")
    import textwrap

    is_done(tmp_path, REGISTER + textwrap.dedent(calls) + "\nprint('done')\n")


def test_flushing_by_pytorch(tmp_path):
    pytest.importorskip("torch")
    is_done(
        tmp_path,
        """
        import numpy as np, torch
        import relayout as rl
        tiny = np.full((300, 300), 1e-40, np.float32)
        usual = rl.reorder(tiny, "ba", src_scale=0.5).numpy()
        assert usual.all()
        if torch.set_flush_denormal(True):
            assert not (torch.from_numpy(tiny) * 0.5).any()
            for size in (300, 3):
                assert rl.reorder(tiny[:size, :size], "ba", src_scale=0.5).numpy().tobytes() == usual[
                    :size, :size
                ].tobytes()
        print("done")
        """,
    )


@pytest.mark.parametrize(
    "triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin", "x86_64-unknown-linux-gnu"]
)
def test_guards_are_code(triple):
    """Also where it can't be run: it is assembled."""
    ir = "define void @k(ptr noalias %s, ptr %d, i64 %n) {\n  store i64 %n, ptr %d\n  ret void\n}\n"
    made = floating.guarded(ir, ["k"], triple)
    cpu = "x86-64-v3" if triple.startswith("x86") else "generic"
    assert compile_.assemble(made, machine_.machine(cpu, triple))
    assert made.count("define void @k(") == made.count("define internal void @k.body(") == 1


def test_a_guard_is_compiled_as_what_it_guards():
    ir = "define void @k(ptr %s, i64 %n) noinline optnone {\n  ret void\n}\n"
    made = floating.guarded(ir, ["k"], "x86_64-unknown-linux-gnu")
    assert made.count(") noinline optnone {\n") == 2
    assert compile_.assemble(made, machine_.machine("x86-64-v3", "x86_64-unknown-linux-gnu"))


ENTRY = "define void @k(ptr %s, i64 %n) noinline optnone {{\nentry:\n{}  ret void\n}}\n"
LINUX = "x86_64-unknown-linux-gnu"


def test_a_function_that_llvm_does_not_change_guards_itself():
    loop = """\
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
"""
    made = floating.guarded(ENTRY.format(loop), ["k"], LINUX)
    assert made.count("define ") == 1
    assert made.count("@llvm.x86.sse.ldmxcsr(ptr %usual)") == made.count("ldmxcsr(ptr %before)") == 1
    assert compile_.assemble(made, machine_.machine("x86-64-v3", LINUX))


@pytest.mark.parametrize(
    "lines", ["  %room = alloca [64 x i8]\n", "  br i1 true, label %a, label %b\na:\n  ret void\nb:\n"]
)
def test_rooms_and_several_ends_are_guarded_from_outside(lines):
    """What is allocated behind the first block would be allocated again in each turn."""
    made = floating.guarded(ENTRY.format(lines), ["k"], LINUX)
    assert made.count("define internal void @k.body(") == 1
    assert compile_.assemble(made, machine_.machine("x86-64-v3", LINUX))


def test_what_is_not_known_stays_as_it_is():
    assert floating.guarded("anything", ["k"], "riscv64-unknown-linux-gnu") == "anything"
    with pytest.raises(ValueError, match="no function k"):
        floating.guarded("anything", ["k"], "x86_64-unknown-linux-gnu")
