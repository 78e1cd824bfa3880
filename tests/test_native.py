"""The native engine.

Kernels against the NumPy engine and the definition, inside their buffers, on every kind of processor.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout.reorder.attributes import Attributes
from relayout.reorder.engine import reorder_numpy
from relayout.reorder.problem import PASSES, nests, simplified
from relayout.reorder.reference import reorder_by_definition
from strategies import examples
from test_reorder import pairs, random_bytes

native = importlib.import_module("relayout.reorder.native")
compile_ = pytest.importorskip("relayout.codegen.compile")
machine = importlib.import_module("relayout.codegen.machine")
moves = importlib.import_module("relayout.reorder.moves")
cache = importlib.import_module("relayout.codegen.cache")
threads = importlib.import_module("relayout.codegen.threads")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


@pytest.fixture(autouse=True)
def _no_files(monkeypatch):
    """Tests don't fill anybody's cache; those of the cache name a folder of their own."""
    monkeypatch.setenv("RELAYOUT_CACHE", "off")


def compare(src, dst, *, by=reorder_numpy, at=0, count=1, **how):
    """Kernels write the bytes that the slower engine writes, and no others; the source stays as it is."""
    found = nests(src, dst)
    assert found is not None
    kernels = native.Native(src, dst, found, **how)
    source = random_bytes(src.required_bytes + 192, 1)
    kept = source.copy()
    canary = random_bytes(dst.required_bytes + 256, 2)
    shift = -canary.ctypes.data % 64 + at
    expected, got = canary.copy(), canary
    by(src, source[64:], dst, expected[shift:], Attributes())
    kernels(source.ctypes.data + 64, got.ctypes.data + shift, count)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(source, kept)
    return kernels


@given(pair=pairs(), dtype=st.sampled_from(("f64", "f32", "f16", "u8")), at=st.sampled_from((0, 0, 8)))
@examples(120)
def test_any_pair_of_layouts(pair, dtype, at):
    src, dst = pair
    assume(0 not in src.dims)
    src, dst = rl.MemoryDesc(src.dims, dtype, src), rl.MemoryDesc(dst.dims, dtype, dst)
    assume(nests(src, dst) is not None)
    compare(src, dst, by=reorder_by_definition, at=at)


SHAPES = [
    ("nchw", "nhwc", (2, 48, 20, 9)),
    ("nhwc", "nchw", (2, 48, 20, 9)),
    ("nhwc", "nchw", (2, 3, 20, 33)),
    ("nchw", "nhwc", (2, 3, 20, 33)),
    ("nhwc", "nchw", (1, 5, 16, 16)),
    ("nchw", "nhwc", (1, 7, 16, 16)),
    ("nchw", "nChw16c", (2, 3, 10, 20)),
    ("nchw", "nChw16c", (2, 50, 10, 20)),
    ("nchw", "nChw8c", (2, 17, 10, 20)),
    ("nChw16c", "nchw", (2, 50, 10, 20)),
    ("nChw8c", "nChw16c", (2, 50, 10, 20)),
    ("nhwc", "nChw16c", (2, 50, 10, 20)),
    ("nCw48c", "nCw32c", (2, 200, 30)),
    ("ab", "ba", (70, 4096)),
    ("ab", "ba", (4096, 70)),
    ("ab", "ba", (33, 2048)),
    ("ab", "ba", (1000, 130)),
    ("ab", "BA16a64b4a", (100, 130)),
    ("oihw", "OIhw4i16o4i", (40, 20, 3, 3)),
    ("oihw", "hwio", (40, 24, 3, 3)),
    ("goihw", "Goihw16g", (33, 1, 1, 3, 3)),
    ("abc", "abc", (7, 40, 100)),
    ("nhwc", "nChw8c", (2, 64, 9, 9)),
    ("nChw16c", "nChw8c", (2, 64, 9, 9)),
    ("ab", "AB16b64a4b", (100, 130)),
    ("oihw", "hwio", (150, 40, 3, 3)),
]


@pytest.mark.parametrize(("one", "two", "dims"), SHAPES)
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "s8"])
def test_shapes_of_networks(one, two, dims, dtype):
    src, dst = rl.MemoryDesc(dims, dtype, one), rl.MemoryDesc(dims, dtype, two)
    for how in ({}, {"streaming": True}, {"streaming": True, "at": 4}, {"count": 2}):
        compare(src, dst, **how)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("one", "two", "dims"), SHAPES)
def test_other_processors(cpu, one, two, dims):
    """Code for smaller vectors runs here too; for larger ones it is at least assembled."""
    other = machine.machine(cpu)
    for dtype in ("f32", "s8"):
        src, dst = rl.MemoryDesc(dims, dtype, one), rl.MemoryDesc(dims, dtype, two)
        if other.vector <= machine.host().vector:
            compare(src, dst, machine=other, streaming=True)
        else:
            plans = {f"k{k}": (moves.plan(simplified(n)), False) for k, n in enumerate(nests(src, dst))}
            assert compile_.assemble(moves.module(plans, other), other)


def test_arm_is_assembled():
    other = machine.machine("neoverse-n1", "aarch64-unknown-linux-gnu")
    src, dst = rl.MemoryDesc((2, 48, 20, 9), "f32", "nchw"), rl.MemoryDesc((2, 48, 20, 9), "f32", "nhwc")
    plans = {"k": (moves.plan(simplified(nests(src, dst)[0])), False)}
    assert compile_.assemble(moves.module(plans, other), other)[:4] == b"\x7fELF"


def test_every_kind_of_kernel_is_tested():
    kinds = set()
    for one, two, dims in SHAPES:
        for dtype in ("f64", "f32", "bf16", "s8"):
            found = nests(rl.MemoryDesc(dims, dtype, one), rl.MemoryDesc(dims, dtype, two))
            kinds |= {moves.plan(simplified(nest)).kind for nest in found}
    assert kinds == {"rows", "lines", "transpose", "staged", "interleave", "deinterleave", "elements"}


@given(pair=pairs())
@examples(150)
def test_passes_keep_the_set_of_moves(pair):
    """What is moved where, byte by byte, is the same before and after every pass."""
    src, dst = pair
    assume(0 not in src.dims)
    found = nests(rl.MemoryDesc(src.dims, "f16", src), rl.MemoryDesc(dst.dims, "f16", dst))
    assume(found is not None)

    def moved(nest):
        source, target = np.array([nest.src]), np.array([nest.dst])
        for extent, s, d in (*nest.loops, (nest.width, 0 if nest.zero else 1, 1)):
            steps = np.arange(extent)
            source = (source[:, None] + steps * s).ravel()
            target = (target[:, None] + steps * d).ravel()
        return nest.zero, sorted(zip(target.tolist(), source.tolist(), strict=True)), nest.fill * nest.width

    for nest in found:
        before = moved(nest)
        for step in PASSES:
            nest = step(nest)
            after = moved(nest)
            assert (after[0], after[2]) == (before[0], before[2])
            assert after[1] == before[1] or (
                nest.zero and {t for t, _ in after[1]} == {t for t, _ in before[1]}
            )


def test_nothing_outside_of_the_buffers_is_touched():
    """Both buffers end at, then begin behind, a page that can't be touched.

    A stray access ends the process.
    """
    script = textwrap.dedent(
        """
        import ctypes, mmap, random, sys
        import numpy as np
        import relayout as rl
        from relayout.reorder.native import native
        sys.path.insert(0, {tests!r})
        from test_native import SHAPES

        libc = ctypes.CDLL(None, use_errno=True)
        PAGE = mmap.PAGESIZE

        def guarded(size, at_end):
            room = -(-size // PAGE) * PAGE
            memory = mmap.mmap(-1, room + 2 * PAGE)
            whole = np.frombuffer(memory, np.uint8)
            base = whole.ctypes.data
            for page in (base, base + PAGE + room):
                assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0
            start = PAGE + (room - size if at_end else 0)
            return whole[start : start + size]

        for one, two, dims in SHAPES:
            for dtype in ("f32", "s8"):
                src, dst = rl.MemoryDesc(dims, dtype, one), rl.MemoryDesc(dims, dtype, two)
                kernels = native(src, dst)
                for at_end in (False, True):
                    a, b = guarded(src.required_bytes, at_end), guarded(dst.required_bytes, at_end)
                    kernels(a.ctypes.data, b.ctypes.data, 1)
        print("done")
        """
    ).format(tests=os.path.dirname(__file__))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "done", (ran.returncode, ran.stderr)


class TestWhenItIsUsed:
    def test_large_moves_at_once_small_ones_when_they_come_again(self, monkeypatch):
        monkeypatch.setattr(native, "_seen", {})
        small = rl.MemoryDesc((2, 3), "f32", "ab"), rl.MemoryDesc((2, 3), "f32", "ba")
        assert [native.worth_compiling(*small) for _ in range(3)] == [False, False, True]
        large = rl.MemoryDesc((512, 512), "f32", "ab")
        assert native.worth_compiling(large, rl.MemoryDesc((512, 512), "f32", "ba"))

    def test_what_it_leaves_to_numpy(self):
        dims = (4, 6)
        for src, dst in (("s4", "s4"), ("f32", "s8")):
            assert native.native(rl.MemoryDesc(dims, src, "ab"), rl.MemoryDesc(dims, dst, "ab")) is None
        desc = rl.MemoryDesc(dims, "f32", "ab")
        assert rl.Reorder(desc, desc, src_scale=2)._kernels is None
        assert rl.Reorder(desc, desc)._kernels is not None

    def test_through_the_front_door(self):
        array = np.arange(3 * 70 * 40 * 41, dtype=np.float32).reshape(3, 70, 40, 41)
        made = rl.tensor(array, "nChw16c")
        np.testing.assert_array_equal(made.numpy(), array)
        back = rl.reorder(made, "nhwc", threads=2)
        np.testing.assert_array_equal(back.numpy(), array)
        view = made[:, 16:48, ::2]
        np.testing.assert_array_equal(rl.reorder(view, "nchw").numpy(), array[:, 16:48, ::2])

    def test_many_threads_at_once(self):
        array = np.arange(4 * 64 * 50 * 50, dtype=np.float32).reshape(4, 64, 50, 50)
        expected = rl.tensor(array, "nhwc").buffer.tobytes()
        wrong = []

        def work():
            wrong.extend(1 for _ in range(25) if rl.reorder(array, "nhwc").buffer.tobytes() != expected)

        workers = [threading.Thread(target=work) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_after_fork(self):
        script = (
            "import os, numpy as np, relayout as rl\n"
            "a = np.arange(4 * 64 * 64 * 64, dtype=np.float32).reshape(4, 64, 64, 64)\n"
            "want = rl.reorder(a, 'nhwc', threads=2).buffer.tobytes()\n"
            "pid = os.fork()\n"
            "same = rl.reorder(a, 'nhwc', threads=2).buffer.tobytes() == want\n"
            "if pid == 0:\n    os._exit(0 if same else 1)\n"
            "print(same, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.stdout.split() == ["True", "0"], ran.stderr

    def test_threads_cover_everything_once(self):
        for extent in (1, 2, 7, 64, 100):
            for count in (1, 2, 3, 8):
                for unit in (1, 16):
                    seen = []
                    threads.share(lambda a, b, seen=seen: seen.append((a, b)), extent, count, unit)
                    seen.sort()
                    assert seen[0][0] == 0
                    assert seen[-1][1] == extent
                    assert all(a[1] == b[0] and a[1] % unit == 0 for a, b in pairwise(seen))


class TestCache:
    IR = "define void @k(ptr %s, ptr %d, i64 %a, i64 %b) {\nentry:\n  store i64 %b, ptr %d\n  ret void\n}\n"

    def run(self, ir):
        out = np.zeros(1, np.int64)
        compile_._engines.clear()
        compile_.compiled(ir, ["k"])["k"](0, out.ctypes.data, 0, 7)
        return out[0]

    def test_entries_are_made_used_and_rebuilt(self, tmp_path, monkeypatch):
        folder = tmp_path / "kernels"
        monkeypatch.setenv("RELAYOUT_CACHE", str(folder))
        assert self.run(self.IR) == 7
        (entry,) = folder.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        whole = entry.read_bytes()
        monkeypatch.setattr(compile_, "assemble", lambda *args: pytest.fail("the entry was not used"))
        assert self.run(self.IR) == 7
        monkeypatch.undo()
        monkeypatch.setenv("RELAYOUT_CACHE", str(folder))
        for damaged in (whole[:-1], b"", whole[:40], whole[:-1] + bytes([whole[-1] ^ 1])):
            entry.write_bytes(damaged)
            assert self.run(self.IR) == 7
            assert entry.read_bytes() == whole

    def test_off(self, tmp_path, monkeypatch):
        monkeypatch.setenv("RELAYOUT_CACHE", "off")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert self.run(self.IR) == 7
        assert not list(tmp_path.iterdir())

    @pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
    def test_a_folder_that_others_can_write_to_is_not_trusted(self, tmp_path, monkeypatch):
        folder = tmp_path / "open"
        folder.mkdir()
        folder.chmod(0o777)
        monkeypatch.setenv("RELAYOUT_CACHE", str(folder))
        assert cache.folder() is None
        assert self.run(self.IR) == 7
        assert not list(folder.iterdir())
        target = tmp_path / "private"
        target.mkdir(mode=0o700)
        link = tmp_path / "link"
        link.symlink_to(target)
        monkeypatch.setenv("RELAYOUT_CACHE", str(link))
        assert cache.folder() is None
