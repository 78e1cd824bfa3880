"""Primitives as another processor would get them: made in a process of their own, which runs none.

What a primitive is for a processor depends on caches, plans and formats of the whole process, so
:func:`drafts` starts one that takes itself for another machine from the start. Its kernels are texts
(:class:`Text`), and what it sends back is all that somebody needs who runs them elsewhere.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Draft", "Text", "drafts"]


class Text(NamedTuple):
    """A kernel that is not compiled."""

    ir: str
    name: str
    address: int = 1
    key: str = ""

    @property
    def engine(self) -> Text:
        """What owns its code; the empty key says that none is on disk."""
        return self


class Draft(NamedTuple):
    """A primitive for another processor."""

    operation: Any
    descs: dict[str, Any]
    steps: tuple[Any, ...]
    scratch: dict[str, int]
    constants: dict[str, bytes]
    said: str


def drafts(cpu: str, triple: str, seeds: Sequence[str]) -> list[Draft | None]:
    """What :func:`drawn.drawn` draws for these seeds; None: it is not done by kernels."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / "foreign.py"), cpu, triple, *seeds]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RELAYOUT_THREADS": "1"}
    made = subprocess.run(command, capture_output=True, check=False, env=given)
    assert made.returncode == 0, made.stderr.decode()[-2000:]
    found: list[Draft | None] = pickle.loads(made.stdout)
    return found


def _draft(seed: str) -> Draft | None:
    from random import Random

    from drawn import drawn

    made = drawn(Random(seed))
    program = made._compiled()
    if program is None:
        return None
    said = f"{seed}: {made!r}, {made.implementation}"
    constants = {name: data.tobytes() for name, data in program.constants.items()}
    return Draft(made.operation, dict(made.descs), program.steps, dict(program.scratch), constants, said)


def _main(cpu: str, triple: str, *seeds: str) -> None:
    from relayout.targets import machine as machines

    other = machines.machine(cpu, triple)
    machines.host = lambda: other

    import foreign
    from relayout.jit import compile as compile_
    from relayout.runtime import clock

    clock.cycles_per_second = lambda: 3e9  # which is measured otherwise

    def texts(problem: str, imported: int, make: Any, machine: Any) -> tuple[list[Any], str]:
        module = compile_._guarded(make(), machine)
        return [foreign.Text(module.ir, name) for name in module.names], module.note

    def compiled(ir: str, names: Sequence[str], machine: Any = None) -> dict[str, Any]:
        module = compile_._guarded(compile_.Module(ir, names), machine or other)
        return {name: foreign.Text(module.ir, name) for name in names}

    compile_.recalled, compile_.compiled = texts, compiled
    sys.stdout.buffer.write(pickle.dumps([foreign._draft(seed) for seed in seeds]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
