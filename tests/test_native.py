"""The native engine: when it is used, from many threads, after a fork, beside others; and its cache."""

from __future__ import annotations

import importlib
import mmap
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import relayout as rl

native = importlib.import_module("relayout.reorder.native")
compile_ = pytest.importorskip("relayout.jit.compile")
cache = importlib.import_module("relayout.jit.cache")
engines = importlib.import_module("relayout.jit.engines")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


@pytest.fixture(autouse=True)
def _no_files(monkeypatch):
    """Tests don't fill anybody's cache; those of the cache name a folder of their own."""
    monkeypatch.setenv("RELAYOUT_CACHE", "off")


class TestWhenItIsUsed:
    def test_large_moves_at_once_small_ones_when_they_come_again(self, monkeypatch):
        monkeypatch.setattr(native, "_seen", {})
        small = rl.MemoryDesc((2, 3), "f32", "ab"), rl.MemoryDesc((2, 3), "f32", "ba")
        assert [native.worth_compiling(*small) for _ in range(3)] == [False, False, True]
        large = rl.MemoryDesc((512, 512), "f32", "ab")
        assert native.worth_compiling(large, rl.MemoryDesc((512, 512), "f32", "ba"))

    def test_what_it_leaves_to_numpy(self):
        odd = [rl.MemoryDesc((4, 5), "s4", rl.Layout((4, 5), name)) for name in ("ab", "ba")]  # half bytes
        many = rl.MemoryDesc((7, 7, 7), "f32", "ABC2a2b2c"), rl.MemoryDesc((7, 7, 7), "f32", "ABC3a3b3c")
        for src, dst in (odd, many):
            assert native.native(src, dst) is None
            array = np.arange(np.prod(src.dims)).reshape(src.dims) % 8
            np.testing.assert_array_equal(rl.tensor(array).reorder(src).reorder(dst).numpy(), array)
        desc = rl.MemoryDesc((4, 6), "f32", "ab")
        assert rl.Reorder(desc, desc, src_scale=2).plan.kernels is not None

    def test_through_the_front_door(self):
        array = np.arange(3 * 70 * 40 * 41, dtype=np.float32).reshape(3, 70, 40, 41)
        made = rl.tensor(array, "nChw16c")
        np.testing.assert_array_equal(made.numpy(), array)
        back = rl.reorder(made, "nhwc", threads=2)
        np.testing.assert_array_equal(back.numpy(), array)
        view = made[:, 16:48, ::2]
        np.testing.assert_array_equal(rl.reorder(view, "nchw").numpy(), array[:, 16:48, ::2])


class TestManyCallers:
    """Small and large problems, moves and conversions, planned here or in the call; see :func:`calls`."""

    def test_threads(self):
        assert storm(1000) == []

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_a_child_that_is_forked_meanwhile(self):
        """All threads of the parent are somewhere in a call, or compiling; the child has none of them."""
        script = textwrap.dedent(
            """
            import os, signal, sys, threading, time
            sys.path.insert(0, {tests!r})
            from test_native import storm

            storm(50)
            wrong = []
            worker = threading.Thread(target=lambda: wrong.extend(storm(500)))
            worker.start()
            codes = []
            for _ in range(3):
                time.sleep(0.02)
                pid = os.fork()
                if pid == 0:
                    signal.alarm(30)  # rather killed than waiting for ever
                    os._exit(len(storm(100)))
                codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            worker.join()
            print(wrong, codes)
            """
        ).format(tests=str(Path(__file__).parent))
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.stdout.strip() == "[] [0, 0, 0]", (ran.stdout, ran.stderr[-2000:])


def calls():
    """Calls, each of which says whether the right bytes came."""
    made = []
    rng = np.random.default_rng(5)
    sizes = [(2, 3, 4, 5), (4, 64, 25, 25), (1, 17, 9, 30), (3, 32, 48, 50)]
    for number, dims in enumerate(sizes):
        array = rng.integers(0, 200, dims).astype(np.uint8)
        scale = np.linspace(1, 2, dims[1]).astype(np.float32)
        shaped = scale.reshape(1, -1, 1, 1)
        src = rl.tensor(array, "nhwc")
        for format in ("nchw", "nChw8c"):
            plan = rl.Reorder(src.desc, rl.MemoryDesc(dims, "f32", format), threads=2, src_scale=(scale, 1))

            def shared(plan=plan, src=src, expected=array * shaped):
                out = rl.from_buffer(bytearray(plan.dst.required_bytes), plan.dst)
                plan(src, out)
                return np.array_equal(out.numpy(), expected)

            def one_off(src=src, format=format, scale=scale, expected=array * shaped):
                return np.array_equal(
                    rl.reorder(src, format, dtype="f32", src_scale=(scale, 1)).numpy(), expected
                )

            def moved(array=array, format=format, threads=1 + number % 3):
                return np.array_equal(rl.reorder(array, format, threads=threads).numpy(), array)

            def added(array=array, format=format, number=number):
                out = rl.tensor(np.full(array.shape, 3, np.float32), format)
                rl.reorder(array, out=out, beta=1 + number, src_zero_point=1)
                return np.array_equal(out.numpy(), array - np.float32(1) + 3 * (1 + number))

            made += [shared, one_off, moved, added]
    return made


def storm(count):
    """So many calls from 8 threads, while one more compiles problems that are new; what went wrong."""
    todo = calls()
    wrong, left = [], list(range(count))
    ended = threading.Event()

    def work():
        while left:
            try:
                number = left.pop()
            except IndexError:
                return
            try:
                if not todo[number % len(todo)]():
                    wrong.append(number)
            except BaseException as error:
                wrong.append(repr(error))

    def compile_more():
        size = 3
        while not ended.is_set():
            size += 1
            array = np.arange(size * 12, dtype=np.float32).reshape(3, size, 4)
            plan = rl.Reorder(
                rl.MemoryDesc(array.shape, "f32", "abc"), rl.MemoryDesc(array.shape, "f32", "cab")
            )
            out = np.empty(array.size, np.float32)
            plan(array, out)
            if not np.array_equal(out, array.transpose(2, 0, 1).ravel()):
                wrong.append(f"size {size}")

    workers = [threading.Thread(target=work) for _ in range(8)]
    compiler = threading.Thread(target=compile_more)
    for worker in (compiler, *workers):
        worker.start()
    for worker in workers:
        worker.join()
    ended.set()
    compiler.join()
    return wrong


def free_bytes():
    """Memory that may be taken; 0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), 0)


@pytest.mark.slow
@pytest.mark.skipif(free_bytes() < 4 << 30, reason="needs 4 GiB of free memory")
def test_more_elements_than_32_bits_count():
    """4-bit elements, 1.1 GB on either side: zeros but for some blocks of pixels."""
    channels, pixels, size = 64, 33_600_004, 4096
    dims = (1, channels, 2, pixels // 2)
    assert channels * pixels > 1 << 31
    src, dst = rl.MemoryDesc(dims, "s4", "nchw"), rl.MemoryDesc(dims, "s4", "nhwc")
    source, target = np.zeros(src.nbytes, np.uint8), np.empty(dst.nbytes, np.uint8)
    planes, lines = source.reshape(channels, pixels // 2), target.reshape(pixels, channels // 2)
    starts = [*range(0, pixels - size, pixels // 13 // 2 * 2), pixels - size]
    blocks = np.random.default_rng(0).integers(0, 256, (len(starts), channels, size // 2), dtype=np.uint8)
    for start, block in zip(starts, blocks, strict=True):
        planes[:, start // 2 : start // 2 + size // 2] = block
    rl.Reorder(src, dst)(source, target)

    def elements(data):
        return np.stack((data & 15, data >> 4), -1).reshape(len(data), -1)

    for start, block in zip(starts, blocks, strict=True):
        found = lines[start : start + size]
        np.testing.assert_array_equal(elements(found), elements(block).T)
        found[:] = 0
    assert not target.any()


@pytest.mark.skipif(free_bytes() < 4 << 30, reason="needs memory that is promised, though hardly touched")
@pytest.mark.parametrize("types", [("u8", "u8"), ("s8", "f32"), ("f32", "u8")])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("inner", [(1, 40), (40, 1), (80, 2)])
def test_strides_that_32_bits_do_not_hold(types, axis, inner):
    """Rows, each in memory of its own, 2.6 GB from the first to the last, on both sides."""
    dims = (40, 40, 2)
    descs, buffers, views = [], [], []
    for dtype, places in zip(types, ((0, 1), (axis, 1 - axis)), strict=True):
        item = rl.dtype(dtype).bits // 8
        far = 2_600_000_000 // (39 * item)
        strides = dict(zip((*places, 2), (far, *inner), strict=True))
        steps = [strides[axis] for axis in range(3)]
        descs.append(rl.MemoryDesc(dims, dtype, rl.Layout(dims, strides=steps)))
        memory = mmap.mmap(-1, descs[-1].required_bytes)  # zeros that take no memory yet
        buffers.append(np.frombuffer(memory, descs[-1].dtype.numpy))
        views.append(np.lib.stride_tricks.as_strided(buffers[-1], dims, [n * item for n in steps]))
    values = np.random.default_rng(0).integers(0, 100, dims)
    views[0][:] = values
    rl.Reorder(*descs)(*buffers)
    np.testing.assert_array_equal(views[1], values)


class TestBesideTorch:
    def test_threads_of_both(self):
        """Their threads and ours, on the same processors; memory of the one, written by the other."""
        torch = pytest.importorskip("torch")
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            self.mixed(torch)
        finally:
            torch.set_num_threads(before)

    def mixed(self, torch):
        x = torch.arange(4 * 32 * 40 * 41, dtype=torch.float32).reshape(4, 32, 40, 41) % 1000
        weights = torch.ones(8, 32, 1, 1)
        nhwc = x.permute(0, 2, 3, 1).contiguous()
        expected = x.sum(1)
        plan = rl.Reorder(
            rl.MemoryDesc(tuple(x.shape), "f32", "nchw"),
            rl.MemoryDesc(tuple(x.shape), "f32", "nhwc"),
            threads=2,
        )
        wrong = []

        def work():
            out = np.zeros(x.numel(), np.float32)
            shared = torch.from_numpy(out).reshape(nhwc.shape)
            for _ in range(25):
                shared.zero_()
                plan(x.numpy(), shared.numpy())
                if not torch.equal(shared, nhwc):
                    wrong.append("reorder")
                made = torch.nn.functional.conv2d(shared.permute(0, 3, 1, 2), weights)
                if not torch.allclose(made[:, 3], expected):
                    wrong.append("convolution")
                back = rl.reorder(shared.permute(0, 3, 1, 2), "nchw", threads=2)  # a tensor's own strides
                if not torch.equal(torch.from_numpy(back.numpy()), x):
                    wrong.append("back")

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong


class TestCache:
    IR = "define void @k(ptr %s, ptr %d, ptr %o, i64 %a, i64 %b) {\n  store i64 %b, ptr %d\n  ret void\n}\n"

    def run(self, ir):
        out = np.zeros(1, np.int64)
        engines.KNOWN.clear()
        compile_.compiled(ir, ["k"])["k"](0, out.ctypes.data, 0, 0, 7)
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_children_that_are_forked_during_the_first_reorder():
    """Planning imports a good part of the package; a child must not find that half done."""
    script = textwrap.dedent(
        """
        import os, signal, threading
        import numpy as np
        import relayout as rl
        array = np.random.default_rng(0).random((600, 900), np.float32)
        def move():
            return np.array_equal(rl.reorder(array, "ba").numpy(), array)
        workers = [threading.Thread(target=move) for _ in range(6)]
        for worker in workers:
            worker.start()
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                os._exit(0 if move() else 1)
            children.append(child)
        print(move(), [os.waitpid(child, 0)[1] for child in children])
        """
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.strip() == "True [0, 0, 0, 0]", (ran.stdout, ran.stderr)
