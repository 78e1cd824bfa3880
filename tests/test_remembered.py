"""What LLVM has said of a host is found again by the same host with the same llvmlite, and by nobody else."""

from __future__ import annotations

import importlib
import os

import pytest

from processes import is_done
from relayout.jit import identity, pages, remembered

compile_ = importlib.import_module("relayout.jit.compile")
machine = importlib.import_module("relayout.targets.machine")

pytestmark = pytest.mark.skipif(
    not compile_.available() or pages.process() is None, reason="nothing is remembered here"
)


@pytest.fixture
def afresh(tmp_path, monkeypatch):
    """A process that knows nothing yet, with an empty cache, and a function that makes it so again."""
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "kernels"))
    monkeypatch.delenv("RELAYOUT_CPU", raising=False)

    def forget():
        remembered._name.cache_clear()
        identity.identity.cache_clear()
        remembered.recalled.cache_clear()

    forget()
    if not remembered._name():
        pytest.skip("llvmlite has been installed a moment ago, so nothing is remembered")
    forget()
    yield forget
    forget()


def test_answers_come_back(afresh):
    assert remembered.recalled() is None
    answers = machine.asked()
    remembered.keep(answers)
    assert remembered.recalled() is None  # a process has one answer
    afresh()
    assert remembered.recalled() == answers
    assert answers[0].startswith("x86_64")
    assert machine.answers() == answers


def test_the_processor_says_the_same_again():
    facts = identity.facts()
    assert facts == identity.facts()
    vendor = b"".join(facts[k].to_bytes(4, "little") for k in (1, 3, 2))
    assert vendor.isascii()
    if vendor not in (b"GenuineIntel", b"AuthenticAMD"):
        return
    with open("/proc/cpuinfo") as file:
        text = file.read()
    assert vendor.decode() in text
    flags = set(text.split("flags", 1)[1].split("\n", 1)[0].split())
    ecx, edx = facts[5], facts[6]
    for bit, name, word in [(25, "sse", edx), (26, "sse2", edx), (0, "pni", ecx), (20, "sse4_2", ecx)]:
        assert (name in flags) == bool(word >> bit & 1)


def test_another_processor_finds_nothing(afresh, monkeypatch):
    remembered.keep(machine.asked())
    real = identity.facts()
    for other in ((*real[:-1], real[-1] ^ 1), (real[0] + 1, *real[1:]), None):
        afresh()
        monkeypatch.setattr(identity, "facts", lambda other=other: other)
        assert remembered.recalled() is None
    afresh()
    monkeypatch.setattr(identity, "facts", lambda: real)
    assert remembered.recalled() is not None


def test_another_library_finds_nothing(afresh, monkeypatch, tmp_path):
    library = tmp_path / identity.LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(b"one")
    os.utime(library, ns=(1, 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert identity._library() == ""  # made after this process began: it may have loaded another one
    monkeypatch.setattr(identity, "LOADED", identity.LOADED + 10**15)
    found = {identity._library()}
    remembered.keep(machine.asked())
    for content, when in ((b"other", 1), (b"other", 2)):
        library.write_bytes(content)
        os.utime(library, ns=(when, when))
        found.add(identity._library())
        afresh()
        assert remembered.recalled() is None
    library.unlink()
    found.add(identity._library())
    assert len(found) == 4


def test_a_named_processor_and_a_cache_that_is_off_remember_nothing(afresh, monkeypatch):
    remembered.keep(machine.asked())
    for name, value in (("RELAYOUT_CPU", "x86-64-v2"), ("RELAYOUT_CACHE", "off")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            afresh()
            assert remembered.recalled() is None
    afresh()
    assert remembered.recalled() is not None


def test_kernels_of_other_versions_go_by_other_names(monkeypatch):
    here = machine.host()
    names = {compile_._key(here, "a problem")}
    for versions in ("0.1.0 (22, 1, 0)", "0.50.0 (1, 2, 3)"):
        monkeypatch.setattr(compile_, "answers", lambda versions=versions: ("", "", "", versions))
        names.add(compile_._key(here, "a problem"))
    assert len(names) == 3


FROM_DISK = """
import os, subprocess, sys
os.environ["RELAYOUT_CACHE"] = sys.argv[0] + ".kernels"
WORK = '''
import sys
import numpy as np
import relayout as rl
from relayout.primitives import Convolution, Eltwise
from relayout.runtime import threads
sides = [rl.MemoryDesc((1, 64, 56, 56), "f32", format) for format in ("nchw", "nChw16c")]
source, target = np.arange(64 * 56 * 56, dtype="f4"), np.zeros(64 * 56 * 56, "f4")
rl.Reorder(*sides)(source.view("u1"), target.view("u1"))
assert target[:3].tolist() == [0, 3136, 6272]
plan = rl.Reorder(*sides, threads=2)
for _ in range(30):
    plan(source.view("u1"), target.view("u1"))
x = rl.tensor(source.reshape(1, 64, 56, 56), "nhwc")
conv = Convolution(x.desc, rl.MemoryDesc((8, 64, 3, 3), "f32", rl.any))
w = rl.reorder(rl.tensor(np.ones((8, 64, 3, 3), "f4")), conv.descs["weights"])
for _ in range(30):
    conv(x, w)
assert "NumPy" not in conv.implementation
print("llvmlite.binding" in sys.modules, "llvmlite" in sys.modules)
'''
environment = {**os.environ, "RELAYOUT_EFFORT": "estimate"}
command = [sys.executable, "-c", WORK]
said = [
    subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    for _ in range(3)
]
assert said[0] == "True True\\n" and said[2] == "False False\\n", said
print("done")
"""


def test_a_process_that_compiles_nothing_does_not_import_llvm(tmp_path):
    is_done(tmp_path, FROM_DISK)


WITHOUT = """
import os, subprocess, sys
os.environ["RELAYOUT_CACHE"] = sys.argv[0] + ".kernels"
WORK = '''
import sys, warnings
import numpy as np
import relayout as rl
warnings.simplefilter("error")
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "llvmlite.binding" and len(sys.argv) > 1:
            raise OSError("no library")
sys.meta_path.insert(0, Broken())
def move(size):
    sides = [rl.MemoryDesc((1, 64, 56, size), "f32", format) for format in ("nchw", "nChw16c")]
    rl.Reorder(*sides)(*(np.ones(desc.required_bytes, "u1") for desc in sides))
move(56)
if len(sys.argv) > 1:
    try:
        move(57)
    except rl.Unsupported as error:
        assert "no library" in str(error)
    else:
        raise AssertionError
'''
for argument in ((), (), ("broken",)):
    subprocess.run([sys.executable, "-c", WORK, *argument], check=True)
print("done")
"""


def test_kernels_on_disk_outlive_a_library_that_no_longer_loads(tmp_path):
    """And making another kernel says what is missing."""
    is_done(tmp_path, WITHOUT)
