"""From a sequence to machine words: what is called with which addresses.

Three steps, each of which only adds to what the one before it found:

1. *Storages* (:mod:`relayout.primitives.storages`): who writes where.
2. *Places.* All primitives are lowered to programs. The storages of the arena and the scratch of the programs
   get offsets (:mod:`relayout.primitives.memory`); scratch lives for one layer only.
3. *Image.* The calls of all programs are written down as rows for :mod:`relayout.runtime.driver`, as a linker
   writes a program: each word is a number to which the address of something is added once that is known ::

       row       kernel      source      target      operands     parts   threads
       base      kernel 5    arena       output 0    the image    0       0
       number    0           4096        0           1280         8       2

   So the image does not depend on where tensors are, nor kernels and constants; each call of a run adds the
   bases anew. Another process can use it again (:mod:`relayout.primitives.images`), which saves the second
   step and the third.

A primitive without a program, one that has only a definition, is called from Python; the rows before it and
behind it are a *segment* each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relayout.jit.background import meanwhile
from relayout.primitives import images, plain
from relayout.primitives.memory import Memory, Span, arranged
from relayout.primitives.packing import Packing
from relayout.primitives.storages import Item, Storage, arena_of, laid_out, note_uses, stored
from relayout.processors import limited
from relayout.records import dataclass, field
from relayout.runtime import threads as sharing
from relayout.runtime.driver import ROW
from relayout.tensor import address

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.jit.abi import Kernel
    from relayout.primitives.lent import Moved
    from relayout.primitives.program import Fault, Program, Step
    from relayout.primitives.values import Nodes, Value

__all__ = ["ARENA", "IMAGE", "OTHERS", "Schedule", "Segment", "linked", "scheduled"]

NOTHING, IMAGE, ARENA, OTHERS = range(4)
"""Numbers of bases: 0, the image itself, the arena, and from there on inputs, outputs, and what is fixed."""

WORD = 8  # bytes


class Segment(NamedTuple):
    """What is done without a break: the rows of some items, or one item in Python, which has none."""

    items: list[Item]
    rows: range
    in_python: bool = False


@dataclass
class Schedule:
    """A sequence, ready to be run.

    Attributes
    ----------
    inputs, outputs : list of Value
        As in the sequence.
    items : list of Item
        What is run, in order.
    constants : dict of int to ndarray
        The bytes of constant values, by their numbers.
    memory : Memory
        How the arena is used.
    bases, numbers : ndarray of int64
        The image: for each word the number of a base, and what is added to it.
    segments : list of Segment
        What is done.
    asked : int or None
        How many threads may work; None: as many as a process is told to use.
    threads : int
        The most threads that a row asks for.
    fixed : list of Kernel or ndarray
        Kernels and constants, whose addresses are the last bases.
    faults : list of (int, int, Fault)
        What items may find wrong: their numbers, and where in the arena they say so.
    moved : dict of int to Moved
        How constants are moved that come from memory that was lent.
    """

    inputs: list[Value]
    outputs: list[Value]
    items: list[Item]
    constants: dict[int, NDArray[np.uint8]]
    memory: Memory
    bases: NDArray[np.int64]
    numbers: NDArray[np.int64]
    segments: list[Segment]
    asked: int | None
    threads: int
    fixed: list[Kernel | NDArray[np.uint8]]
    faults: list[tuple[int, int, Fault]]
    moved: dict[int, Moved] = field(default_factory=dict)

    def addresses(self) -> list[int]:
        """Those of all that is fixed."""
        return [address(one) if isinstance(one, np.ndarray) else one.address for one in self.fixed]


def scheduled(
    sequence: Nodes, threads: int | None, progress: Callable[[int, int, str], None] | None = None
) -> Schedule:
    """Do all three steps."""
    items = stored(sequence)
    with Packing() as packing:
        constants, moved = laid_out(sequence, items, packing)
        made = linked(list(sequence.inputs), list(sequence.outputs), items, constants, threads, progress)
    made.moved = moved
    return made


def linked(
    inputs: list[Value],
    outputs: list[Value],
    items: list[Item],
    constants: dict[int, NDArray[np.uint8]],
    threads: int | None,
    progress: Callable[[int, int, str], None] | None = None,
    *,
    anew: bool = False,
    text: str | None = None,
    check: Callable[[], object] | None = None,
) -> Schedule:
    """Do the last two steps, or recall what an earlier process has found.

    Parameters
    ----------
    inputs, outputs, items, constants, threads
        See :class:`Schedule`.
    progress : callable, optional
        Called with the number of items that are done, that of all, and the name of the next one.
    anew : bool
        Whether nothing is recalled.
    text : str, optional
        What :func:`relayout.primitives.plain.written` says of all that, if the caller knows.
    check : callable, optional
        Called before items are looked at, unless they were looked at in an earlier process.
    """
    many = sharing.count(threads)
    if text is None:
        text = plain.written_if_plain(inputs, outputs, items, constants)
    found = None if anew or text is None else images.recalled(text, many, list(constants.values()))
    if found is None:
        if check is not None:
            check()
        note_uses(items)
        programs = []
        with limited(threads), meanwhile():  # what is recalled must not depend on who made it
            for k, item in enumerate(items):
                if progress is not None:
                    progress(k, len(items), item.name)
                programs.append(item.primitive._compiled())
                item.implementation = item.primitive.implementation
        memory, scratch = _places(items, programs)
        image = _Image(items, programs, scratch, constants, len(inputs) + len(outputs), len(inputs), many)
        bases, words = image.made()
        fixed = image.fixed
        faults = [
            (k, scratch[k][fault.buffer], fault)
            for k, program in enumerate(programs)
            for fault in (program.faults if program is not None else ())
        ]
        if text is not None:
            kept = [(one.rows.start, one.rows.stop, one.in_python, one.implementation) for one in items]
            sizes = [one.size for one in arena_of(items)]
            found = images.Image(memory, sizes, kept, bases, words, fixed, faults)
            images.keep(text, many, found, list(constants.values()))
    else:
        memory, bases, words = found.memory, found.bases, found.words
        fixed, faults = found.fixed, found.faults
        for one, offset, size in zip(arena_of(items), memory.offsets, found.sizes, strict=False):
            one.number, one.size = offset, size
        for item, (start, stop, item.in_python, item.implementation) in zip(items, found.items, strict=True):
            item.rows = range(start, stop)
    if progress is not None:
        progress(len(items), len(items), "")
    segments = _segments(items)
    return Schedule(
        inputs, outputs, items, constants, memory, bases, words, segments, threads, many, fixed, faults
    )


def _segments(items: list[Item]) -> list[Segment]:
    """What is done without a break."""
    segments: list[Segment] = []
    for item in items:
        if item.in_python:
            segments.append(Segment([item], item.rows, True))
            continue
        if not segments or segments[-1].in_python:
            segments.append(Segment([], item.rows))
        before = segments.pop()
        segments.append(Segment([*before.items, item], range(before.rows.start, item.rows.stop)))
    return segments


# -- places -------------------------------------------------------------------------------------------------


def _places(items: list[Item], programs: list[Program | None]) -> tuple[Memory, list[dict[str, int]]]:
    """Give the storages of the arena and all scratch their offsets; those of scratch by name."""
    storages = arena_of(items)
    end = len(items) - 1
    pieces = [
        (k, name, Span(size, *((0, end) if name in program.lasting else (k, k))))
        for k, program in enumerate(programs)
        if program is not None
        for name, size in program.scratch.items()
    ]
    spans = [Span(one.size, one.first, one.last) for one in storages]
    memory = arranged([*spans, *(span for _, _, span in pieces)])
    for one, offset in zip(storages, memory.offsets, strict=False):
        one.number = offset
    scratch: list[dict[str, int]] = [{} for _ in items]
    for (k, name, _), offset in zip(pieces, memory.offsets[len(storages) :], strict=True):
        scratch[k][name] = offset
    return memory, scratch


# -- the image ----------------------------------------------------------------------------------------------


class _Word(NamedTuple):
    """A number that a base is added to."""

    base: int
    number: int


class _Image:
    """Writes rows, and behind them the lists of addresses that kernels get as operands."""

    def __init__(
        self,
        items: list[Item],
        programs: list[Program | None],
        scratch: list[dict[str, int]],
        constants: Mapping[int, NDArray[np.uint8]],
        others: int,
        inputs: int,
        threads: int,
    ) -> None:
        self.items, self.programs, self.scratch, self.constants = items, programs, scratch, constants
        self.others, self.inputs, self.threads = others, inputs, threads
        self.fixed: list[Kernel | NDArray[np.uint8]] = []
        self._fixed: dict[int, int] = {}
        self.rows: list[_Word] = []
        self.lists: list[_Word] = []
        self.lists_at = WORD * ROW * sum(len(program.steps) for program in programs if program is not None)

    def made(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The bases and the numbers of all words; items are told their rows."""
        for item, program, scratch in zip(self.items, self.programs, self.scratch, strict=True):
            start, item.in_python = len(self.rows) // ROW, program is None
            if program is not None:
                known = self._known(item, program, scratch)
                for step in program.steps:
                    self._row(step, known)
            item.rows = range(start, len(self.rows) // ROW)
        words = np.array([*self.rows, *self.lists], np.int64).reshape(-1, 2)
        return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])

    def _known(self, item: Item, program: Program, scratch: Mapping[str, int]) -> dict[str, _Word]:
        """Where the buffers of a program are, by name."""
        known = {name: self._place(storage) for name, storage in item.storages.items()}
        known |= {name: self._at(data) for name, data in program.constants.items()}
        known |= {name: _Word(ARENA, offset) for name, offset in scratch.items()}
        return known

    def _place(self, storage: Storage) -> _Word:
        if storage.where == "arena":
            return _Word(ARENA, storage.number)
        if storage.where == "constant":
            return self._at(self.constants[storage.number])
        first = OTHERS if storage.where == "input" else OTHERS + self.inputs
        return _Word(first + storage.number, 0)

    def _at(self, what: Kernel | NDArray[np.uint8]) -> _Word:
        """The address of a kernel or a constant."""
        if id(what) not in self._fixed:
            self._fixed[id(what)] = OTHERS + self.others + len(self.fixed)
            self.fixed.append(what)
        return _Word(self._fixed[id(what)], 0)

    def _row(self, step: Step, known: Mapping[str, _Word]) -> None:
        operands = _Word(NOTHING, 0)
        if isinstance(step.operands, str):
            operands = known[step.operands]
        elif step.operands:
            operands = _Word(IMAGE, self.lists_at + WORD * len(self.lists))
            self.lists.extend(known[name] for name in step.operands)
        many = min(self.threads, step.parts) if step.shared else 1
        parts = step.parts if many > 1 else 1
        numbers = [_Word(NOTHING, number) for number in (parts, many, 0, 0)]
        sides = [
            _Word(base, number + shift)
            for (base, number), shift in zip((known[step.source], known[step.target]), step.at, strict=True)
        ]
        self.rows += [self._at(step.kernel), *sides, operands, *numbers]
