"""Kernels that an earlier process has left on disk: found by what they are made from, and never stale."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from relayout.reorder.attributes import Attributes
from relayout.reorder.reference import reorder_by_definition
from strategies import examples

cache = importlib.import_module("relayout.jit.cache")
compile_ = importlib.import_module("relayout.jit.compile")
machine = importlib.import_module("relayout.targets.machine")
engines = importlib.import_module("relayout.jit.engines")
kept = importlib.import_module("relayout.reorder.kept")
native = importlib.import_module("relayout.reorder.native")
environment = importlib.import_module("relayout.environment")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids machine code")

HOUR = 3600 * 10**9  # nanoseconds
SRC, DST = (rl.MemoryDesc((2, 17, 5, 4), "s8", name) for name in ("nchw", "nChw8c"))
SOURCE = np.arange(SRC.nbytes).astype(np.uint8)
RESULT = np.empty(DST.nbytes, np.uint8)
reorder_by_definition(SRC, SOURCE, DST, RESULT, Attributes())


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the source code, taken for the one that kernels are made by, and written long ago."""
    copy = tmp_path / "package"
    shutil.copytree(cache.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cache, "PACKAGE", str(copy))
    monkeypatch.setattr(environment, "LOADED", environment.LOADED + HOUR)
    monkeypatch.setattr(engines, "KNOWN", engines.Engines())
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "kernels"))
    yield copy
    afresh()


def afresh():
    """Forget what a new process does not know."""
    engines.KNOWN.clear()
    for remembers in (cache._first, cache.stamp, cache._asks, kept._here, native._native):
        remembers.cache_clear()


def is_made(monkeypatch, meanwhile=lambda: None):
    """Reorder as a new process does: whether it had to make the kernels, which something happened during."""
    afresh()
    made = []

    def prepared(self, *args, **given):
        made.append(self)
        original(self, *args, **given)
        meanwhile()

    with monkeypatch.context() as patch:
        original = native.Native.__init__
        patch.setattr(native.Native, "__init__", prepared)
        kernels = native.native(SRC, DST)
    target = np.ones_like(RESULT)
    kernels(SOURCE.ctypes.data, target.ctypes.data)
    assert np.array_equal(target, RESULT)
    assert kernels.kinds
    return bool(made)


def entries(package):
    """The kernels that are kept."""
    return sorted(path.name for path in (package.parent / "kernels").iterdir() if len(path.name) == 64)


def edit(path, text):
    """Write a file as if time had passed: file systems round times, and tests are fast."""
    path.write_bytes(text)
    os.utime(path, ns=(0, environment.LOADED - HOUR - next(counted)))


counted = itertools.count()


def test_what_was_made_once_is_found(package, monkeypatch):
    assert is_made(monkeypatch)
    assert not is_made(monkeypatch)
    assert len(entries(package)) == 1


def test_another_source_code_is_another_entry(package, monkeypatch):
    """Of any file, a third of them each time: the digests of all codes that differ in one file differ."""
    assert is_made(monkeypatch)
    seen = {cache.sources(environment.LOADED)}
    files = [package / name for name in cache._files()]
    assert {path.name for path in files} >= {
        "tiles.py",
        "conversions.py",
        "problem.py",
        "nest.py",
        "dtypes.py",
    }
    files = share(files, random.randrange(3), 3)
    for path in files:
        text = path.read_bytes()
        edit(path, text + b"#")
        afresh()
        seen.add(cache.sources(environment.LOADED))
        edit(path, text)
    assert len(seen) == 1 + len(files)
    assert is_made(monkeypatch)  # planned anew, since files were written, but not compiled
    for path in (package / name for name in cache._files(cache.REORDERS)[::10]):
        edit(path, path.read_bytes() + b"#")
        assert is_made(monkeypatch)
        assert not is_made(monkeypatch)
    assert len(entries(package)) == 1  # the same text


@pytest.mark.skipif(os.name != "posix", reason="times of change are not kept here")
class TestStamp:
    """Source code is read again only where its files are not as they were."""

    @pytest.fixture
    def reads(self, package, monkeypatch):
        """Whether the next process reads the files, and finds what they hold."""
        count = []
        original = cache._sources
        monkeypatch.setattr(cache, "_sources", lambda imported: count.append(1) or original(imported))

        def reads():
            count.clear()
            afresh()
            assert cache.sources(environment.LOADED) == original(environment.LOADED) is not None
            return bool(count)

        assert reads()
        assert not reads()
        return reads

    def test_any_change_of_any_file(self, package, reads):
        """Of the text, of its age alone, or of the file's place on the disk."""
        for name in random.Random().sample(cache._files(), 24):  # each look reads all of the package
            path = package / name
            text, found = path.read_bytes(), path.stat()
            path.write_bytes(text.replace(b"a", b"b", 1))
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
            assert reads()
            other = package / "other"
            other.write_bytes(text)
            os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
            other.replace(path)
            assert reads()
            assert not reads()

    def test_files_that_come_and_go(self, package, reads):
        (package / "jit" / "new.py").touch()
        assert reads()
        assert not reads()
        (package / "jit" / "new.py").unlink()
        assert reads()
        (package / "layout" / "views.py").rename(package / "layout" / "seen.py")
        assert reads()
        assert len(list((package.parent / "kernels").iterdir())) == 1

    @pytest.mark.parametrize("fact", ["st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"])
    def test_each_fact_counts(self, package, reads, monkeypatch, fact):
        """``ctime`` can't be set, so the system's answers are."""
        original = os.stat

        def other(*args, **kwargs):
            found = original(*args, **kwargs)
            facts = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
            return SimpleNamespace(**{**facts, fact: facts[fact] + 1})

        with monkeypatch.context() as patch:
            patch.setattr(cache.os, "stat", other)
            assert reads()
            assert not reads()
        assert reads()

    def test_who_imported_something_older_does_not_go_by_the_record_of_others(self, reads, monkeypatch):
        monkeypatch.setattr(environment, "LOADED", environment.LOADED - 2 * HOUR)
        afresh()
        assert cache.sources(environment.LOADED) is None

    @pytest.mark.parametrize("damage", [b"", b"?" * 32, b"?" * 200])
    def test_a_damaged_record_is_not_believed(self, package, reads, damage):
        (path,) = (package.parent / "kernels").iterdir()
        path.write_bytes(damage)
        assert reads()
        assert not reads()

    def test_each_place_has_a_record_of_its_own(self, package, reads, tmp_path, monkeypatch):
        monkeypatch.setattr(cache, "PACKAGE", str(shutil.copytree(package, tmp_path / "elsewhere")))
        assert reads()
        monkeypatch.setattr(cache, "PACKAGE", str(package))
        assert not reads()


@pytest.mark.parametrize("change", ["edited since", "reads the environment", "absent", "a part absent"])
def test_source_code_that_says_too_little_is_not_gone_by(package, monkeypatch, change):
    """The IR is: the entry stays the same whatever else happens to the source code."""
    kernel = package / "kernels" / "copy" / "tiles.py"
    if change == "edited since":
        monkeypatch.setattr(environment, "LOADED", environment.LOADED - 2 * HOUR)
    elif change == "reads the environment":
        kernel.write_text(kernel.read_text() + "import os; os.environ\n")
    elif change == "absent":
        shutil.rmtree(package)
    else:
        for path in kernel.parent.glob("*.py"):
            path.unlink()
    for _ in range(2):
        assert is_made(monkeypatch)
        assert cache.sources(environment.LOADED) is None
        (entry,) = entries(package)
    assert entry in engines.KNOWN


def test_source_code_that_is_edited_while_kernels_are_made(package, monkeypatch):
    """Some of it was imported before, some after."""
    kernel = package / "kernels" / "copy" / "tiles.py"
    text = kernel.read_bytes()
    assert is_made(monkeypatch, lambda: edit(kernel, text + b"#"))
    assert is_made(monkeypatch)
    edit(kernel, text)
    assert is_made(monkeypatch)
    assert not is_made(monkeypatch)


def test_a_name_stands_for_one_ir(package, monkeypatch):
    """Whatever layouts, types, attributes, wishes, threads and ways of storing there are."""
    found = {}

    def recorded(name, made, said):
        plans = made._plans
        found.setdefault(name, set()).add((plans, made.rows, made._shares))

    monkeypatch.setattr(kept, "keep", recorded)
    monkeypatch.setattr(compile_, "compiled", lambda ir, names, machine: dict.fromkeys(names))
    dims = (4, 32, 8, 8)
    strided = rl.Layout(dims, strides=(4096, 128, 8, 1))
    for one, two, types, shape, wish, threads, streaming in itertools.product(
        ["nchw", "nhwc", strided],
        ["nchw", "nChw16c", strided],
        [("f32", "f32"), ("u8", "f32")],
        [(), (("src_scale", None),), (("src_scale", 1),)],
        ["", "staged, 32 rows"],
        ["1", "16"],
        ["0", "1000000"],
    ):
        monkeypatch.setenv("RELAYOUT_THREADS", threads)
        monkeypatch.setenv("RELAYOUT_STREAMING", streaming)
        sides = [rl.MemoryDesc(dims, *side) for side in zip(types, (one, two), strict=True)]
        native.native(*sides, shape, wish)
    assert "" not in found
    assert all(len(texts) == 1 for texts in found.values())
    assert len(set().union(*found.values())) > 50


def test_a_process_that_finds_its_kernel_loads_nothing_that_makes_one(tmp_path):
    """Not even where the other one was spelled in another way."""
    code = (
        "import sys, importlib, numpy, relayout as rl\n"
        f"importlib.import_module('relayout.environment').LOADED += {HOUR}\n"
        "sides = [rl.MemoryDesc((2, 17, 5, 4), 's8', name) for name in sys.argv[1:]]\n"
        "source, target = (numpy.ones(side.nbytes, numpy.uint8) for side in sides)\n"
        "rl.Reorder(*sides)(source, target)\n"
        "heavy = ('ir.conversions', 'kernels.copy.module', 'kernels.copy.problem', 'loops.refine')\n"
        "heavy += ('runtime.calibration', 'runtime.pool')\n"
        "others = ('hashlib', 'concurrent.futures', 'relayout.reorder.engine')\n"
        "print([m for m in (*(f'relayout.{m}' for m in heavy), *others) if m in sys.modules])\n"
    )
    variables = {**os.environ, "RELAYOUT_CACHE": str(tmp_path / "kernels")}
    for formats in (["nchw", "nChw8c"], ["oihw", "aBcd8b"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *formats],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "[]\n"
    assert len(entries(tmp_path / "package")) == 1


class TestLimit:
    """What is kept is bounded, at the expense of those who write."""

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        """An empty cache of at most ten small entries, where every writer looks."""
        monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "kernels"))
        monkeypatch.setenv("RELAYOUT_CACHE_LIMIT", str(10 * cache.BLOCK))
        return Path(cache.folder())

    @staticmethod
    def name(number):
        return cache.digest(b"%d" % number).hex()

    def fill(self, folder, ages):
        """Entries that were used so many days ago, named by their place."""
        for number, days in enumerate(ages):
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("RELAYOUT_CACHE_LIMIT")
                cache.save(self.name(number), b"code")
            then = time.time() - days * cache.DAY
            os.utime(folder / self.name(number), (then, then))

    @given(
        st.lists(st.integers(2, 1000), max_size=30, unique=True), st.integers(1, 4 * cache.BLOCK), st.data()
    )
    @examples(60)
    def test_what_was_not_used_for_longest_goes(self, ages, size, data):
        used = data.draw(st.sets(st.sampled_from(range(len(ages))), max_size=3)) if ages else set()
        with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
            patch.setenv("RELAYOUT_CACHE", place)
            patch.setenv("RELAYOUT_CACHE_LIMIT", str(10 * cache.BLOCK))
            folder = Path(cache.folder())
            self.fill(folder, ages)
            for number in used:
                assert cache.load(self.name(number)) == b"code"
            cache.save("f" * 64, bytes(size))
            left = {path.name for path in folder.iterdir()}
            room = cache._room(size + cache.DIGEST)
            before = room + len(ages) * cache.BLOCK
            assert "f" * 64 in left
            gone = 0 if before <= 10 * cache.BLOCK else -(-(before - 15 * cache.BLOCK // 2) // cache.BLOCK)
            gone = min(gone, len(ages))
            unused = sorted((k for k in range(len(ages)) if k not in used), key=lambda k: -ages[k])
            assert [self.name(k) for k in unused if self.name(k) in left] == [
                self.name(k) for k in unused[gone:]
            ]
            assert sum(self.name(k) in left for k in used) == len(used) - max(0, gone - len(unused))

    def test_only_those_who_write_look_and_not_always(self, folder, monkeypatch):
        monkeypatch.setattr(cache, "shrink", lambda *args: looked.append(args))
        looked = []
        self.fill(folder, [5])
        looked.clear()
        assert cache.load(self.name(0)) == b"code"
        assert cache.load(self.name(1)) is None
        assert looked == []
        monkeypatch.delenv("RELAYOUT_CACHE_LIMIT")
        one_in = cache.LIMIT / cache.LOOKS / cache.BLOCK
        for drawn, expected in ((0.9 / one_in, 1), (1.1 / one_in, 0)):
            looked.clear()
            monkeypatch.setattr(cache, "_drawn", lambda drawn=drawn: drawn)
            cache.save(self.name(0), b"code")
            assert len(looked) == expected

    def test_an_entry_is_touched_once_a_day(self, folder):
        self.fill(folder, [0.5, 1.5, -3])
        before = [(folder / self.name(k)).stat().st_mtime for k in range(3)]
        for k in range(3):
            cache.load(self.name(k))
        after = [(folder / self.name(k)).stat().st_mtime for k in range(3)]
        assert after[0] == before[0]
        assert all(abs(time.time() - used) < 100 for used in after[1:])

    def test_what_is_not_ours_is_left_alone(self, folder):
        """Unfinished entries are ours."""
        others = ["notes.txt", "f" * 63, "F" * 64, "f" * 65, f"{'f' * 64} copy"]
        for name in others:
            (folder / name).write_bytes(bytes(1 << 16))
        (folder / ("a" * 64)).mkdir()
        outside = folder.parent / "outside"
        outside.write_bytes(bytes(1 << 16))
        (folder / ("b" * 64)).symlink_to(outside)
        unfinished = folder / f"{'c' * 64}.x7_abcde"
        unfinished.write_bytes(bytes(1 << 16))
        cache.save("sharing-" + "d" * 64, b"value")
        assert outside.exists()
        assert not unfinished.exists()
        kept = [*others, "a" * 64, "b" * 64, "sharing-" + "d" * 64]
        assert sorted(path.name for path in folder.iterdir()) == sorted(kept)

    def test_a_limit_of_nothing_keeps_nothing(self, folder, monkeypatch):
        self.fill(folder, [2, 3])
        monkeypatch.setenv("RELAYOUT_CACHE_LIMIT", "0")
        cache.save(self.name(9), b"code")
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("text", ["1G", "-1", "1e9", "\u00b2", " "])
    def test_a_limit_that_is_none(self, folder, monkeypatch, text):
        monkeypatch.setenv("RELAYOUT_CACHE_LIMIT", text)
        with pytest.raises(rl.LayoutError, match=r"RELAYOUT_CACHE_LIMIT=.* is no number of bytes"):
            cache.save(self.name(0), b"code")

    def test_others_remove_entries_meanwhile(self, folder, monkeypatch):
        """Who comes second finds them gone, and removes no more for it."""
        self.fill(folder, range(2, 22))
        original = os.unlink

        def raced(path):
            original(path)
            original(path)

        monkeypatch.setattr(cache.os, "unlink", raced)
        cache.save(self.name(99), b"code")
        assert len(list(folder.iterdir())) == 7

    def test_entries_that_can_not_be_removed(self, folder, monkeypatch):
        """Younger ones go for them."""
        original = os.unlink

        def refused(path):
            if str(path)[-64:] in stuck:
                raise PermissionError
            original(path)

        self.fill(folder, range(22, 2, -1))
        stuck = {self.name(k) for k in range(3)}
        monkeypatch.setattr(cache.os, "unlink", refused)
        cache.save(self.name(99), b"code")
        left = {path.name for path in folder.iterdir()}
        assert left == stuck | {self.name(k) for k in (17, 18, 19, 99)}

    @pytest.mark.parametrize("damage", [b"", b"?" * 32, b"?" * 200])
    def test_damaged_entries_are_removed(self, folder, damage):
        (folder / self.name(0)).write_bytes(damage)
        assert cache.load(self.name(0)) is None
        assert list(folder.iterdir()) == []

    def test_an_entry_under_the_name_of_another_one_is_not_loaded(self, folder):
        """It is whole, but another kernel."""
        cache.save(self.name(0), b"one")
        cache.save(self.name(1), b"two")
        first, second, aside = folder / self.name(0), folder / self.name(1), folder / "aside"
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        assert [cache.load(self.name(k)) for k in range(2)] == [None, None]
        assert list(folder.iterdir()) == []

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_pipe_is_no_entry_and_nobody_waits_for_it(self, folder):
        os.mkfifo(folder / self.name(0), 0o600)
        code = (
            "import importlib, sys\n"
            "cache = importlib.import_module('relayout.jit.cache')\n"
            "print(cache.load(sys.argv[1]))\n"
        )
        run = [sys.executable, "-c", code, self.name(0)]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == "None\n"
        cache.save(self.name(0), b"code")
        assert cache.load(self.name(0)) == b"code"

    @pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have other owners here")
    def test_entries_that_others_own_or_may_write_to_are_not_loaded(self, folder, monkeypatch):
        self.fill(folder, [0, 0])
        (folder / self.name(0)).chmod(0o620)
        assert [cache.load(self.name(k)) for k in range(2)] == [None, b"code"]
        with monkeypatch.context() as patch:
            patch.setattr(cache, "folder", lambda: str(folder))
            patch.setattr(cache.os, "getuid", lambda: (folder / self.name(1)).stat().st_uid + 1)
            assert cache.load(self.name(1)) is None
        assert cache.load(self.name(1)) == b"code"

    @pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links are followed here")
    def test_links_are_not_followed(self, folder):
        self.fill(folder, [0])
        outside = folder.parent / "outside"
        (folder / self.name(0)).rename(outside)
        (folder / self.name(0)).symlink_to(outside)
        assert cache.load(self.name(0)) is None
        assert outside.exists()

    def test_many_processes_at_once(self, folder):
        code = (
            "import importlib, sys\n"
            "cache = importlib.import_module('relayout.jit.cache')\n"
            "for k in range(60):\n"
            "    key = cache.digest(sys.argv[1].encode() + b'%d' % k).hex()\n"
            "    cache.save(key, key.encode())\n"
            "    assert cache.load(key) in (None, key.encode())\n"
        )
        workers = [subprocess.Popen([sys.executable, "-c", code, str(k)]) for k in range(3)]
        assert [worker.wait() for worker in workers] == [0] * 3
        left = list(folder.iterdir())
        assert 0 < len(left) <= 10
        assert all(cache.load(path.name) == path.name.encode() for path in left)


def test_without_llvmlite_there_is_one_warning():
    code = (
        "import sys, warnings; sys.modules['llvmlite'] = None\n"
        "import numpy, relayout as rl\n"
        "array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    for form in ('ab', 'ba'):\n"
        "        sides = [rl.MemoryDesc((3, 4), 'f32', side) for side in ('ab', form)]\n"
        "        target = numpy.empty(12, numpy.float32)\n"
        "        rl.Reorder(*sides)(array, target)\n"
        "assert (target == array.T.ravel()).all()\n"
        "print([(each.category.__name__, 'pip install llvmlite' in str(each.message)) for each in said])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[('RuntimeWarning', True)]\n"


def test_a_huge_file_in_place_of_an_entry_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    cache.save("entry", b"code")
    assert cache.load("entry") == b"code"
    with open(tmp_path / "entry", "r+b") as file:
        file.truncate(1 << 40)  # holes take no room
    assert cache.load("entry") is None
