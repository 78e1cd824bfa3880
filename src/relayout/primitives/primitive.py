"""What all primitives are: an operation, the formats chosen for it, and the kernels that do it.

::

    operation     attributes, named inputs and outputs, definition           relayout.ops.operation
    candidate     a format for each input and output, with its cost          relayout.primitives.candidates
    executable    kernels, scratch and constants                             relayout.primitives.program

The constructor of a kind checks its arguments, decides every ``any``, and ends with
:meth:`Primitive._settle`, which makes the operation: what is read and written, by name, and what that means.
Optional results, such as the workspace of a pooling in training, are outputs only of those primitives that
were made with them. The rest of a kind is

``_lower()``
    The :class:`~relayout.primitives.program.Program` that computes the same. None: there is no kernel for
    this, or the host forbids machine code; then the definition itself is run.

A primitive that is called often is called in another way, see :mod:`relayout.primitives.calling`: in a tenth
of the time, with what the checks here would let pass.

A primitive is pickled and copied as what it was made of: descriptors, parameters and post-ops. Kernels and
their addresses stay behind.

A child that is forked while a primitive is being lowered must not find that half done, so lowering happens
under :func:`relayout.forking.lock`, once: at the first call, or when the implementation is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from inspect import Signature, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from relayout.errors import LayoutError, counted
from relayout.exchange import pytorch
from relayout.forking import lock, locked
from relayout.jit.floating import Usual
from relayout.layout.layout import whole_number
from relayout.reorder import reorder
from relayout.reorder.arguments import Argument, bound, check_apart
from relayout.tensor import Tensor, allocate, located, sampled, tensor

if TYPE_CHECKING:
    from typing_extensions import Self

    from relayout.layout.descriptor import MemoryDesc
    from relayout.ops.operation import Operation
    from relayout.ops.post_ops import PostOp
    from relayout.primitives.calling import Calling
    from relayout.primitives.candidates import Candidate
    from relayout.primitives.program import Program
    from relayout.primitives.several import Assembled, Contests
    from relayout.runtime.tuning import Choice, Trial

__all__ = ["Primitive", "results_by_name"]

DEFINITION = "definition (NumPy)"


class _OfConstructor:
    """The signature of a kind, which tools would look up in ``__new__`` otherwise, once somebody asks."""

    def __get__(self, made: object, kind: type) -> Signature:
        return _signature(kind)


@cache
def _signature(kind: type) -> Signature:
    own = signature(kind.__init__)  # type: ignore[misc]
    return own.replace(parameters=list(own.parameters.values())[1:])


class Primitive:
    """Base of all primitives; see the module's docstring for what a subclass gives.

    Attributes
    ----------
    kind : str
        What it is called.
    inputs : tuple of str
        The names of the arguments that are read, in the order of a call.
    outputs : tuple of str
        The names of the results, in the order in which they are returned.
    accumulates : tuple of str
        The outputs to which results are added: what they held takes part.
    in_place : mapping of str to tuple of str
        For an output the inputs that it may be: same descriptor, same memory.
    descs : dict of str to MemoryDesc
        The descriptors of inputs and outputs, with every ``any`` decided. Each is an attribute, too, and so
        are the attributes of the operation.
    operation : Operation
        What is computed, apart from formats.
    post_ops : tuple
        What follows, with the formats of operands decided.
    """

    __signature__ = _OfConstructor()
    kind: ClassVar[str] = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("dst",)
    accumulates: tuple[str, ...] = ()
    in_place: Mapping[str, tuple[str, ...]] = {}
    descs: dict[str, MemoryDesc]
    operation: Operation
    post_ops: tuple[PostOp, ...] = ()
    _program: Program | None = None
    _arguments: dict[str, Argument] | None = None
    _calling: Calling | None = None
    _trial: Trial[Any, Any] | Contests | None = None
    """The contest among its schedules, or those of its parts, as long as there is something to measure."""
    _problems: tuple[str, ...] = ()
    """What contests are about, the largest problem first; none: there is nothing to choose."""
    _lowered = False
    _made_of: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    """What the constructor was given."""
    _workings: ClassVar[frozenset[str]] = frozenset(
        ("_program", "_arguments", "_calling", "_trial", "_problems", "_lowered")
    )
    """Attributes that lowering sets. Their classes have what they are before."""

    def __new__(cls, *given: object, **named: object) -> Self:
        """Say which argument was meant by a name that there is not, such as PyTorch's ``stride``."""
        for name in named:
            known = cls.__signature__.parameters
            if name not in known:
                with lock():
                    from difflib import get_close_matches
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise TypeError(f"{cls.__name__} has no argument {name!r}; {hint}")
        self = super().__new__(cls)
        self._made_of = given, named
        return self

    def __getattr__(self, name: str) -> Any:
        descs, operation = (self.__dict__.get(one) for one in ("descs", "operation"))
        if descs is not None and name in descs:
            return descs[name]
        if operation is not None and name in operation.attributes:
            return getattr(operation, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """What it was made of, for pickling and copying. Another process, or a copy, is lowered anew."""
        return {name: value for name, value in self.__dict__.items() if name not in self._workings}

    # -- what a subclass gives ------------------------------------------------------------------------------

    def _settle(
        self,
        kind: type[Operation],
        inputs: Mapping[str, MemoryDesc],
        outputs: Mapping[str, MemoryDesc],
        post_ops: tuple[PostOp, ...] = (),
        **attributes: Any,
    ) -> None:
        """What constructors end with: all descriptors, and the operation on them.

        The operands of post-ops are inputs behind the others.
        """
        made, self.descs, self.in_place = operations().settled(kind, inputs, outputs, post_ops, attributes)
        self.inputs, self.outputs = (tuple(one.name for one in side) for side in (made.inputs, made.outputs))
        self.operation, self.post_ops, self.accumulates = made, post_ops, made.accumulates

    def _lower(self) -> Program | None:
        """The kernels, or None where there are none."""
        return None

    def _needed(self, program: Program, addresses: Mapping[str, int]) -> Program:
        """What is left to do of the program for arguments at these addresses."""
        return program

    def _alternatives(self) -> list[Self]:
        """The same operation in other formats, where the caller has left some open."""
        return []

    def _cost(self) -> tuple[float, str]:
        """About how many seconds a call takes, and the schedule; see :mod:`~.primitives.candidates`."""
        with lock():
            from relayout.reorder.predict import seconds_to_move
        return seconds_to_move(self.bytes + self._moved_besides()), ""

    def _moved_besides(self) -> int:
        """Bytes read and written besides the arguments: inputs in another format come to that first."""
        first = self.descs[self.outputs[0]]
        inputs = (self.descs[name] for name in self.inputs)
        near = (desc for desc in inputs if desc.dims == first.dims)
        return 2 * sum(desc.nbytes for desc in near if not desc.layout.same_bytes(first.layout))

    @property
    def flops(self) -> int:
        """Floating-point (or integer) operations; a multiplication and an addition are two."""
        return self.operation.flops

    # -- what callers see -----------------------------------------------------------------------------------

    @property
    def implementation(self) -> str:
        """How it is done."""
        program = self._compiled()
        return DEFINITION if program is None else f"machine code: {program.note}"

    @property
    def bytes(self) -> int:
        """Bytes of all arguments, padding included: what is read and written at least."""
        return sum(desc.nbytes for desc in self.descs.values())

    def __call__(self, *given: Any, out: Any = None, threads: int | None = None, **named: Any) -> Any:
        """Compute.

        Parameters
        ----------
        *given : Tensor or array_like
            The inputs in their order (:attr:`inputs`), in the primitive's formats. Where a format has
            padding, it must be zero, as it is in all tensors that Relayout makes. Arrays, and tensors of
            PyTorch, are taken as logical arrays whose strides must be those of the format; a
            ``torch.Tensor`` of other dims is taken as a buffer (:func:`relayout.tensor.of_torch`).
        out : Tensor, torch.Tensor or writable buffer; mapping by name, or sequence of them; optional
            Where to write; without it new tensors. With several :attr:`outputs` those that a mapping lacks,
            or that are None, are new.
        threads : int, optional
            How many threads may work.
        **named : Tensor
            Inputs by name.

        Returns
        -------
        Tensor, or named tuple of Tensor
            The result, or several by the names of :attr:`outputs`.

        Raises
        ------
        LayoutError
            A tensor is missing, of another descriptor, read-only, or overlaps another one; nothing has been
            written then.
        """
        if named:
            rest = [named[name] for name in self.inputs[len(given) :] if name in named]
            if len(rest) == len(named) == len(self.inputs) - len(given):
                given, named = (*given, *rest), {}  # as if all had come in their order
        calling = None if named else self._calling
        if calling is not None and (done := calling.quick(given, out, threads)) is not None:
            return done
        if threads is not None and whole_number(threads, f"{self.kind}: threads") < 1:
            raise LayoutError(f"{self.kind}: threads must be 1 or more, got {threads}")
        tensors = self._bound(given, named)
        wanted = {} if out is None else results_by_name().by_name(self.kind, self.outputs, out)
        targets = self._targets(wanted)
        known = {name: located(one)[1] for name, one in (*tensors.items(), *targets.items())}
        self._check_apart(known)
        program = self._program if self._lowered else self._compiled()
        if program is None:
            self._define(tensors, targets)
        elif self._trial is None or not self._tried(self._trial, known, threads):
            self._needed(program, known)(known, threads)
        for one in wanted.values():
            if pytorch.is_tensor(one):
                pytorch.written(one)
        if calling is not None and self._trial is None:  # what is called from machine code stays as it is
            calling.count(given, wanted, threads)
        returned = targets | {name: one for name, one in wanted.items() if isinstance(one, Tensor)}
        several = (returned[name] for name in self.outputs)
        return next(several) if len(self.outputs) == 1 else results_by_name().results(self.outputs, several)

    def tune(self) -> Choice | None:
        """Find the fastest schedule now, by measuring, instead of in the first calls.

        Arguments are buffers of its own. What is found is kept on disk for later processes
        (:mod:`relayout.runtime.tuning`); nothing is measured where it is known, where there is one schedule,
        or where ``RELAYOUT_EFFORT`` is ``estimate``.

        Returns
        -------
        Choice or None
            What is known of the problem now; None where there is nothing to choose. A primitive of several
            products has as many problems (:meth:`choices`), and this is the largest one.

        Examples
        --------
        >>> import relayout as rl
        >>> src = rl.MemoryDesc((1, 8, 9, 9), "f32", "nhwc")
        >>> rl.primitives.Convolution(src, rl.MemoryDesc((8, 8, 3, 3), "f32", rl.any)).tune()
        """
        if self._compiled() is not None and (trial := self._trial) is not None:
            given, wanted = (
                {name: Tensor(self.descs[name], sampled(self.descs[name])) for name in names}
                for names in (self.inputs, self.outputs)
            )
            known = {name: located(one)[1] for name, one in (given | wanted).items()}
            trial.hold(lambda: self._tried(trial, known, None))
        return next(iter(self.choices()), None)

    @locked
    def choices(self) -> tuple[Choice, ...]:
        """What contests have found so far, on this machine and for as many threads: one for each problem.

        Convolutions, inner products and matrix products are one problem, recurrent layers one for each
        product of other sizes. What is done in one way only has none; see :meth:`tune`.

        Returns
        -------
        tuple of Choice
            The problem with the most operations first. Problems that nobody has measured are not in it.

        Examples
        --------
        >>> import relayout as rl
        >>> src = rl.MemoryDesc((1, 8, 9, 9), "f32", "nhwc")
        >>> rl.primitives.Eltwise(src, "relu").choices()
        ()
        """
        from relayout.runtime.tuning import kept

        self._compiled()
        known = (kept(problem) for problem in self._problems)
        return tuple(choice for choice in known if choice is not None)

    def candidates(self) -> list[Candidate]:
        """The ways to do this operation with the formats that were left open, cheapest first.

        Where all formats were given, or follow from those given, there is one.

        Examples
        --------
        >>> import relayout as rl
        >>> dims = (1, 64, 28, 28), (64, 64, 1, 1)
        >>> conv = rl.primitives.Convolution(*(rl.MemoryDesc(each, "f32", rl.any) for each in dims))
        >>> best, *rest = conv.candidates()
        >>> best.formats["src"] == conv.src, best.cost <= rest[-1].cost, len(rest)
        (True, True, 8)
        """
        with lock():
            from relayout.primitives.candidates import Candidate, ranked
        found = []
        for one in (self, *self._alternatives()):
            cost, schedule = one._cost()
            found.append(Candidate(dict(one.descs), cost, schedule, primitive=one))
        return ranked(found)

    def reference(self, *given: Any, out: Any = None, **named: Any) -> Any:
        """The definition, for tensors or logical arrays of any format: logical results in float64."""
        if len(given) > len(self.inputs):
            raise LayoutError(
                f"{self.kind} takes {', '.join(self.inputs)}; got {counted(len(given), 'tensor')}"
            )
        ways = results_by_name()
        arrays = dict(zip(self.inputs, given, strict=False)) | named
        arrays |= ways.by_name(self.kind, self.outputs, out)
        made = self.operation.definition({name: ways.logical(data) for name, data in arrays.items()})
        return ways.results(self.outputs, (made[name] for name in self.outputs))

    # -- workings -------------------------------------------------------------------------------------------

    def _compiled(self) -> Program | None:
        if not self._lowered:
            with lock(), Usual():
                from relayout.jit.support import supported

                if not self._lowered:
                    self._reach()  # refuses what no memory holds
                    self._program = self._lower() if not self._empty and supported() else None
                    if self._program is not None:
                        self._calling = self._often(self._program)
                    self._lowered = True
        return self._program

    @property
    def _empty(self) -> bool:
        """Whether a tensor without elements leaves nothing that kernels are made for."""
        return any(0 in desc.dims for desc in self.descs.values())

    @locked
    def _often(self, program: Program) -> Calling | None:
        """What calls the program once it has been called often; nothing looks at faults there."""
        if program.faults:
            return None
        from relayout.primitives.calling import Calling

        return Calling(self._reach(), self.outputs, self.in_place, self.accumulates, program)

    def _measure(self, trial: Trial[Any, Any] | Contests | None) -> None:
        """Take part in contests from now on, unless there are none, or they are over."""
        self._trial = None if trial is None or trial.done else trial
        self._problems = () if trial is None else trial.problems

    def _assembled(self, made: Assembled | None) -> Program | None:
        """What :meth:`_lower` of several products ends with: the program, whose contests begin."""
        if made is None:
            return None
        self._measure(made.contests)
        return made.program

    def _tried(
        self, trial: Trial[Any, Any] | Contests, addresses: Mapping[str, int], threads: int | None
    ) -> bool:
        """Whether a call was done by the schedule whose turn it is in a contest; the winner stays."""
        if threads is None and trial.call(lambda made: made.program(addresses)):
            return True
        if trial.done:
            with lock():
                if trial.winner is not None:
                    self._take(trial.winner)
                self._trial = None
        return False

    def _take(self, made: Any) -> None:
        """Be done by another schedule from now on."""
        self._program = made.program
        self._calling = self._often(made.program)

    def _reach(self) -> dict[str, Argument]:
        """The arguments of a call, inputs first."""
        if self._arguments is None:
            self._arguments = {
                name: Argument(f"{self.kind}: {name}", self.descs[name])
                for name in (*self.inputs, *self.outputs)
            }
        return self._arguments

    def _bound(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Tensor]:
        """The input tensors by name, checked."""
        arguments, found = self._reach(), bound(self.inputs, given, named, self.kind)
        return {name: arguments[name].read(one) for name, one in zip(self.inputs, found, strict=True)}

    def _targets(self, wanted: Mapping[str, Any]) -> dict[str, Tensor]:
        """Where each output is written, checked."""
        arguments, found = self._reach(), {}
        for name in self.outputs:
            if name in wanted:
                found[name] = arguments[name].written(wanted[name])
            elif name in self.accumulates:
                raise LayoutError(f"{self.kind} adds to what {name} held, but no out was given")
            else:
                found[name] = Tensor(self.descs[name], allocate(self.descs[name]))
        return found

    def _check_apart(self, addresses: Mapping[str, int]) -> None:
        """What is written must not be what is read, unless element by element, nor be written twice."""
        check_apart(self._reach(), addresses, self.outputs, self.in_place, self.kind)

    def _define(self, tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        """Run the definition, and lay its results out."""
        with Usual():
            old = {name: targets[name] for name in self.accumulates}
            logical = results_by_name().logical
            arrays = {name: logical(one) for name, one in (*tensors.items(), *old.items())}
            made = self.operation.definition(arrays)
            for name, target in targets.items():
                reorder(tensor(made[name]), target.desc, out=target)

    def _repr_html_(self) -> str:
        """The formats of all arguments, for notebooks."""
        with lock():
            from relayout.draw.notebook import of_primitive
        return of_primitive(self)

    def __repr__(self) -> str:
        """The formats, the attributes that are not at their defaults, and what follows."""
        given = [f"{name} {desc}" for name, desc in self.descs.items()]
        given += [f"{name} {value}" for name, value in self.operation.chosen.items()]
        made = f"{type(self).__name__}({', '.join(given)})"
        return ", ".join([made, *map(str, self.operation.post_ops)])


@lru_cache(maxsize=1)
@locked
def operations() -> ModuleType:
    """What operations are; reorders, which most processes begin with, don't ask."""
    from relayout.ops import operation

    return operation


@lru_cache(maxsize=1)
@locked
def results_by_name() -> ModuleType:
    """Results by name; most calls of most processes have one, and need nothing of it."""
    from relayout.primitives import results

    return results
