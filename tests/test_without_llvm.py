"""Without llvmlite, with one that is broken, or on a host that forbids machine code: NumPy does it all."""

from __future__ import annotations

import pytest

from processes import is_done

MISSING = "sys.modules['llvmlite'] = None"
BROKEN = """
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "llvmlite.binding":
            raise OSError("libllvmlite.so: invalid ELF header")
sys.meta_path.insert(0, Broken())
"""
FORBIDDEN = """
import llvmlite.binding
def refuse():
    raise OSError("no executable memory")
llvmlite.binding.check_jit_execution = refuse
"""
HOSTS = {
    "missing": (MISSING, "try pip install llvmlite"),
    "broken": (BROKEN, "can't be loaded (OSError: libllvmlite.so: invalid ELF header)"),
    "forbidden": (FORBIDDEN, "this host forbids making machine code"),
}

SCRIPT = """
import sys, warnings
{prepare}
import numpy as np
import relayout as rl
from relayout import MemoryDesc
from relayout.primitives import *
from relayout.primitives import Reorder as Move

def f32(*dims, format="nhwc"):
    return MemoryDesc(dims, "f32", format)

said = warnings.catch_warnings(record=True).__enter__()
warnings.simplefilter("always")
rng = np.random.default_rng(0)
SRC, VECTOR = f32(2, 8, 6, 5), f32(8, format="a")
PRIMITIVES = [
    Convolution(SRC, f32(8, 8, 3, 3, format=rl.any), VECTOR, strides=2, padding=1, post_ops="relu"),
    Convolution(f32(2, 8, 6, 5, format=rl.any), f32(8, 8, 1, 1, format="oihw")),
    InnerProduct(SRC, f32(7, 8, 6, 5, format=rl.any)),
    Matmul(f32(5, 6, format="ab"), f32(6, 7, format=rl.any)),
    Pooling(SRC, "max", 2), Softmax(SRC), Eltwise(SRC, "tanh"), Sum([SRC, SRC], [1, 2]),
    BatchNormalization(SRC), Binary("add", SRC, SRC), Concat([SRC, SRC], 1),
    Move(SRC, f32(2, 8, 6, 5, format="nChw8c")),
]
for primitive in PRIMITIVES:
    given = [rng.random(primitive.descs[name].dims, np.float32) for name in primitive.inputs]
    tensors = [rl.tensor(x, primitive.descs[name]) for name, x in zip(primitive.inputs, given)]
    for _ in range(20):  # often
        found = primitive(*tensors).numpy()
    np.testing.assert_allclose(found, primitive.reference(*given), rtol=1e-5, err_msg=str(primitive))
    assert primitive.implementation == "definition (NumPy)", primitive.implementation
sequence = Sequence()
x = sequence.input("x", SRC)
for step in PRIMITIVES[5:7]:
    x = sequence.add(step, sequence.reorder(x, step.descs["src"]))
sequence.output(x)
data = rng.random(SRC.dims, np.float32)
run = sequence.compile()
np.testing.assert_allclose(run(rl.tensor(data, "nhwc")).numpy(), sequence.reference(data), rtol=1e-5)
big = rl.tensor(rng.random((1, 64, 64, 64), np.float32))
for _ in range(5):
    moved = rl.reorder(big, "nChw16c", dtype="f16", src_scale=2.0)
assert np.array_equal(moved.numpy(), (big.numpy() * 2).astype("f2"))
plan = rl.Reorder(big.desc, moved.desc)
plan(big, moved)
assert "NumPy" in plan.explain()
lines = [str(each.message) for each in said if issubclass(each.category, RuntimeWarning)]
assert len(lines) == 1 and {why!r} in lines[0], lines

from relayout.runtime import driver, threads
from relayout.runtime.memcpy import memcpy_kernel
from relayout.targets.machine import host
assert threads.count() >= 1 and driver._native() is None
copied = []
threads.share(lambda start, stop: copied.append(stop - start), 100, threads=2)
assert sum(copied) == 100
for needs in (host, memcpy_kernel):
    try:
        needs()
    except rl.Unsupported as error:
        assert {why!r} in str(error), error
    else:
        assert {llvm} and needs is host
print("done")
"""


@pytest.mark.parametrize("host", HOSTS)
def test_all_is_done_in_numpy_with_one_warning(tmp_path, monkeypatch, host):
    """On a host that never had it: what LLVM has said to earlier processes would be remembered."""
    prepare, why = HOSTS[host]
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "kernels"))
    if host == "forbidden":
        pytest.importorskip("llvmlite")
    is_done(tmp_path, SCRIPT.format(prepare=prepare, why=why, llvm=host == "forbidden"))
