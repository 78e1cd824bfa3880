"""Programs of several products and recurrences, each of which has a contest of its own.

A recurrent layer is products of matrices and the kernel of all its steps; the gradient of an inner product's
source is a product between reorders. Which schedule of a product is fastest is the same question there as for
a primitive that is nothing but this product, and it has the same answer on disk
(:func:`relayout.primitives.products.trial_of`). A recurrence is asked about in the same way
(:mod:`relayout.primitives.recurrence`)::

    Steps            what a program is made of, in order
      Step           a kernel: there is one way to do this
      Part           a product or a recurrence, its buffers, and the contest about its problem
        |
        |-- program()   --->  Program     each part by the schedule that is known, else by the estimate
        `-- contests()  --->  Contests    all contests that are not over; of a primitive what a Trial is
                                |
                                |  one call: steps as they are; each part by the schedule whose turn it is
                                v
                              winner      the program made anew, when the last contest is over

Each part is timed alone, but where it stands: with its operands in those caches where the kernel in front of
it has left them. One call serves all contests. Which schedule a part takes changes no bit of what it writes,
so every call of a contest is a call like others.

Parts that differ in where their buffers begin, such as the gates of a layer one by one, its directions, or
layers of one width, have one problem. The first of them holds the contest, the others take what it has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from relayout.forking import lock, locked
from relayout.primitives.lowering import renamed
from relayout.primitives.program import Program, Step
from relayout.tensor import address

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from relayout.layout.descriptor import MemoryDesc
    from relayout.runtime.tuning import Trial

__all__ = ["Assembled", "Choosable", "Contests", "Done", "Impossible", "Part", "Steps"]

HOLDS = 1000  # calls that are more than any contest takes


class Impossible(Exception):
    """There is no kernel for a step."""


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

    def tried(self, known: Mapping[str, int]) -> bool:
        """Whether a contest has done it; ``known`` are the addresses of the program's buffers."""
        if self.trial is None or not self.holds:
            return False
        mine = {name: known[buffer] for name, buffer in self.names.items()}
        return self.trial.call(lambda done: done.program(mine))


@dataclass
class Steps:
    """What a program is made of, so far."""

    pieces: list[Step | Part] = field(default_factory=list)
    scratch: dict[str, int] = field(default_factory=dict)
    constants: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    trials: dict[str, Trial[Any, Done]] = field(default_factory=dict)
    """The contests of all parts, by problem."""

    def add(self, step: Step | None) -> None:
        """One more, if there is a kernel for it."""
        if step is None:
            raise Impossible
        self.pieces.append(step)

    def room(self, name: str, size: int) -> str:
        """A piece of scratch of at least so many bytes."""
        self.scratch[name] = max(size, self.scratch.get(name, 0))
        return name

    @locked
    def reorder(self, src: MemoryDesc, dst: MemoryDesc, source: str, target: str) -> None:
        """A reorder from buffer to buffer."""
        from relayout.primitives.lowering import reorder_step

        self.add(reorder_step(src, dst, source, target))

    def append(self, program: Program, names: Mapping[str, str]) -> None:
        """All of another program, whose scratch dies before the next one begins."""
        program = renamed(program, names)
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
        if part.lowered() is None:
            raise Impossible
        self.pieces.append(part)

    def _own(self, program: Program) -> None:
        self.constants |= program.constants
        for name, size in program.scratch.items():
            self.room(name, size)

    # -- what comes of it -----------------------------------------------------------------------------------

    def program(self) -> Program:
        """The program.

        Scratch of a part is dead when the next step begins, and that of all parts is the same.
        """
        steps: list[Step] = []
        whole = Steps(scratch=dict(self.scratch), constants=dict(self.constants))
        notes: dict[str, dict[str, None]] = {}
        for piece, program in self._programs():
            steps += program.steps
            whole._own(program)
            if isinstance(piece, Part):
                notes.setdefault(piece.made.noun, {})[program.note] = None
        words = [(noun if len(notes) > 1 else "") + "; ".join(notes[noun]) for noun in sorted(notes)]
        return Program(tuple(steps), whole.scratch, whole.constants, note="; ".join(words))

    def _programs(self) -> Iterator[tuple[Step | Part, Program]]:
        """Each piece as a program of its own."""
        for piece in self.pieces:
            if isinstance(piece, Step):
                yield piece, Program((piece,))
                continue
            lowered = piece.lowered()
            if lowered is None:
                raise Impossible
            yield piece, renamed(lowered.own(), piece.names)

    def assembled(self) -> Assembled:
        """The program, and the contests of its parts."""
        return Assembled(self.program(), Contests(self) if self.trials else None)


class Assembled(NamedTuple):
    """Steps, as a program."""

    program: Program
    contests: Contests | None
    """Those of its parts; None: there are none."""


class _Made(NamedTuple):
    """What a :class:`~relayout.runtime.tuning.Trial` hands out: something that is called with addresses."""

    program: Callable[[Mapping[str, int]], None]


class Contests:
    """The contests of a program's parts; for a primitive it is what the contest of a lone product is.

    Attributes
    ----------
    problems : tuple of str
        What they are about, the part with the most operations first.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        parts = (one for one in steps.pieces if isinstance(one, Part) and one.trial is not None and one.holds)
        largest = sorted(parts, key=lambda part: -part.made.flops)
        self.problems = tuple(part.trial.problem for part in largest if part.trial is not None)
        self._pieces: list[tuple[Step | Part, Program]] = []
        self._frame: Program | None = None
        self._first = self._schedules()
        self._winner: _Made | None = None

    def _schedules(self) -> list[str]:
        return [trial.first for trial in self._steps.trials.values()]

    @property
    def done(self) -> bool:
        """Whether there is nothing left to measure."""
        return all(trial.done for trial in self._steps.trials.values())

    @property
    def winner(self) -> _Made | None:
        """The program made anew; None: it is the one that there was before."""
        with lock():
            if self._winner is None and self._schedules() != self._first:
                self._winner = _Made(self._steps.program())
            return self._winner

    def call(self, run: Callable[[Any], object]) -> bool:
        """Do one call of the program; False: no contest is left, and it is left to the caller."""
        if self.done:
            return False
        run(_Made(self._call))
        return True

    def hold(self, work: Callable[[], object]) -> None:
        """Hold all contests now: do the work, which uses :meth:`call`, until they are decided."""
        for trial in self._steps.trials.values():
            trial.due()
        for _ in range(HOLDS):
            over = self.done
            work()  # the one behind the last call of a contest takes the winner
            if over:
                return

    def _call(self, addresses: Mapping[str, int]) -> None:
        frame = self._begun()
        scratch = frame.take()
        try:
            known = dict(addresses)
            for buffers in (frame.constants, scratch):
                known.update((name, address(data)) for name, data in buffers.items())
            for piece, program in self._pieces:
                if isinstance(piece, Step) or not piece.tried(known):
                    program(known)
        finally:
            frame.give_back(scratch)

    def _begun(self) -> Program:
        """The scratch and the constants of all pieces; these are made when the first call needs them."""
        if self._frame is None:
            with lock():
                whole = self._steps.program()
                self._pieces = [(piece, Program(program.steps)) for piece, program in self._steps._programs()]
                self._frame = Program((), whole.scratch, whole.constants)
        return self._frame
