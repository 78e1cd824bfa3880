"""Programs while they are written: steps in order, and the buffers between them.

What a kernel reads and writes need not be what a primitive is given. So most programs have one outline,
whatever their kernels do::

    draft = Draft()
    source = draft.read(src, near, "src", "source")     the argument itself, or what it is reordered to first
    target = draft.write(dst, far, "dst", "target")     the result itself, or what is reordered to it last
    draft.add(kernel_step(what, entry, write, source, target, size))
    return draft.program("16 lanes")

Where there is no kernel for a step :class:`Impossible` is raised. :func:`if_possible` makes None of it, and
a primitive is done by its definition then.

Most steps can be done in one way. Products of matrices and recurrences have several schedules: they are
*parts* of a draft, each of which is done by the schedule that is known to be fastest, else by the estimate
(:mod:`relayout.primitives.several` has their contests).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar

from relayout.forking import locked
from relayout.primitives.program import Fault, Program, Step
from relayout.records import dataclass, field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from relayout.jit.abi import Kernel
    from relayout.layout.descriptor import MemoryDesc
    from relayout.reorder.native import Native
    from relayout.runtime.tuning import Trial
    from relayout.targets.machine import Machine

__all__ = [
    "Choosable",
    "Done",
    "Draft",
    "Impossible",
    "Part",
    "computing_step",
    "conversion_step",
    "if_possible",
    "joined",
    "kernel_of",
    "kernel_step",
    "moving_step",
    "renamed",
    "reorder_step",
    "zeros_step",
]

COMBINING = 2.0  # about how long it takes to combine elements, in times of a copy

P = ParamSpec("P")
T = TypeVar("T")


class Impossible(Exception):
    """There is no kernel for a step."""


def if_possible(lower: Callable[P, T]) -> Callable[P, T | None]:
    """The function, whose answer is None where there is no kernel for a step."""

    @wraps(lower)
    def answered(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return lower(*args, **kwargs)
        except Impossible:
            return None

    return answered


# -- steps --------------------------------------------------------------------------------------------------


@locked
def reorder_step(src: MemoryDesc, dst: MemoryDesc, source: str, target: str) -> Step | None:
    """A reorder as a step; None where there is no kernel for it."""
    from relayout.reorder.native import native

    made = native(src, dst)
    return None if made is None else conversion_step(made, source, target)


@locked
def conversion_step(made: Native, source: str, target: str, values: str = "") -> Step:
    """The kernels of a conversion as a step; ``values`` is the buffer with the values of attributes."""
    from relayout.runtime import threads
    from relayout.runtime.sharing import parts_of

    parts = parts_of(made.bytes, threads.count()) if made._divides else 1
    return Step(made._kernel, source, target, values or (), parts, made._shares)


@locked
def zeros_step(desc: MemoryDesc, target: str) -> Step | None:
    """A step that zeroes the padding of a tensor; None where there is no kernel for it."""
    from relayout.environment import LOADED
    from relayout.jit.compile import Module, recalled
    from relayout.kernels.copy.candidates import lowered
    from relayout.kernels.copy.module import module
    from relayout.kernels.copy.problem import zeros
    from relayout.targets.machine import host

    plans = lowered(zeros(desc.layout, desc.dtype.bits))
    if plans is None:
        return None
    side = desc.dtype.bits, desc.layout._key()
    [kernel], _ = recalled(repr(("zeros", side)), LOADED, lambda: Module(*module(plans, host())), host())
    return Step(kernel, target, target)


@locked
def kernel_of(what: object, entry: str, write: Callable[[Machine], str]) -> Kernel:
    """The function ``entry`` of a module: from memory, from disk, or compiled from what ``write`` returns.

    ``what`` prints all that the text depends on but for the processor.
    """
    from relayout.environment import LOADED
    from relayout.jit.compile import Module, recalled
    from relayout.targets.machine import host

    machine = host()
    [kernel], _ = recalled(repr(what), LOADED, lambda: Module(write(machine), [entry]), machine)
    return kernel


@locked
def moving_step(
    kernel: Kernel, source: str, target: str, operands: str | Sequence[str], size: int, times: float = 1.0
) -> Step:
    """A kernel that takes so many times as long as a copy of so many bytes; work is cut anywhere."""
    from relayout.runtime import threads
    from relayout.runtime.sharing import parts_of
    from relayout.runtime.thresholds import shares
    from relayout.targets.machine import host

    read = operands if isinstance(operands, str) else tuple(operands)
    parts = parts_of(size, threads.count())
    return Step(kernel, source, target, read, parts, parts > 1 and shares(host(), size, times=times))


def kernel_step(
    what: object,
    entry: str,
    write: Callable[[Machine], str],
    source: str,
    target: str,
    size: int,
    operands: Sequence[str] = (),
    times: float = COMBINING,
) -> Step:
    """Both at once: the kernel, found or made (:func:`kernel_of`), as a step (:func:`moving_step`)."""
    return moving_step(kernel_of(what, entry, write), source, target, operands, size, times)


@locked
def computing_step(
    kernel: Kernel, source: str, target: str, operands: Sequence[str], tasks: int, flops: int, size: int
) -> Step:
    """A kernel that takes as long as so many operations on so many bytes; work is cut between tasks."""
    from relayout.runtime import threads
    from relayout.runtime.sharing import computes_enough, parts_of_tasks

    parts = parts_of_tasks(tasks, size, threads.count())
    return Step(kernel, source, target, tuple(operands), parts, parts > 1 and computes_enough(flops, size))


# -- parts --------------------------------------------------------------------------------------------------


class Done(Protocol):
    """A part by one of its schedules, which it prints."""

    @property
    def program(self) -> Program:
        """Of buffers with names of its own."""

    def own(self) -> Program:
        """The same, with scratch of its own; its note is the schedule."""


class Choosable(Protocol):
    """What a part can be: a sum of products, a recurrence."""

    noun: ClassVar[str]
    """What a list of its schedules begins with, where a program has others, too."""

    @property
    def flops(self) -> int:
        """A multiplication and an addition are two."""

    def lowered(self, schedule: str = "") -> Done | None:
        """By the schedule that prints so, else by the estimate."""

    def trial(self) -> Trial[Any, Any] | None:
        """The contest among its schedules."""


@dataclass(frozen=True)
class Part:
    """What can be done by several schedules."""

    made: Choosable
    names: Mapping[str, str]
    """For each of its buffers (``src``, ``weights``, ``dst``, ``bias``) that of the program."""
    trial: Trial[Any, Done] | None
    """The contest about its problem; None: there is one schedule, or nothing may be measured."""
    holds: bool
    """Whether it takes part in the contest, and does not only take what that finds."""

    @locked
    def lowered(self) -> Done | None:
        """By the schedule that is known to be fastest, else by the estimate; None: there is no kernel."""
        known = "" if self.trial is None else self.trial.first
        return self.made.lowered(known) or self.made.lowered()

    @property
    def program(self) -> Program:
        """The same, of the buffers that it works on here."""
        return renamed(_there(self.lowered()).own(), self.names)

    def tried(self, known: Mapping[str, int]) -> bool:
        """Whether a contest has done it; ``known`` are the addresses of the program's buffers."""
        if self.trial is None or not self.holds:
            return False
        mine = {name: known[buffer] for name, buffer in self.names.items()}
        return self.trial.call(lambda done: done.program(mine))


# -- all together -------------------------------------------------------------------------------------------


@dataclass
class Draft:
    """What a program is made of, so far.

    Attributes
    ----------
    pieces, last : list
        Steps and parts in order, and those behind all of these.
    scratch, constants, faults
        As in a :class:`~relayout.primitives.program.Program`.
    trials : dict of str to Trial
        The contests of all parts, by problem.
    """

    pieces: list[Step | Part] = field(default_factory=list)
    last: list[Step | Part] = field(default_factory=list)
    scratch: dict[str, int] = field(default_factory=dict)
    constants: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    trials: dict[str, Trial[Any, Done]] = field(default_factory=dict)

    def add(self, step: Step | None) -> None:
        """One more step, if there is a kernel for it."""
        self.pieces.append(_there(step))

    def room(self, name: str, size: int) -> str:
        """A piece of scratch of at least so many bytes."""
        self.scratch[name] = max(size, self.scratch.get(name, 0))
        return name

    def room_for(self, name: str, desc: MemoryDesc) -> str:
        """A piece of scratch for a tensor."""
        return self.room(name, max(desc.required_bytes, desc.nbytes))

    def reorder(self, src: MemoryDesc, dst: MemoryDesc, source: str, target: str) -> None:
        """A reorder from buffer to buffer."""
        self.add(reorder_step(src, dst, source, target))

    def zeros(self, desc: MemoryDesc, target: str) -> None:
        """Zeros in the padding of a tensor, if it has any."""
        if desc.layout.has_padding:
            self.add(zeros_step(desc, target))

    def read(self, given: MemoryDesc, wanted: MemoryDesc, name: str, other: str) -> str:
        """The buffer with an argument as it is wanted: its own, or scratch that it is reordered to."""
        if wanted == given:
            return name
        self.reorder(given, wanted, name, self.room_for(other, wanted))
        return other

    def write(self, given: MemoryDesc, made: MemoryDesc, name: str, other: str) -> str:
        """The buffer where a result is written as it is made: its own, or scratch that is reordered last.

        Kernels write no padding, so in its own buffer that is zeroed first.
        """
        if made == given:
            self.zeros(given, name)
            return name
        self.last.append(_there(reorder_step(made, given, self.room_for(other, made), name)))
        return other

    def append(self, program: Program | None, names: Mapping[str, str] | None = None) -> None:
        """All of another program, whose scratch dies before the next one begins."""
        program = renamed(_there(program), names) if names else _there(program)
        self.pieces += program.steps
        self._own(program)

    @locked
    def part(self, made: Choosable, names: Mapping[str, str]) -> None:
        """What can be done by several schedules: by one of them."""
        trial, holds = made.trial(), True
        if trial is not None:
            holds = trial.problem not in self.trials
            trial = self.trials.setdefault(trial.problem, trial)
        part = Part(made, names, trial, holds)
        _there(part.lowered())
        self.pieces.append(part)

    def _own(self, program: Program) -> None:
        self.constants |= program.constants
        self.faults += program.faults
        for name, size in program.scratch.items():
            self.room(name, size)

    def program(self, note: str = "") -> Program:
        """The program. Without a note it says by which schedules its parts are done.

        Scratch of a part is dead when the next step begins, and that of all parts is the same.
        """
        steps: list[Step] = []
        whole = Draft(scratch=dict(self.scratch), constants=dict(self.constants), faults=list(self.faults))
        notes: dict[str, dict[str, None]] = {}
        for piece in (*self.pieces, *self.last):
            if isinstance(piece, Step):
                steps.append(piece)
                continue
            program = piece.program
            steps += program.steps
            whole._own(program)
            notes.setdefault(piece.made.noun, {})[program.note] = None
        words = [(noun if len(notes) > 1 else "") + "; ".join(notes[noun]) for noun in sorted(notes)]
        note = note or "; ".join(words)
        return Program(tuple(steps), whole.scratch, whole.constants, tuple(whole.faults), note=note)

    def programs(self) -> Iterator[tuple[Step | Part, Program]]:
        """Each piece as a program of its own."""
        for piece in (*self.pieces, *self.last):
            yield piece, Program((piece,)) if isinstance(piece, Step) else piece.program


def _there(given: T | None) -> T:
    if given is None:
        raise Impossible
    return given


def renamed(program: Program, names: Mapping[str, str]) -> Program:
    """The same program of buffers with other names."""

    def of(name: str) -> str:
        return names.get(name, name)

    steps = tuple(
        step._replace(
            source=of(step.source),
            target=of(step.target),
            operands=of(step.operands) if isinstance(step.operands, str) else tuple(map(of, step.operands)),
        )
        for step in program.steps
    )
    scratch = {of(name): size for name, size in program.scratch.items()}
    constants = {of(name): data for name, data in program.constants.items()}
    faults = tuple(fault._replace(buffer=of(fault.buffer)) for fault in program.faults)
    return Program(steps, scratch, constants, faults, note=program.note)


@if_possible
def joined(*programs: Program | None, note: str = "", scratch: Mapping[str, int] | None = None) -> Program:
    """One program after the other, and further scratch; None if one is None. Equal names are one buffer."""
    draft = Draft(scratch=dict(scratch or {}))
    for program in programs:
        draft.append(program)
    return draft.program(note)
