"""Contests within programs of several products and recurrences.

A recurrent layer is products of matrices and the kernel of all its steps; the gradient of an inner product's
source is a product between reorders. Which schedule of a product is fastest is the same question there as for
a primitive that is nothing but this product, and it has the same answer on disk
(:mod:`relayout.primitives.trials`). A recurrence is asked about in the same way
(:mod:`relayout.primitives.recurrence`)::

    Draft            what a program is made of, in order (relayout.primitives.drafting)
      Step           a kernel: there is one way to do this
      Part           a product or a recurrence, its buffers, and the contest about its problem
        |
        |-- program()    --->  Program     each part by the schedule that is known, else by the estimate
        `-- assembled()  --->  Contests    all contests that are not over; of a primitive what a Trial is
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

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout.forking import lock
from relayout.primitives.drafting import Draft, Part
from relayout.primitives.program import Program
from relayout.tensor import address

if TYPE_CHECKING:
    from relayout.primitives.program import Step

__all__ = ["Assembled", "Contests", "assembled"]

HOLDS = 1000  # calls that are more than any contest takes


class Assembled(NamedTuple):
    """A draft as a program."""

    program: Program
    contests: Contests | None
    """Those of its parts; None: there are none."""


def assembled(draft: Draft) -> Assembled:
    """The program, and the contests of its parts."""
    return Assembled(draft.program(), Contests(draft) if draft.trials else None)


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

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        parts = (one for one in draft.pieces if isinstance(one, Part) and one.trial is not None and one.holds)
        largest = sorted(parts, key=lambda part: -part.made.flops)
        self.problems = tuple(part.trial.problem for part in largest if part.trial is not None)
        self._pieces: list[tuple[Step | Part, Program]] = []
        self._frame: Program | None = None
        self._first = self._schedules()
        self._winner: _Made | None = None

    def _schedules(self) -> list[str]:
        return [trial.first for trial in self._draft.trials.values()]

    @property
    def done(self) -> bool:
        """Whether there is nothing left to measure."""
        return all(trial.done for trial in self._draft.trials.values())

    @property
    def winner(self) -> _Made | None:
        """The program made anew; None: it is the one that there was before."""
        with lock():
            if self._winner is None and self._schedules() != self._first:
                self._winner = _Made(self._draft.program())
            return self._winner

    def call(self, run: Callable[[Any], object]) -> bool:
        """Do one call of the program; False: no contest is left, and it is left to the caller."""
        if self.done:
            return False
        run(_Made(self._call))
        return True

    def hold(self, work: Callable[[], object]) -> None:
        """Hold all contests now: do the work, which uses :meth:`call`, until they are decided."""
        for trial in self._draft.trials.values():
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
                if not (isinstance(piece, Part) and piece.tried(known)):
                    program(known)
        finally:
            frame.give_back(scratch)

    def _begun(self) -> Program:
        """The scratch and the constants of all pieces; these are made when the first call needs them."""
        if self._frame is None:
            with lock():
                whole = self._draft.program()
                self._pieces = [(piece, Program(program.steps)) for piece, program in self._draft.programs()]
                self._frame = Program((), whole.scratch, whole.constants)
        return self._frame
