"""Kernels that an earlier process has left on disk: found by what they are made from, and never stale."""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relayout as rl
from relayout.reorder.attributes import Attributes
from relayout.reorder.reference import reorder_by_definition

cache = importlib.import_module("relayout.codegen.cache")
compile_ = importlib.import_module("relayout.codegen.compile")
machine = importlib.import_module("relayout.codegen.machine")
native = importlib.import_module("relayout.reorder.native")
plan = importlib.import_module("relayout.reorder.plan")

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
    monkeypatch.setattr(plan, "LOADED", plan.LOADED + HOUR)
    monkeypatch.setattr(compile_, "_engines", {})
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "kernels"))
    yield copy
    cache.sources.cache_clear()


def is_made(monkeypatch, meanwhile=lambda: None):
    """Reorder as a new process does: whether it had to make the kernels, which something happened during."""
    compile_._engines.clear()
    cache.sources.cache_clear()
    made = []

    def module(self, *args):
        made.append(original(self, *args))
        meanwhile()
        return made[0]

    with monkeypatch.context() as patch:
        original = native.Native._module
        patch.setattr(native.Native, "_module", module)
        kernels = native.Native(SRC, DST)
    target = np.ones_like(RESULT)
    kernels(SOURCE.ctypes.data, target.ctypes.data)
    assert np.array_equal(target, RESULT)
    assert kernels.kinds
    return bool(made)


def entries(folder):
    return sorted(path.name for path in (folder.parent / "kernels").iterdir())


def test_what_was_made_once_is_found(package, monkeypatch):
    assert is_made(monkeypatch)
    assert not is_made(monkeypatch)
    assert len(entries(package)) == 1


def test_another_source_code_is_another_entry(package, monkeypatch):
    """Of any file: the digests of all codes that differ in one file differ."""
    assert is_made(monkeypatch)
    seen = {cache.sources(plan.LOADED)}
    files = [package / name for name in cache._files()]
    assert {path.name for path in files} >= {"tiles.py", "values.py", "problem.py", "refine.py", "dtypes.py"}
    for path in files:
        text = path.read_bytes()
        path.write_bytes(text + b"#")
        cache.sources.cache_clear()
        seen.add(cache.sources(plan.LOADED))
        path.write_bytes(text)
    assert len(seen) == 1 + len(files)
    kernel = package / "reorder" / "kernels" / "tiles.py"
    kernel.write_text(kernel.read_text().replace("0", "1", 1))
    assert is_made(monkeypatch)
    assert len(entries(package)) == 2
    assert not is_made(monkeypatch)


@pytest.mark.parametrize("change", ["edited since", "reads the environment", "absent", "a part absent"])
def test_source_code_that_says_too_little_is_not_gone_by(package, monkeypatch, change):
    """The IR is: the entry stays the same whatever else happens to the source code."""
    kernel = package / "reorder" / "kernels" / "tiles.py"
    if change == "edited since":
        monkeypatch.setattr(plan, "LOADED", plan.LOADED - 2 * HOUR)
    elif change == "reads the environment":
        kernel.write_text(kernel.read_text() + "import os; os.environ\n")
    elif change == "absent":
        shutil.rmtree(package)
    else:
        for path in kernel.parent.glob("*.py"):
            path.unlink()
    for _ in range(2):
        assert is_made(monkeypatch)
        assert cache.sources(plan.LOADED) is None
        (entry,) = entries(package)
    assert entry in compile_._engines


def test_source_code_that_is_edited_while_kernels_are_made(package, monkeypatch):
    """Some of it was imported before, some after."""
    kernel = package / "reorder" / "kernels" / "tiles.py"
    text = kernel.read_text()
    assert is_made(monkeypatch, lambda: kernel.write_text(text + "#"))
    assert is_made(monkeypatch)
    kernel.write_text(text)
    assert is_made(monkeypatch)
    assert not is_made(monkeypatch)


def test_a_name_stands_for_one_ir(monkeypatch):
    """Whatever layouts, types, attributes, processors, threads and ways of storing there are."""
    found = {}

    def recorded(problem, imported, make, target):
        found.setdefault(compile_._key(target, problem), set()).add(make().ir)
        raise native.Infeasible

    monkeypatch.setattr(compile_, "recalled", recorded)
    family = machine.host().triple.split("-")[0]
    cpus = ["x86-64-v2", "x86-64-v3"] if family == "x86_64" else ["generic"]
    dims = (4, 32, 8, 8)
    strided = rl.Layout(dims, strides=(4096, 128, 8, 1))
    for one, two, types, shape, cpu, threads, streaming in itertools.product(
        ["nchw", "nhwc", strided],
        ["nchw", "nChw16c", strided],
        [("f32", "f32"), ("u8", "f32")],
        [(), (("src_scale", None),), (("src_scale", 1),)],
        cpus,
        ["1", "16"],
        [False, True],
    ):
        monkeypatch.setenv("RELAYOUT_THREADS", threads)
        sides = [rl.MemoryDesc(dims, *side) for side in zip(types, (one, two), strict=True)]
        with pytest.raises(native.Infeasible):
            native.Native(*sides, machine=machine.machine(cpu), streaming=streaming, shape=shape)
    assert all(len(texts) == 1 for texts in found.values())
    assert len(set().union(*found.values())) > 50


def test_a_process_that_finds_its_kernel_loads_nothing_that_makes_one(tmp_path):
    """Not even where the other one was spelled in another way."""
    code = (
        "import sys, importlib, numpy, relayout as rl\n"
        f"importlib.import_module('relayout.reorder.plan').LOADED += {HOUR}\n"
        "sides = [rl.MemoryDesc((2, 17, 5, 4), 's8', name) for name in sys.argv[1:]]\n"
        "source, target = (numpy.ones(side.nbytes, numpy.uint8) for side in sides)\n"
        "rl.Reorder(*sides)(source, target)\n"
        "heavy = ('codegen.values', 'reorder.kernels.module', 'reorder.problem', 'layout.refine')\n"
        "others = ('hashlib', 'concurrent.futures', 'relayout.reorder.engine')\n"
        "print([m for m in (*(f'relayout.{m}' for m in heavy), *others) if m in sys.modules])\n"
    )
    environment = {**os.environ, "RELAYOUT_CACHE": str(tmp_path / "kernels")}
    for formats in (["nchw", "nChw8c"], ["oihw", "aBcd8b"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *formats],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "[]\n"
    assert len(list(Path(tmp_path, "kernels").iterdir())) == 1
