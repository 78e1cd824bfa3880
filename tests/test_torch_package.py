"""``relayout.torch``, the package: when PyTorch is imported, and what is said where it is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import relayout as rl
from relayout import torch as package

WITHOUT = "import sys\nsys.modules['torch'] = None\n"  # importing it fails now


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stderr == ""
    return done.stdout


def test_importing_the_package_does_not_import_pytorch() -> None:
    code = "import sys, relayout, relayout.torch\nassert relayout.torch is sys.modules['relayout.torch']\n"
    assert run(code + "print('torch' in sys.modules, dir(relayout.torch) != [])") == "False True\n"


@pytest.mark.parametrize("name", package.__all__)
def test_without_pytorch_the_error_says_what_to_install(name: str) -> None:
    code = WITHOUT + "import relayout as rl\n"
    code += f"try:\n    rl.torch.{name}\nexcept rl.Unsupported as error:\n    print(error)\n"
    said = run(code)
    assert said.startswith(f"relayout.torch.{name} needs PyTorch")
    assert "pip install torch" in said


def test_without_pytorch_an_unknown_name_is_an_unknown_name() -> None:
    assert run(WITHOUT + "import relayout as rl\nprint(hasattr(rl.torch, 'nothing_of_it'))") == "False\n"


def test_no_name_is_that_of_a_module() -> None:
    """A module that is imported binds its own name in the package, over any other."""
    folder = Path(str(package.__file__)).parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir()}
    assert modules & set(package.__all__) == set()


def test_every_name_is_listed_and_there() -> None:
    pytest.importorskip("torch")
    assert sorted(package.__all__) == package.__all__
    assert set(package._WHERE) == set(package.__all__)
    for name, module in package._WHERE.items():
        assert getattr(rl.torch, name) is getattr(import_module(f"relayout.torch.{module}"), name)
