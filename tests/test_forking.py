"""What a child must not find half done: imports within functions, and LLVM at work.

Locks that a thread of the parent holds are held in the child for good. So what is imported late is imported
under the one lock that ``os.fork`` waits for (:mod:`relayout.forking`). The source is read for imports that
are not, and real children are forked while another thread imports.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import relayout
from processes import is_done
from relayout import primitives
from test_architecture import names_type_checking

SOURCE = Path(relayout.__file__).parent
PROGRAMS = "cli", "bench", "__main__.py"
"""Parts that are programs, not a library: nobody forks while they import."""


@cache
def sources() -> list[tuple[Path, ast.Module]]:
    return [
        (path, ast.parse(path.read_text()))
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in PROGRAMS
    ]


def loaded_at_once() -> set[str]:
    """What importing relayout has loaded, whole."""
    code = "import sys, relayout; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def is_locked(node: ast.AST) -> bool:
    """Whether what is within a node runs under the lock."""
    if isinstance(node, ast.With):
        return any(ast.unparse(item.context_expr) in ("lock()", "_lock()") for item in node.items)
    if isinstance(node, ast.FunctionDef):
        locked = any(ast.unparse(one) == "locked" for one in node.decorator_list)
        return locked and not any(isinstance(child, (ast.Yield, ast.YieldFrom)) for child in ast.walk(node))
    return False


def _called(function: ast.expr) -> str:
    """The last name of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def modules_of(node: ast.AST) -> list[str]:
    """What a node imports; a name that is no constant is ``?``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        inner = [
            name for name in whole if (SOURCE.parent / name.replace(".", "/")).with_suffix(".py").exists()
        ]
        return [str(node.module), *inner]
    if isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__"):
        first = node.args[0]
        return [first.value if isinstance(first, ast.Constant) else "?"]
    return []


LATE = re.compile(r"^[ \t]+(import|from) |import_module|__import__", re.MULTILINE)
"""What every module has that imports anything within a function."""


def late_imports(tree: ast.AST, known: set[str]) -> Iterator[tuple[int, str]]:
    """Imports within functions that are not under the lock, with their lines."""

    def visit(node: ast.AST, within: bool, safe: bool) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.If) and names_type_checking(node.test):
            return
        if within and not safe:
            yield from ((node.lineno, name) for name in modules_of(node) if name not in known)
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        safe = is_locked(node) or (safe and not is_function)  # one that is made under the lock may run later
        for child in ast.iter_child_nodes(node):
            yield from visit(child, within or is_function, safe)

    yield from visit(tree, False, False)


def test_every_import_within_a_function_is_under_the_lock():
    known = loaded_at_once()
    assert {"numpy", "relayout.tensor"} <= known
    found = [
        f"{path.relative_to(SOURCE)}:{line} {module}"
        for path, tree in sources()
        if LATE.search(path.read_text())
        for line, module in late_imports(tree, known)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import a", []),
        ("def f():\n  import a", ["a"]),
        ("def f():\n  from a.b import c", ["a.b"]),
        ("def f():\n  import known", []),
        ("def f():\n  with lock():\n    import a", []),
        ("def f():\n  with open(x):\n    import a", ["a"]),
        ("@locked\ndef f():\n  import a", []),
        ("@cache\n@locked\ndef f():\n  import a", []),
        ("@locked\ndef f():\n  import a\n  yield a", ["a"]),
        ("@locked\ndef f():\n  def g():\n    import a\n  return g", ["a"]),
        ("def f():\n  return import_module('a')", ["a"]),
        ("def f():\n  return importlib.import_module(f'a.{b}')", ["?"]),
        ("if TYPE_CHECKING:\n  def f():\n    import a", []),
    ],
)
def test_the_test_itself(text, found):
    assert [module for _, module in late_imports(ast.parse(text), {"known"})] == found


def test_nothing_takes_the_lock_while_it_is_imported():
    """Who holds it may be waiting for that very module. ``relayout.primitives.X`` takes it, to load X."""
    kinds = set(primitives.__all__)
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, tree in sources()
        for node in tree.body
        if (isinstance(node, ast.ImportFrom) and node.module == "relayout.primitives")
        and kinds & {alias.name for alias in node.names}
    ]
    assert found == []


SCRIPT = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import numpy as np
import relayout as rl, relayout.files, relayout.primitives  # statements of users are their own affair
from relayout import MemoryDesc

SRC = MemoryDesc((1, 8, 6, 6), "f32", "nhwc")
FREE = MemoryDesc((8, 8, 3, 3), "f32", rl.any)

def work():
    {work}

class Slow:
    '''Every import of another thread takes a while, and is told.'''
    def find_spec(self, name, path=None, target=None):
        other = threading.current_thread() is not threading.main_thread()
        if other and name.split(".")[0] in ("relayout", "llvmlite", "difflib"):
            imported.append(name)
            importing.set()
            time.sleep(0.02)

imported, importing, done = [], threading.Event(), threading.Event()
sys.meta_path.insert(0, Slow())
errors = []

def first():
    try:
        work()
    except BaseException as error:
        errors.append(error)
    done.set()
    importing.set()

thread = threading.Thread(target=first)
thread.start()
children = []
while not done.is_set() and len(children) < 8:
    importing.wait()
    importing.clear()
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    children.append(child)
thread.join()
assert imported, "nothing was imported"
assert not errors, errors
end = time.monotonic() + 30
left = set(children)
while left and time.monotonic() < end:
    for child in list(left):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0, status
            left.discard(child)
    time.sleep(0.01)
for child in left:
    os.kill(child, 9)
    os.waitpid(child, 0)
assert not left, f"{{len(left)}} of {{len(children)}} children hang"
print("done")
"""

FIRST_CALLS = {
    "convolution": "rl.primitives.Convolution(SRC, FREE)",
    "inner product": "rl.primitives.InnerProduct(SRC, MemoryDesc((8, 8, 6, 6), 'f32', rl.any))",
    "matrix product": "rl.primitives.Matmul(*[MemoryDesc((8, 8), 'f32', f) for f in ('ab', rl.any)])",
    "a primitive that runs": "rl.primitives.Softmax(SRC)(rl.tensor(np.ones(SRC.dims, 'f4'), 'nhwc'))",
    "reorder and explain": "rl.Reorder(SRC, MemoryDesc(SRC.dims, 'f32', 'nChw8c')).explain()",
    "rules of PyTorch": "rl.pytorch.strides_for((1, 2, 3, 4), 'channels_last')",
    "files": "relayout.files.info(sys.argv[0].replace('script.py', 'x.safetensors'))",
}


@pytest.mark.turns(2)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("name", FIRST_CALLS)
def test_children_forked_during_a_first_call(tmp_path, name):
    relayout.files.write(tmp_path / "x.safetensors", relayout.tensor(np.arange(6.0)))
    is_done(tmp_path, SCRIPT.format(work=FIRST_CALLS[name]))
