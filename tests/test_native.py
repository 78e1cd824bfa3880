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

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout.dtypes import DTYPES
from relayout.reorder.attributes import Attributes
from relayout.reorder.engine import reorder_numpy
from relayout.reorder.problem import PASSES, BitLoop, nests
from relayout.reorder.reference import reorder_by_definition
from strategies import examples
from test_reorder import pairs, random_bytes

native = importlib.import_module("relayout.reorder.native")
compile_ = pytest.importorskip("relayout.codegen.compile")
machine = importlib.import_module("relayout.codegen.machine")
NAMES = [str(dtype) for dtype in DTYPES]
choice = importlib.import_module("relayout.reorder.kernels.choice")
kernels = importlib.import_module("relayout.reorder.kernels.module")
cache = importlib.import_module("relayout.codegen.cache")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


@pytest.fixture(autouse=True)
def _no_files(monkeypatch):
    """Tests don't fill anybody's cache; those of the cache name a folder of their own."""
    monkeypatch.setenv("RELAYOUT_CACHE", "off")


def lowered(src, dst, shape=()):
    """The kernels of a problem, or None where NumPy does it."""
    found = nests(src, dst, shape)
    plans = native.lowered(found) if found is not None else ()
    return plans if found is not None and all(choice.feasible(made.nest) for made in plans) else None


def compare(src, dst, *, by=reorder_numpy, at=0, parts=1, source=None, given=None, **how):
    """Kernels write the bytes that the slower engine writes, and no others; the source stays as it is."""
    attributes = Attributes.make(src.dims, **(given or {})).taking_part(src.dtype, dst.dtype)
    made = native.Native(src, dst, nests(src, dst, attributes.shape), **how)
    source = random_bytes(src.required_bytes, 1) if source is None else source
    padded = np.concatenate([random_bytes(64, 3), source, random_bytes(128, 4)])
    kept = padded.copy()
    canary = random_bytes(dst.required_bytes + 256, 2)
    shift = -canary.ctypes.data % 64 + at
    expected, got = canary.copy(), canary
    by(
        src,
        padded[64 : 64 + src.required_bytes],
        dst,
        expected[shift : shift + dst.required_bytes],
        attributes,
    )
    operands = made.operands(attributes)
    for part in reversed(range(parts)):
        address = 0 if operands is None else operands.ctypes.data
        made._kernel(padded.ctypes.data + 64, got.ctypes.data + shift, address, part, parts)
    if attributes.reads_destination and dst.dtype.is_float:
        one, two = (
            data[shift : shift + dst.required_bytes].view(dst.dtype.numpy) for data in (expected, got)
        )
        both = np.isnan(one) & np.isnan(two)
        one[both] = two[both] = 0  # which NaN comes of adding two is left open
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(padded, kept)
    return made


@given(pair=pairs(), dtype=st.sampled_from(("f64", "f32", "f16", "u8", "s4")), at=st.sampled_from((0, 0, 8)))
@examples(120)
def test_moves_between_any_pair_of_layouts(pair, dtype, at):
    src, dst = pair
    assume(0 not in src.dims)
    src, dst = rl.MemoryDesc(src.dims, dtype, src), rl.MemoryDesc(dst.dims, dtype, dst)
    assume(lowered(src, dst) is not None)
    compare(src, dst, by=reorder_by_definition, at=at)


@given(
    pair=pairs(),
    types=st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)),
    data=st.data(),
)
@examples(150)
def test_conversions_between_any_pair_of_layouts(pair, types, data):
    src, dst = pair
    assume(0 not in src.dims)
    src, dst = rl.MemoryDesc(src.dims, types[0], src), rl.MemoryDesc(dst.dims, types[1], dst)
    attributes = data.draw(given_attributes(src.dims))
    shape = Attributes.make(src.dims, **attributes).taking_part(src.dtype, dst.dtype).shape
    assume(lowered(src, dst, shape) is not None)
    compare(src, dst, given=attributes, parts=data.draw(st.sampled_from((1, 3))))


@st.composite
def given_attributes(draw, dims):
    """Some attributes, each for the tensor or along an axis."""
    out = {}
    for name in ("src_scale", "dst_scale", "src_zero_point", "dst_zero_point"):
        if not draw(st.booleans()):
            continue
        numbers = st.floats(0.125, 8, width=32) if "scale" in name else st.integers(-9, 9)
        axis = draw(st.sampled_from((None, *range(len(dims)))))
        if axis is None:
            out[name] = draw(numbers)
        else:
            out[name] = (np.array([draw(numbers) for _ in range(min(dims[axis], 3))]), axis)
            out[name] = (np.resize(out[name][0], dims[axis]), axis)
    if draw(st.integers(0, 3)) == 0:
        out["beta"] = draw(st.sampled_from((1.0, -0.5)))
    return out


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
    ("oihw", "OIhw8i8o", (32, 64, 3, 3)),
    ("oihw", "OIhw16i16o", (32, 64, 3, 3)),
    ("hwio", "oihw", (32, 64, 3, 3)),
    ("nchw", "nhwc", (2, 20, 64, 4)),
    ("nhwc", "nChw16c", (2, 64, 12, 12)),
]


@pytest.mark.parametrize(("one", "two", "dims"), SHAPES)
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "s8"])
def test_shapes_of_networks(one, two, dims, dtype):
    src, dst = rl.MemoryDesc(dims, dtype, one), rl.MemoryDesc(dims, dtype, two)
    for how in ({}, {"streaming": True}, {"streaming": True, "at": 4}, {"parts": 3}):
        compare(src, dst, **how)


PER_CHANNEL = {"src_scale": (np.arange(1, 4) / 4, 1), "src_zero_point": (np.array([1, 2, 3]), 1)}
PICTURES = [("nhwc", "nchw"), ("nhwc", "nChw16c"), ("nhwc", "nhwc"), ("nchw", "nhwc"), ("nchw", "nChw8c")]


@pytest.mark.parametrize(("one", "two"), PICTURES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_pictures(one, two, dtype):
    """Bytes to normalised floats, a scale and a shift for each channel."""
    dims = (2, 3, 21, 50)
    src, dst = rl.MemoryDesc(dims, "u8", one), rl.MemoryDesc(dims, dtype, two)
    for how in ({}, {"streaming": True}, {"parts": 2}):
        compare(src, dst, given=PER_CHANNEL, **how)


PAIRS = [
    ("f32", "s8"),
    ("s8", "f32"),
    ("f32", "bf16"),
    ("f16", "f32"),
    ("s4", "f32"),
    ("f32", "u4"),
    ("s4", "s4"),
]


def even(dims, types):
    """Rows of 4-bit elements have whole bytes."""
    return tuple(n + n % 2 for n in dims) if {"s4", "u4"} & {*types} else dims


@pytest.mark.parametrize(("one", "two", "dims"), SHAPES[::2])
@pytest.mark.parametrize("types", PAIRS)
def test_conversions_in_shapes_of_networks(one, two, dims, types):
    dims = even(dims, types)
    src, dst = rl.MemoryDesc(dims, types[0], one), rl.MemoryDesc(dims, types[1], two)
    scale = {"dst_scale": (np.linspace(0.5, 9, dims[1], dtype=np.float32), 1), "dst_zero_point": 3}
    for how in ({}, {"streaming": True}, {"given": scale}, {"given": {"beta": 1.0, "src_scale": 0.5}}):
        attributes = Attributes.make(dims, **how.get("given", {})).taking_part(src.dtype, dst.dtype)
        if lowered(src, dst, attributes.shape) is not None:
            compare(src, dst, **how)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("one", "two", "dims"), SHAPES)
def test_other_processors(cpu, one, two, dims):
    """Code for smaller vectors runs here too; for larger ones it is at least assembled."""
    other = machine.machine(cpu)
    for types in (("f32", "f32"), ("s8", "s8"), ("u8", "f32"), ("f32", "s8")):
        src, dst = rl.MemoryDesc(dims, types[0], one), rl.MemoryDesc(dims, types[1], two)
        if other.vector <= machine.host().vector:
            compare(src, dst, machine=other, streaming=True)
        else:
            assert compile_.assemble(kernels.module(lowered(src, dst), other, True)[0], other)


def test_arm_is_assembled():
    other = machine.machine("neoverse-n1", "aarch64-unknown-linux-gnu")
    for types in (("f32", "f32"), ("u8", "f32"), ("f32", "s8")):
        src, dst = (
            rl.MemoryDesc((2, 48, 20, 9), dtype, f) for dtype, f in zip(types, ("nchw", "nhwc"), strict=True)
        )
        text, _ = kernels.module(lowered(src, dst), other, True)
        assert compile_.assemble(text, other)[:4] == b"\x7fELF"


def test_every_kind_of_kernel_is_tested():
    kinds = set()
    for one, two, dims in SHAPES:
        for dtype in ("f64", "f32", "bf16", "s8"):
            plans = lowered(rl.MemoryDesc(dims, dtype, one), rl.MemoryDesc(dims, dtype, two))
            kinds |= {made.kind for made in plans}
    assert kinds == set(kernels.KINDS)


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
        bits = BitLoop(nest.write, 0 if nest.zero else 1, 1)
        for extent, s, d, _ in (*nest.loops, bits):
            steps = np.arange(extent)
            source = (source[:, None] + steps * s).ravel()
            target = (target[:, None] + steps * d).ravel()
        return nest.zero, sorted(zip(target.tolist(), source.tolist(), strict=True)), nest.fill * nest.write

    for nest in found:
        before = moved(nest)
        for step in PASSES:
            nest = step(nest)
            after = moved(nest)
            assert (after[0], after[2]) == (before[0], before[2])
            assert after[1] == before[1] or (
                nest.zero and {t for t, _ in after[1]} == {t for t, _ in before[1]}
            )


GUARDED = [("f32", "f32"), ("s8", "s8"), ("u8", "f32"), ("f32", "s8"), ("s4", "s4"), ("s4", "f32")]


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
        from test_native import GUARDED, SHAPES, even

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
            for types in GUARDED:
                sizes = even(dims, types)
                src, dst = rl.MemoryDesc(sizes, types[0], one), rl.MemoryDesc(sizes, types[1], two)
                shapes = [()] if types[0] == types[1] else [(), (("src_scale", 1), ("dst_zero_point", None))]
                for shape in shapes:
                    kernels = native(src, dst, shape)
                    if kernels is None:
                        continue
                    size = kernels.tables[-1].end if kernels.tables else 64
                    for at_end in (False, True):
                        a, b = guarded(src.required_bytes, at_end), guarded(dst.required_bytes, at_end)
                        operands = guarded(size, at_end)
                        kernels(a.ctypes.data, b.ctypes.data, operands.ctypes.data, 1)
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
        odd = [rl.MemoryDesc((4, 5), "s4", rl.Layout((4, 5), name)) for name in ("ab", "ba")]  # half bytes
        many = rl.MemoryDesc((7, 7, 7), "f32", "ABC2a2b2c"), rl.MemoryDesc((7, 7, 7), "f32", "ABC3a3b3c")
        for src, dst in (odd, many):
            assert native.native(src, dst) is None
            array = np.arange(np.prod(src.dims)).reshape(src.dims) % 8
            np.testing.assert_array_equal(rl.tensor(array).reorder(src).reorder(dst).numpy(), array)
        desc = rl.MemoryDesc((4, 6), "f32", "ab")
        assert rl.Reorder(desc, desc, src_scale=2)._kernels is not None

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


class TestCache:
    IR = "define void @k(ptr %s, ptr %d, ptr %o, i64 %a, i64 %b) {\n  store i64 %b, ptr %d\n  ret void\n}\n"

    def run(self, ir):
        out = np.zeros(1, np.int64)
        compile_._engines.clear()
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
