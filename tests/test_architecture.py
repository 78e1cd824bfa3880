"""The house: which module may import which, and what importing relayout costs.

Arrows point one way: layout <- notation, tensor; kernels -> ops, ir, targets; runtime -> jit -> targets;
reorder and primitives stand on these; draw, files and the command line on top. The rules are checked on the
source, file by file, so an import that never runs counts too.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import relayout

SOURCE = Path(relayout.__file__).parent
HEAVY = ("llvmlite", "ml_dtypes", "rich", "click", "PIL", "torch", "dask", "hypothesis")


AT_ONCE = {
    *("dtypes", "errors", "forking", "tensor", "notation", "exchange", "exchange.pytorch"),
    *("layout", "layout.descriptor", "layout.format", "layout.layout", "layout.roles", "layout.spelling"),
    *("reorder", "reorder.arguments", "reorder.attributes", "reorder.axes", "reorder.conversion"),
    *("reorder.plan", "jit", "jit.floating", "environment"),
}
"""The modules that importing relayout loads."""


class Import(NamedTuple):
    """One imported module, and whether the import runs when the module itself is imported."""

    module: str
    at_once: bool


def modules() -> dict[str, Path]:
    """All modules of the package, by dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def names_type_checking(test: ast.expr) -> bool:
    """Whether a condition asks for the type checker."""
    parts = ast.walk(test)
    return any("TYPE_CHECKING" in (getattr(part, "id", ""), getattr(part, "attr", "")) for part in parts)


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """The imports of a module; those for the type checker alone are left out."""

    def visit(node: ast.AST, at_once: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and names_type_checking(node.test):
            for child in node.orelse:
                yield from visit(child, at_once)
            return
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, at_once)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield Import(whole if whole in MODULES else str(node.module), at_once)
        inside = at_once and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    return tuple(visit(ast.parse(path.read_text()), True))


def part_of(module: str) -> str:
    """The part of the house a module belongs to: the name behind ``relayout.``."""
    return module.split(".")[1] if module.startswith("relayout.") else module


TENSORS = ("errors", "forking", "dtypes", "layout", "convert", "exchange", "tensor")
CORE = ("errors", "dtypes", "layout")
MACHINERY = ("processors", "targets", "jit", "runtime")

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "forking": set(),
    "records": set(),
    "dtypes": {"errors", "forking"},
    "layout": {"errors", "forking", "dtypes", "layout"},
    "loops": {"errors", "records", "layout", "loops"},
    "notation": {"errors", "forking", "dtypes", "layout", "notation"},
    "convert": {"errors", "dtypes"},
    "exchange": {"errors", "forking", "dtypes", "exchange"},
    "tensor": {"errors", "forking", "dtypes", "layout", "convert", "exchange"},
    "environment": {"errors"},
    "processors": {"environment"},
    "targets": {"errors", "forking", "environment", "processors", "targets"},
    "ir": {"errors", "records", "dtypes", "targets", "ir"},
    "jit": {"errors", "forking", "environment", "processors", "targets", "jit"},
    "runtime": {"errors", "forking", "environment", "processors", "targets", "ir", "jit", "runtime"},
    "ops": {"errors", "records", "dtypes", "layout", "ir", "ops"},
    "kernels": {*CORE, "forking", "records", "loops", "ops", "ir", "processors", "targets", "kernels"},
    "reorder": {*TENSORS, "environment", "loops", "ir", "kernels", *MACHINERY, "reorder"},
    "pytorch": {"errors", "pytorch"},
    "inspecting": {*TENSORS, "records", "notation", "loops", "targets", "reorder", "inspecting"},
    "primitives": {
        *TENSORS,
        "environment",
        "records",
        "loops",
        "ops",
        "kernels",
        *MACHINERY,
        "reorder",
        "primitives",
    },
    "networks": {"errors", "forking", "layout", "ops", "primitives", "graph", "networks"},
    "graph": {
        *TENSORS,
        "records",
        "environment",
        "layout",
        "ops",
        *MACHINERY,
        "reorder",
        "primitives",
        "graph",
    },
    "training": {*TENSORS, "reorder", "primitives", "graph", "training"},
    "logs": {*TENSORS, "notation", "reorder", "logs"},
    "importers": {"errors", "forking", "dtypes", "exchange", "graph", "importers"},
    "exporters": {"errors", "forking", "graph", "exporters"},
    "onnx": {"errors", "graph", "importers", "onnx"},
    "dask": {*TENSORS, "reorder", "stores", "dask"},
    "torch": {
        *TENSORS,
        "environment",
        "records",
        "pytorch",
        *MACHINERY,
        "reorder",
        "primitives",
        "graph",
        "training",
        "importers",
        "draw",
        "torch",
    },
}
"""For each part of the ground floor the parts that it may import when it is imported itself."""

WITHIN_FUNCTIONS: dict[str, set[str]] = {
    "targets": {"jit"},  # where the answers of earlier processes are
    "layout": {"draw"},  # what notebooks show
    "tensor": {"loops", "reorder", "draw"},
    "primitives": {"draw"},
    "networks": {"files"},
    "graph": {"draw", "files"},
    "training": {"files"},
}
"""What it may import besides, once somebody calls it."""


@pytest.mark.parametrize("name", [name for name in MODULES if part_of(name) in ALLOWED])
def test_arrows_point_one_way(name: str) -> None:
    part = part_of(name)
    wrong = []
    for module, at_once in imports(MODULES[name]):
        if module.split(".")[0] != "relayout":
            continue
        allowed = ALLOWED[part] if at_once else ALLOWED[part] | WITHIN_FUNCTIONS.get(part, set())
        if part_of(module) not in allowed:
            wrong.append(module)
    assert wrong == []


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("relayout.graph.operators")])
def test_operators_of_networks_stand_alone(name: str) -> None:
    """Who reads what an operator means reads nothing else of the house."""
    own = {i.module for i in imports(MODULES[name]) if i.module.startswith("relayout.")}
    known = ("relayout.errors", "relayout.forking", "relayout.dtypes", "relayout.graph.operators")
    assert [module for module in own if not module.startswith(known)] == []


METHODS: set[tuple[str, str]] = {
    ("relayout.layout.layout", "relayout.layout.canonical"),
    ("relayout.layout.layout", "relayout.layout.text"),
    ("relayout.layout.descriptor", "relayout.layout.text"),
    ("relayout.layout.descriptor", "relayout.layout.views"),
    ("relayout.tensor", "relayout.reorder"),
    ("relayout.graph.graph", "relayout.graph.evaluate"),
    ("relayout.graph.graph", "relayout.graph.backward"),
    ("relayout.graph.graph", "relayout.graph.compiling"),
    ("relayout.graph.run", "relayout.graph.saving"),
    ("relayout.stores.lazy", "relayout.stores.planning"),
    ("relayout.graph.graph", "relayout.graph.verification"),
    *(
        (f"relayout.{name}", "relayout.draw.notebook")
        for name in (
            "layout.format",
            "layout.layout",
            "layout.descriptor",
            "tensor",
            "primitives.primitive",
            "graph.graph",
        )
    ),
}
"""Methods that are there for convenience, such as ``Tensor.reorder``: what they do is another module's, which
knows the class. It is imported when they are called."""


def circles() -> list[tuple[str, ...]]:
    """Modules that import each other by whatever way, imports within functions among them."""
    known = {
        name: {i.module for i in imports(path) if i.module in MODULES and (name, i.module) not in METHODS}
        for name, path in MODULES.items()
    }
    reached: dict[str, set[str]] = {}
    for name, first in known.items():
        reached[name], left = set(), [*first]
        while left:
            if (one := left.pop()) not in reached[name]:
                reached[name].add(one)
                left += known[one]
    return sorted(
        {tuple(sorted({a, *(b for b in reached[a] if a in reached[b])})) for a in known if a in reached[a]}
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor later, when something is called: whoever reads a module can read first what it stands on."""
    assert circles() == []


def test_every_part_of_the_ground_floor_is_there() -> None:
    assert set(ALLOWED) <= {part_of(name) for name in MODULES}


def test_nothing_imports_the_command_line() -> None:
    above = {name for name, path in MODULES.items() for i in imports(path) if part_of(i.module) == "cli"}
    assert {name for name in above if part_of(name) not in ("cli", "__main__")} == set()


@pytest.mark.parametrize(
    "name", [name for name in MODULES if part_of(name) in ("layout", "errors", "notation", "pytorch")]
)
def test_what_a_layout_is_needs_the_standard_library_only(name: str) -> None:
    """NumPy comes in where many offsets are computed at once, and only when that is asked for."""
    own = {module.split(".")[0] for module, at_once in imports(MODULES[name]) if at_once}
    foreign = {module for module in own if module not in sys.stdlib_module_names and module != "relayout"}
    assert foreign == ({"numpy"} if name == "relayout.layout.vectorised" else set())


def test_importing_relayout_loads_nothing_heavy() -> None:
    """Nor what only some programs use. Where no bytecode is written each module is parsed in each process:
    5 to 10 microseconds a line, so that what this lists is what importing relayout takes."""
    code = f"import sys, relayout; print([m for m in {(*HEAVY, 'dataclasses')!r} if m in sys.modules])\n"
    code += "print(*sorted(m for m in sys.modules if m.startswith('relayout.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, loaded = done.stdout.splitlines()
    assert heavy == "[]"
    assert {name.removeprefix("relayout.") for name in loaded.split()} == AT_ONCE


def test_reading_and_describing_formats_loads_no_numpy_of_its_own() -> None:
    """What the layout core does with text and single offsets it does without NumPy."""
    code = (
        "import sys\n"
        "for m in ('numpy', 'ml_dtypes'): sys.modules[m] = None\n"  # importing them now fails
        "import types\n"
        "house = types.ModuleType('relayout')\n"  # the package without what its __init__ imports
        "house.__path__ = [sys.argv[1]]\n"
        "sys.modules['relayout'] = house\n"
        "import relayout.notation\n"
        "from relayout.layout.descriptor import MemoryDesc\n"
        "desc = MemoryDesc((2, 17, 5, 4), 'f32', 'nChw8c')\n"
        "layout = desc.layout\n"
        "print(desc, layout.offset(1, 9, 0, 2), layout.index(657), desc.nbytes, desc.name('openvino'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SOURCE)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "f32:nChw8c:2x17x5x4 657 (1, 9, 0, 2) 3840 b_fs_yx_fsv8\n"


def test_public_names_are_documented() -> None:
    undocumented = [name for name in relayout.__all__ if not (getattr(relayout, name).__doc__ or "").strip()]
    assert undocumented == []


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    assert ast.get_docstring(tree), f"{name} has no docstring"
    stars = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names)
    ]
    assert stars == []
    marks = r"^(<{7}|>{7}) |\n\n={7}$"
    assert not re.search(marks, MODULES[name].read_text(), re.M), f"{name} is half merged"


LATER = ("dask", "draw", "files", "logs", "networks", "primitives", "pytorch", "stores", "torch")


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", LATER)
def test_packages_are_loaded_when_they_are_asked_for(name: str) -> None:
    code = (
        "import sys, relayout as rl\n"
        f"assert {name!r} in dir(rl) and {name!r} in rl.__all__\n"
        f"assert 'relayout.{name}' not in sys.modules, 'too early'\n"
        f"assert rl.{name} is sys.modules['relayout.{name}']\n"
        f"print(rl.{name}.__name__)\n"
    )
    assert run(code) == f"relayout.{name}\n"


MODULES_LATER = {
    "draw": ("svg", "text"),
    "files": ("image", "pt", "raw", "safetensors"),
    "layout": ("reshape", "text", "vectorised"),
    "notation": ("verbose",),
}


@pytest.mark.parametrize("name", MODULES_LATER)
def test_modules_of_packages_need_no_import_of_their_own(name: str) -> None:
    code = "import sys, relayout as rl\n"
    for module in MODULES_LATER[name]:
        code += (
            f"assert {module!r} in dir(rl.{name})\n"
            f"assert rl.{name}.{module} is sys.modules['relayout.{name}.{module}']\n"
        )
    code += f"assert not hasattr(rl.{name}, 'nothing_of_it')\n"
    assert run(code) == ""


def test_nothing_takes_the_lock_while_it_is_imported() -> None:
    """``from package import module`` asks the package first, whose ``__getattr__`` takes the lock."""
    later = {f"relayout.{name}.{module}" for name, several in MODULES_LATER.items() for module in several}
    wrong = []
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                asked = {f"{node.module}.{alias.name}" for alias in node.names}
                wrong += [(name, module) for module in asked & later]
    assert wrong == []


def test_type_checkers_see_all_packages() -> None:
    tree = ast.parse(MODULES["relayout"].read_text())
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    nodes = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name for node in nodes for alias in node.names}
    functions = {"Reorder", "load", "open", "cost", "guess", "verify"}
    assert seen == {*LATER, "views", "graph", "training", *functions}
    assert seen - functions == {name.rpartition(".")[2] for name in relayout._LATER}


def test_a_fork_waits_for_a_package_that_is_being_loaded() -> None:
    """A child that found it half loaded would wait for ever for the thread that was loading it."""
    code = (
        "import builtins, os, sys, threading, time, warnings\n"
        "import relayout as rl\n"
        "warnings.simplefilter('ignore')\n"  # of a fork beside threads
        "inside, real = threading.Event(), builtins.__import__\n"
        "def slow(name, *rest, **more):\n"
        "    if name.startswith('relayout.primitives') or name == 'relayout.files.arrays':\n"
        "        inside.set(); time.sleep(0.3)\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = slow\n"
        "thread = threading.Thread(target=lambda: rl.files)\n"
        "thread.start(); inside.wait()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    rl.files.read; os._exit(0)\n"
        "deadline = time.monotonic() + 20\n"
        "while os.waitpid(pid, os.WNOHANG) == (0, 0):\n"
        "    if time.monotonic() > deadline: os.kill(pid, 9); print('hangs'); break\n"
        "    time.sleep(0.01)\n"
        "thread.join(); print('done')\n"
    )
    assert run(code) == "done\n"


ENGINE = ("loops", "ops", "targets", "ir", "kernels", "jit", "runtime", "reorder", "primitives")
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"


@pytest.mark.parametrize("name", [n for n in MODULES if part_of(n) in ENGINE and n.count(".") > 1])
def test_every_module_is_listed(name: str) -> None:
    """On the page, and in the table of its package unless it is one of the primitives' kinds."""
    if MODULES[name].name == "__init__.py":
        return
    package, module = name.rsplit(".", 1)
    assert f"{module}.py`" in PAGE.read_text()
    kinds = importlib.import_module("relayout.primitives")._WHERE.values()
    table = importlib.import_module(package).__doc__ or ""
    assert f"``{module}``" in table or name.removeprefix("relayout.primitives.") in kinds


@pytest.mark.parametrize("name", [n for n in MODULES if MODULES[n].name == "__init__.py"])
def test_tables_list_what_there_is(name: str) -> None:
    if part_of(name) not in ENGINE:
        return
    table = importlib.import_module(name).__doc__ or ""
    listed = re.findall(r"^``(\w+)``  ", table, re.MULTILINE)
    assert [module for module in listed if f"{name}.{module}" not in MODULES] == []


def reached(left: list[str]) -> set[str]:
    """The folders of all modules that some modules import, those of their imports among them.

    What notebooks show, they ask for by a method of their own; nobody needs it for anything else.
    """
    found = {"relayout.draw.notebook"}
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += [i.module for i in imports(MODULES[one]) if i.module in MODULES]
    found.discard("relayout.draw.notebook")
    return {MODULES[n].parent.relative_to(SOURCE).as_posix() for n in found}


def test_the_key_of_kernels_knows_all_code_that_writes_them() -> None:
    """A kernel on disk is found by the source code that it would be made by: none may be missing."""
    from relayout.jit.cache import PARTS, REORDERS

    assert reached([n for n in MODULES if part_of(n) == "kernels"]) <= set(PARTS)
    assert reached(["relayout.reorder.choice"]) <= set(REORDERS) < set(PARTS)
