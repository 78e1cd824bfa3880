"""Object code loaded without LLVM: the same bytes as by LLVM, nothing believed, all memory given back."""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from processes import is_done
from relayout.jit import cache, engines, loader, pages
from relayout.kernels.copy.candidates import lowered
from relayout.kernels.copy.module import module
from relayout.runtime import checks, driver, pool
from strategies import examples

compile_ = importlib.import_module("relayout.jit.compile")
machine = importlib.import_module("relayout.targets.machine")
memcpy = importlib.import_module("relayout.runtime.memcpy")
native = importlib.import_module("relayout.reorder.native")

pytestmark = pytest.mark.skipif(
    not compile_.available() or pages.process() is None, reason="objects are loaded here by LLVM alone"
)

MAPS = Path("/proc/self/maps")
HEAD = "define void @k(ptr %s, ptr %d, ptr %o, i64 %a, i64 %b) {\n"


def assembled(ir, level=2):
    return compile_.assemble(ir, machine.host(), level)


def load(data):
    """Code that is ready to run, as a process has it that makes an object and runs it."""
    linked = loader.link(data)
    return None if linked is None else pages.placed(linked)


def both(data):
    """The code as either loads it; the first one must not be None."""
    own = load(data)
    assert own is not None
    return own, compile_._by_llvm(data, machine.host())


def call(code, *arguments, name="k"):
    engines.KERNEL(code.get_function_address(name))(*arguments)


# -- the same bytes -----------------------------------------------------------------------------------------

FORMATS = ("nchw", "nhwc", "nChw16c", "nChw8c", "chwn")


@given(
    st.sampled_from(FORMATS),
    st.sampled_from(FORMATS),
    st.sampled_from(["f32", "u8", "bf16"]),
    st.sampled_from(["f32", "s8", "f16", "f64"]),
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 9), st.integers(1, 20)),
)
@examples(25)
def test_kernels_compute_the_same_bytes(source, target, kind, other, dims):
    src, dst = rl.MemoryDesc(dims, kind, source), rl.MemoryDesc(dims, other, target)
    made = native.Native(src, dst)
    ir, names = module(lowered(made.refined(), made.wish), machine.host())
    codes = both(assembled(ir))
    given_ = np.random.default_rng(0).integers(0, 60, src.required_bytes, np.uint8)
    found = []
    for code in codes:
        to = np.full(dst.required_bytes, 0xAB, np.uint8)
        for name in names:
            call(code, given_.ctypes.data, to.ctypes.data, 0, 0, 1, name=name)
        found.append(to.tobytes())
        code.close()
    assert found[0] == found[1]
    assert found[0] != bytes([0xAB]) * dst.required_bytes


def test_what_the_system_has_is_called():
    codes = both(
        assembled(
            "declare ptr @memcpy(ptr, ptr, i64)\ndeclare double @cos(double)\n"
            f"{HEAD}  call ptr @memcpy(ptr %d, ptr %s, i64 %b)\n  %x = load double, ptr %s\n"
            "  %y = call double @cos(double %x)\n  store double %y, ptr %d\n  ret void\n}\n"
        )
    )
    source = np.array([1.0, 7.0])
    for code in codes:
        to = np.zeros(2)
        call(code, source.ctypes.data, to.ctypes.data, 0, 0, 16)
        assert to.tolist() == [np.cos(1.0), 7.0]
        code.close()


def test_addresses_of_functions_and_of_constants():
    """Tables of addresses (R_X86_64_64), jumps by a table, functions of the system by way of the GOT."""
    cases = "".join(f"    i64 {k}, label %l{k}\n" for k in range(8))
    blocks = "".join(f"l{k}:\n  br label %end\n" for k in range(8))
    chosen = ", ".join(f"[{k * k * 3 + 1}, %l{k}]" for k in range(8))
    codes = both(
        assembled(
            "declare ptr @memcpy(ptr, ptr, i64)\n"
            "@texts = private constant [3 x i64] [i64 11, i64 22, i64 33]\n"
            f"{HEAD}  %f = icmp eq ptr %s, @memcpy\n  %g = zext i1 %f to i64\n"
            "  %p = getelementptr i64, ptr @texts, i64 %a\n  %t = load i64, ptr %p\n"
            f"  switch i64 %b, label %none [\n{cases}  ]\n{blocks}none:\n  br label %end\n"
            f"end:\n  %v = phi i64 {chosen}, [-1, %none]\n  %sum = add i64 %v, %t\n"
            "  %all = add i64 %sum, %g\n  store i64 %all, ptr %d\n  ret void\n}\n"
        )
    )
    there = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value
    for code in codes:
        for a, b in [(0, 0), (2, 7), (1, 3), (2, 99)]:
            to = np.zeros(1, np.int64)
            call(code, 0, to.ctypes.data, 0, a, b)
            call(code, there, to.ctypes.data, 0, a, b)
            assert to[0] == [11, 22, 33][a] + (b * b * 3 + 1 if b < 8 else -1) + 1
        code.close()


@pytest.mark.parametrize("text", [pool.ir, checks.ir, driver.ir], ids=["pool", "checks", "driver"])
def test_the_pieces_that_serve_all_kernels_are_known(text):
    data = assembled(text(machine.host().triple) if text is pool.ir else text(), 0)
    own, other = both(data)
    assert own._functions
    assert all(other.get_function_address(name) for name in own._functions)
    own.close()


# -- what is refused ----------------------------------------------------------------------------------------


def refused(ir):
    return load(assembled(ir)) is None


def test_names_that_the_process_does_not_have_are_refused():
    assert refused(
        f"declare void @relayout_has_no_such()\n{HEAD}  call void @relayout_has_no_such()\n  ret void\n}}\n"
    )


def test_data_that_is_written_is_refused():
    store = f"{HEAD}  store i64 %b, ptr @x\n  ret void\n}}\n"
    assert refused(f"@x = global i64 5\n{store}")
    assert refused(f"@x = global i64 0\n{store}")
    assert refused(f"@x = thread_local global i64 0\n{store}")


def test_objects_of_other_processors_are_refused():
    data = bytearray(assembled(f"{HEAD}  ret void\n}}\n"))
    assert load(bytes(data)) is not None
    struct.pack_into("<H", data, 18, 183)  # AArch64
    assert load(bytes(data)) is None
    assert load(b"") is None
    assert load(b"\xcf\xfa\xed\xfe" + bytes(100)) is None


DAMAGE = """
import random, struct, sys
from relayout.jit import loader, pages
data = open(sys.argv[0].replace("script.py", "object"), "rb").read()
numbers = random.Random(0)
EDGES = 0, 1, 2, 4, 0x7F, 0x80, 0xFF, 0xFF00, 0xFFF1, 0xFFFF, 1 << 31, 1 << 32, (1 << 63) - 1, (1 << 64) - 1
table, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
places = [*range(64), *range(table, table + 64 * count)]
for k in range(count):  # symbols and relocations, too
    at = table + 64 * k
    kind, (offset, size) = data[at + 4], struct.unpack_from("<QQ", data, at + 24)
    if kind in (2, 3, 4):
        places += range(offset, offset + size)
loaded = refused = 0
for turn in range(6000):
    one = bytearray(data)
    for _ in range(numbers.choice((1, 1, 2, 5))):
        at, how = numbers.choice(places), numbers.randrange(3)
        if how == 0:
            one[at] ^= 1 << numbers.randrange(8)
        elif how == 1:
            one[at] = numbers.randrange(256)
        elif at + 8 <= len(one):
            struct.pack_into("<Q", one, at & ~3, numbers.choice(EDGES))
    if turn % 5 == 0:
        del one[numbers.randrange(len(one)):]
    linked = loader.link(bytes(one))
    code = None if linked is None else pages.placed(linked)
    if code is None:
        refused += 1
    else:
        loaded += 1
        code.close()
assert loaded > 100 and refused > 1000, (loaded, refused)
print("done")
"""


def test_damaged_objects_do_no_harm(tmp_path):
    """In a process of its own, which would end; a place outside of the object would be written to."""
    data = assembled(pool.ir(machine.host().triple), 0)
    (tmp_path / "object").write_bytes(data)
    is_done(tmp_path, DAMAGE)


@given(st.data())
@examples(60)
def test_no_piece_of_an_object_is_loaded(data):
    whole = OBJECTS[0]
    assert load(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


@pytest.fixture(scope="module", autouse=True)
def _objects():
    OBJECTS[:] = (
        [assembled(f"{HEAD}  store i64 %b, ptr %d\n  ret void\n}}\n")] if compile_.available() else []
    )


OBJECTS: list[bytes] = []


# -- memory -------------------------------------------------------------------------------------------------


def rights(code):
    """The rights of the maps that hold some code, in order."""
    begin, end, found = code._pages.address, code._pages.address + code.size, []
    for line in MAPS.read_text().splitlines():
        span, may, *_ = line.split()
        low, high = (int(part, 16) for part in span.split("-"))
        if low < end and high > begin:
            found.append(may[:3])
    return found


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list maps")
def test_nothing_can_be_written_and_constants_can_not_be_run():
    code = load(
        assembled(
            f"@t = private constant [4 x i64] [i64 1, i64 2, i64 3, i64 4]\n{HEAD}"
            "  %p = getelementptr i64, ptr @t, i64 %a\n  %x = load i64, ptr %p\n"
            "  store i64 %x, ptr %d\n  ret void\n}\n"
        )
    )
    assert rights(code) == ["r-x", "r--"]
    assert code.size == 2 * pages.page()
    code.close()


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list maps")
def test_memory_is_given_back():
    size = lambda: int(Path("/proc/self/statm").read_text().split()[0])  # noqa: E731
    for _ in range(3):
        load(OBJECTS[0]).close()
    before = size(), len(MAPS.read_text().splitlines())
    for _ in range(2000):
        code = load(OBJECTS[0])
        code.close()
        code.close()  # again is nothing
    damaged = OBJECTS[0].replace(b".text", b".texu")[:-9]
    for _ in range(2000):
        assert load(damaged) is None
    assert size() <= before[0] + 64
    assert len(MAPS.read_text().splitlines()) <= before[1] + 4


@pytest.mark.parametrize("refuses", ["mmap", "mprotect"])
def test_llvm_is_asked_where_memory_may_not_be_run(monkeypatch, refuses):
    real = pages.process()

    class Process:
        def __getattr__(self, name):
            bad = {"mmap": ctypes.c_void_p(-1).value, "mprotect": -1}
            return (lambda *_: bad[name]) if name == refuses else getattr(real, name)

    monkeypatch.setattr(pages, "process", Process)
    assert load(OBJECTS[0]) is None
    engine = compile_._engine(OBJECTS[0], loader.link(OBJECTS[0]), machine.host())
    to = np.zeros(1, np.int64)
    call(engine, 0, to.ctypes.data, 0, 0, 9)
    assert to[0] == 9


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_has_its_parents_code_and_loads_its_own():
    code = load(OBJECTS[0])
    child = os.fork()
    if child == 0:
        own, to = load(OBJECTS[0]), np.zeros(1, np.int64)
        for one in (code, own):
            call(one, 0, to.ctypes.data, 0, 0, to[0] + 4)
            one.close()
        os._exit(int(to[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
    to = np.zeros(1, np.int64)
    call(code, 0, to.ctypes.data, 0, 0, 3)
    assert to[0] == 3
    code.close()


# -- linked -------------------------------------------------------------------------------------------------

ADDRESSES = (
    "declare ptr @memcpy(ptr, ptr, i64)\n"
    f"{HEAD}  store ptr @k, ptr %d\n  %to = getelementptr i8, ptr %d, i64 8\n"
    "  store ptr @memcpy, ptr %to\n  call ptr @memcpy(ptr %o, ptr %d, i64 16)\n  ret void\n}\n"
)
"""Code with a table of two addresses: of its own function, and of one that the system has."""


def test_linked_code_is_the_same_wherever_it_is_placed():
    made = loader.link(assembled(ADDRESSES))
    assert made is not None
    *lines, _ = made.split(b"\n", 4)
    assert [len(line.split()) for line in lines] == [2, 2, 1, 2]
    there = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value
    codes = [pages.placed(made) for _ in range(3)]
    assert len({code.get_function_address("k") for code in codes}) == 3
    for code in codes:
        to = np.zeros(4, np.uint64)
        call(code, 0, to.ctypes.data, to.ctypes.data + 16, 0, 0)
        assert to.tolist() == [code.get_function_address("k"), there] * 2
        code.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda made: made.replace(b"linked", b"object"),
        lambda made: made.replace(b"linked 4096", b"linked 4095"),
        lambda made: made.replace(b"linked 4096", b"linked 409600"),
        lambda made: made.replace(b"linked 4096", b"linked -4096"),
        lambda made: made.replace(b"\nk 0\n", b"\nk 4096\n"),
        lambda made: made.replace(b"\nk 0\n", b"\nk -1\n"),
        lambda made: made.replace(b"\nk 0\n", b"\nk\n"),
        lambda made: made.replace(b"memcpy", b"relayout_has_no_such", 1),
        lambda made: made.replace(b"memcpy ", b"memcpy 9", 1),
        lambda made: made.replace(b"memcpy ", b"memcpy -", 1),
        lambda made: made[: made.rindex(b"memcpy")],
        lambda made: made[:-9],
        lambda made: b"",
    ],
)
def test_damaged_linked_code_is_refused(damage):
    """What is on disk has a digest; so this takes another program that writes entries, or a fault here."""
    made = loader.link(assembled(ADDRESSES))
    assert pages.placed(damage(made)) is None
    pages.placed(made).close()


def test_what_is_kept_is_linked(tmp_path, monkeypatch):
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    text = f"{HEAD}  store i64 77, ptr %d\n  ret void\n}}\n"
    kernel = compile_.compiled(text, ["k"])["k"]
    names, _, kept = cache.load(kernel.engine.key).split(b"\n", 2)
    assert (names, pages.is_linked(kept)) == (b"k", True)
    engines.KNOWN.clear()
    monkeypatch.delattr(loader, "link")  # nobody links again, or asks LLVM
    monkeypatch.setattr(compile_, "llvm", lambda: pytest.fail("LLVM is asked"))
    found, to = engines.at_hand(kernel.engine.key), np.zeros(1, np.int64)
    engines.kernel(found, "k")(0, to.ctypes.data, 0, 0, 1)
    assert to[0] == 77


def test_what_can_not_be_linked_is_kept_as_an_object(tmp_path, monkeypatch):
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    text = f"@x = global i64 5\n{HEAD}  store i64 %b, ptr @x\n  store i64 78, ptr %d\n  ret void\n}}\n"
    kernel = compile_.compiled(text, ["k"])["k"]
    assert not pages.is_linked(cache.load(kernel.engine.key).split(b"\n", 2)[2])
    key = kernel.engine.key
    engines.KNOWN.clear()
    assert engines.at_hand(key) is None
    again, to = compile_.named(key, "k", machine.host()), np.zeros(1, np.int64)
    again(0, to.ctypes.data, 0, 0, 1)
    assert to[0] == 78
