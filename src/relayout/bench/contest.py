"""Whole networks in turns: each contestant in a process of its own.

A thread pool that spins, an allocator that keeps memory, a library that binds threads to processors: in
one process they disturb each other. Here everybody has a process, is asked for one timing in each round, and
its threads sleep before the next is asked. A process that has come to its first result in fresh memory, with
caches on disk warm, also says how long that took since it was started, and how much memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which
from typing import Any, Final

import numpy as np

from relayout.bench.load import Load, disturbed, spent
from relayout.bench.measure import OURS, figures, in_rounds
from relayout.bench.models import Entry, ModuleEntry, Result, StepEntry, difference

__all__ = [
    "COMPILED",
    "PEERS",
    "SAVED",
    "Contestant",
    "apart",
    "contest",
    "fresh",
    "installed",
    "rest",
    "taking_part",
    "timed",
]

COMPILED: Final = "torch.compile"
PEERS: Final[dict[str, str]] = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino", COMPILED: "torch"}
"""The others, and their packages."""

OURS_REAL: Final = "Relayout, f32"
"""Relayout with the same network in f32, where it is narrower."""

OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "f32": (),
    "bf16": (OURS_REAL,),
    "int8": ("OpenVINO, bf16", OURS_REAL),
}
"""Who takes part besides the peers that can compute in a type, for each."""

ABLE: Final[dict[str, tuple[str, ...]]] = {
    "f32": ("ONNX Runtime", "OpenVINO", COMPILED),
    "bf16": ("OpenVINO", COMPILED),
    "int8": ("ONNX Runtime", "OpenVINO"),
}
"""Of the peers, those that compute in a type: ONNX Runtime has no convolutions of bf16 here, and PyTorch's
quantised networks come from elsewhere."""

SAVED: Final = "Relayout, saved"
"""A run that was saved, loaded by another process: its start and memory."""

PATIENCE: Final = 600.0
"""Seconds until a first result: a compiler may take minutes for a network."""

SCRIPT: Final = Path(__file__).with_name("contestant.py")


def installed() -> dict[str, str | None]:
    """The version of each other contestant; None where it is not installed, or lacks a compiler."""
    found = {name: _version(package) for name, package in PEERS.items()}
    if not (which(os.environ.get("CXX", "c++")) or which("g++") or which("clang++")):
        found[COMPILED] = None
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Contestant:
    """A contestant's process; a call asks for a timing.

    Parameters
    ----------
    name : str
        Who.
    entry : Entry, StepEntry or ModuleEntry
        The network, and how many threads it may use.
    outputs : Path, optional
        Where it writes its results.
    environment : mapping of str to str, optional
        Variables that it has besides those of this process.

    Attributes
    ----------
    start : float
        Seconds from the start of the process to the first result.
    told : mapping
        What it said then.
    refused : str
        Why it can't do this network; empty where it can.
    rests : bool
        Whether its threads came to rest after each timing; else they took cores from whoever was next.
    """

    def __init__(
        self,
        name: str,
        entry: Entry | StepEntry | ModuleEntry,
        outputs: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.rests = name, True
        task = {**asdict(entry), "contestant": name, "outputs": outputs and str(outputs)}
        task = {key: str(one) if isinstance(one, Path) else one for key, one in task.items()}
        variables = {**os.environ, "OMP_NUM_THREADS": str(entry.threads), "HF_HUB_OFFLINE": "1"}
        variables |= environment or {}
        command = (
            [sys.executable, "-P", str(SCRIPT)]
            if sys.version_info >= (3, 11)
            else [sys.executable, str(SCRIPT)]
        )
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables,
            start_new_session=True,
        )
        self.told = self._answer()
        self.refused = self.told.get("refused", "")
        self.start = self.told.get("ready", begun) - begun

    def __call__(self) -> float:
        """Seconds of a call."""
        told = self._asked("time")
        self.rests = self.rests and bool(told.get("rests", True))
        return float(told["seconds"])

    @property
    def spent(self) -> float:
        """Seconds of work on all cores, of all its threads; 0 where the system does not tell."""
        return spent(self._process.pid)

    def does(self, what: str) -> bool:
        """Ask it for something besides; whether it could."""
        return "refused" not in self._asked(what)

    def turns(self, to: Mapping[str, Any]) -> None:
        """Let it go on with another setting of its network; what it says of it is told from then on.

        Parameters
        ----------
        to : mapping
            What is to be as it says there: ``batch``, ``threads``, ``outputs``.
        """
        self.rests, self.told = True, self._asked(f"turn {json.dumps(to)}")
        self.refused = self.told.get("refused", "")

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.communicate()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, what: str) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(what.encode() + b"\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = b""
        if select.select([self._process.stdout], [], [], PATIENCE)[0]:
            line = self._process.stdout.readline()
        if line:
            found: Mapping[str, Any] = json.loads(line)
            return found
        self.close()
        if self._process.returncode == -signal.SIGKILL:
            return {"refused": f"no answer within {PATIENCE:g} s, or ended by the system"}
        return {"refused": f"its process ended with status {self._process.returncode}"}


def contest(entry: Entry, peers: list[str], rounds: int, seconds: float) -> Result:
    """Let all contestants run a network.

    Parameters
    ----------
    entry : Entry
        The network, its batch and how many threads everybody has.
    peers : list of str
        The others: names of :data:`PEERS`.
    rounds, seconds : int, float
        Rounds at most, and the time for them.

    Returns
    -------
    Result
        Whoever could not do it is in ``refused``.
    """
    result = Result(entry.title, entry.threads, entry.batch)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        taking: dict[str, Contestant] = {}
        for name in (OURS, *taking_part(entry, peers)):
            one = Contestant(name, entry, Path(folder, f"{name}.npz"))
            stack.enter_context(one)
            if one.refused:
                result.refused[name] = one.refused
            else:
                taking[name] = one
        if not taking:
            return result
        saved = Path(folder, "saved.relayout")
        if OURS in taking:
            taking[OURS].does("tune")
        result.difference = _difference(Path(folder), list(taking))
        timed(result, taking, rounds, seconds)
        if OURS in taking and taking[OURS].does(f"save {saved}"):
            with Contestant(OURS, replace(entry, model=saved)) as one:
                if not one.refused:
                    fresh(result, SAVED, one)
        for name, one in taking.items():
            one.close()
            if name in (OURS, COMPILED):  # what they have on disk was not there before
                with Contestant(name, entry) as again:
                    one = one if again.refused else again
            fresh(result, name, one)
            if name == OURS:
                result.conversions, result.defined = one.told["conversions"], int(one.told["defined"])
    return result


def taking_part(entry: Entry, peers: Sequence[str]) -> list[str]:
    """Those who compute a network in its type, besides ours."""
    able = [name for name in peers if name in ABLE[entry.kind]]
    others = [name for name in OTHERS[entry.kind] if name == OURS_REAL or name.partition(",")[0] in peers]
    module = COMPILED if entry.file else ""  # it takes modules of PyTorch, not files
    real = OURS_REAL if entry.kind == "int8" and entry.real is None else ""
    return [name for name in (*able, *others) if name not in (module, real)]


def timed(result: Any, taking: dict[str, Contestant], rounds: int, seconds: float, least: int = 1) -> None:
    """Time all in turns: seconds, ratios to ours, and whether others disturbed, into the result."""
    load = Load(lambda: sum(one.spent for one in taking.values()))
    samples = in_rounds(taking, rounds, seconds, 1, [OURS] if OURS in taking else [], least)
    result.disturbed = disturbed(result.threads, load.others()) or not rest(taking)
    told = figures(samples, OURS if OURS in taking else next(iter(taking)))
    result.seconds, result.behind = told["seconds"], told["ratios"] if OURS in taking else {}


def fresh(result: Result, name: str, one: Contestant) -> None:
    """What a fresh process says of its start and memory."""
    result.start[name] = one.start
    result.peak[name], result.resident[name] = (one.told["memory"][key] for key in ("peak", "resident"))


def rest(taking: Mapping[str, Contestant]) -> bool:
    """Whether nobody's threads were still spinning in the turn of another one."""
    return len(taking) < 2 or all(one.rests for one in taking.values())


def _difference(folder: Path, names: list[str]) -> float | None:
    """Of our outputs from those of the first other contestant that reads the same file."""
    others = [name for name in names if name not in (OURS, OURS_REAL, COMPILED)]
    return apart(folder, others[0]) if OURS in names and others else None


def apart(folder: Path, other: str) -> float:
    """How far our outputs are from another's, of the files that both have written."""
    several = []
    for name in (OURS, other):
        with np.load(folder / f"{name}.npz") as file:
            several.append([file[key] for key in file.files])
    return difference(*several) if len(several[0]) == len(several[1]) else float("inf")
