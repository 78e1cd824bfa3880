"""llvmlite is imported without what nobody asks for, and whoever does ask finds everything."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("llvmlite")

UNUSED = ("importlib.resources", "importlib.readers", "zipfile")


def answer(code: str) -> str:
    """What a program prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


LOADED = "import sys\nfrom relayout.targets.machine import llvm\nlibrary = llvm()\n"


def test_what_nobody_asks_for_is_not_loaded():
    told = f"print([name for name in {UNUSED} if name in sys.modules])"
    assert answer(LOADED + told) == answer("import sys, ctypes, relayout\n" + told)
    assert answer(LOADED + "print(bool(library.get_process_triple()))") == "True"


def test_whoever_asks_later_finds_the_modules_themselves():
    asked = "import importlib.resources as one\n"
    told = "print(type(one).__name__, one.files('relayout').name)"
    assert answer(LOADED + asked + told) == "module relayout"


def test_a_standin_that_somebody_has_got_hold_of_meanwhile_answers_as_the_module():
    held = (
        "import sys\n"
        "from relayout.targets.light import standing_in\n"
        "with standing_in():\n"
        "    import importlib.resources as one\n"
        "import importlib.resources as other\n"
        "print(one is not other, one.read_text is other.read_text)\n"
        "print(one.files('relayout') / 'py.typed', one.files(sys.modules['json']).name)\n"
        "with one.as_file(other.files('json') / 'tool.py') as path:\n"
        "    print(path.name)"
    )
    first, second, third = answer("import relayout, json\n" + held).splitlines()
    assert first == "True True"
    assert second.endswith("/relayout/py.typed json")
    assert third == "tool.py"


def test_other_modules_that_are_there_stay():
    code = "import importlib.resources as one\n" + LOADED + "print(sys.modules['importlib.resources'] is one)"
    assert answer(code) == "True"


@pytest.mark.parametrize(
    ("imported", "used", "told"),
    [
        ("import importlib.resources", "importlib.resources.files('json').name", "json"),
        ("from importlib import resources", "resources.files('json').name", "json"),
        ("from importlib.resources import files", "files('relayout').joinpath('py.typed').is_file()", "True"),
        ("import importlib.resources.abc as one", "one.Traversable.__name__", "Traversable"),
    ],
)
def test_who_imports_it_meanwhile_has_what_the_module_has(imported: str, used: str, told: str) -> None:
    """Another thread, say, for other packages than llvmlite; and uses it when all is over."""
    code = "import relayout, importlib\nfrom relayout.targets.light import standing_in\n"
    assert answer(f"{code}with standing_in():\n    {imported}\nprint({used})") == told


def test_paths_of_llvmlite_can_do_what_paths_can() -> None:
    """Versions differ in what they ask of the path of their library."""
    code = (
        "import llvmlite\n"
        "from relayout.targets.light import standing_in\n"
        "with standing_in():\n"
        "    from importlib.resources import as_file, files\n"
        "with as_file(files('llvmlite') / '__init__.py') as path:\n"
        "    print(str(path) == llvmlite.__file__, path.exists(), path.parent.name)"
    )
    assert answer(code) == "True True llvmlite"
