"""What all primitives are: named arguments with descriptors, an implementation, and a definition.

A subclass says what its arguments are called and in which order they are given (:attr:`Primitive.inputs`),
puts their descriptors into :attr:`Primitive.descs` (with every ``any`` decided), and offers two ways to the
result:

``_definition(arrays)``
    Logical arrays in double precision, by name, to the logical result: NumPy, slow, short. It is what the
    primitive *means*.
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
from functools import lru_cache
from inspect import Signature, signature
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from relayout.errors import LayoutError
from relayout.exchange import pytorch
from relayout.forking import lock
from relayout.jit.floating import Usual
from relayout.jit.support import supported
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import whole_number
from relayout.primitives.calling import Calling
from relayout.reorder import reorder
from relayout.reorder.overlap import overlap
from relayout.reorder.plan import check_out
from relayout.tensor import Tensor, allocate, as_array, as_bytes, located, of_torch, tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from relayout.primitives.program import Program

__all__ = ["Primitive", "logical", "private", "span_of"]

DEFINITION = "definition (NumPy)"


class Primitive:
    """Base of all primitives; see the module's docstring for what a subclass gives.

    Attributes
    ----------
    kind : str
        What it is called.
    inputs : tuple of str
        The names of the arguments that are read, in the order of a call.
    descs : dict of str to MemoryDesc
        Their descriptors and that of ``dst``, with every ``any`` decided. Each is an attribute, too.
    """

    __signature__: ClassVar[Signature] = Signature()
    kind: ClassVar[str] = ""
    inputs: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    """Inputs that ``out`` may be: same descriptor, same memory."""
    descs: dict[str, MemoryDesc]
    _program: Program | None = None
    _spans: dict[str, tuple[int, int]] | None = None
    _calling: Calling | None = None
    _lowered = False
    _workings: ClassVar[frozenset[str]] = frozenset(("_program", "_spans", "_calling", "_lowered"))
    """Attributes that lowering sets. Their classes have what they are before."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep the signature, which tools would look up in ``__new__`` otherwise."""
        super().__init_subclass__(**options)
        own = signature(cls.__init__)
        cls.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])

    def __new__(cls, *given: object, **named: object) -> Self:
        """Say which argument was meant by a name that there is not, such as PyTorch's ``stride``."""
        known = cls.__signature__.parameters
        for name in named:
            if name not in known:
                with lock():
                    from difflib import get_close_matches
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise TypeError(f"{cls.__name__} has no argument {name!r}; {hint}")
        return super().__new__(cls)

    def __getattr__(self, name: str) -> MemoryDesc:
        descs = self.__dict__.get("descs", {})
        if name in descs:
            found: MemoryDesc = descs[name]
            return found
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """What it was made of, for pickling and copying. Another process, or a copy, is lowered anew."""
        return {name: value for name, value in self.__dict__.items() if name not in self._workings}

    # -- what a subclass gives ------------------------------------------------------------------------------

    def _definition(self, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """The logical result; arguments that were left out are missing, ``dst`` holds what ``out`` held."""
        raise NotImplementedError

    def _lower(self) -> Program | None:
        """The kernels, or None where there are none."""
        return None

    def _implementation(self) -> str:
        """What the kernels are called."""
        return "machine code"

    @property
    def flops(self) -> int:
        """Floating-point (or integer) operations; a multiplication and an addition are two."""
        return prod(self.descs["dst"].dims)

    # -- what callers see -----------------------------------------------------------------------------------

    @property
    def implementation(self) -> str:
        """How it is done."""
        return DEFINITION if self._compiled() is None else self._implementation()

    @property
    def bytes(self) -> int:
        """Bytes of all arguments, padding included: what is read and written at least."""
        return sum(desc.nbytes for desc in self.descs.values())

    @property
    def reads_destination(self) -> bool:
        """Whether what ``out`` held takes part."""
        return False

    def __call__(self, *given: Any, out: Any = None, threads: int | None = None, **named: Any) -> Tensor:
        """Compute.

        Parameters
        ----------
        *given : Tensor or array_like
            The inputs in their order (:attr:`inputs`), in the primitive's formats. Where a format has
            padding, it must be zero, as it is in all tensors that Relayout makes. Arrays, and tensors of
            PyTorch, are taken as logical arrays whose strides must be those of the format; a
            ``torch.Tensor`` of other dims is taken as a buffer (:func:`relayout.tensor.of_torch`).
        out : Tensor, torch.Tensor or writable buffer, optional
            Where to write; without it a new tensor.
        threads : int, optional
            How many threads may work.
        **named : Tensor
            Inputs by name.

        Raises
        ------
        LayoutError
            A tensor is missing, of another descriptor, read-only, or overlaps another one; nothing has been
            written then.
        """
        calling = None if named else self._calling
        if calling is not None and (done := calling.quick(given, out, threads)) is not None:
            return done
        if threads is not None and whole_number(threads, f"{self.kind}: threads") < 1:
            raise LayoutError(f"{self.kind}: threads must be 1 or more, got {threads}")
        tensors = self._bound(given, named)
        target = self._target(out)
        known = {name: self._at(name, one) for name, one in tensors.items()}
        known["dst"] = located(target)[1]
        self._check_apart(known)
        program = self._program if self._lowered else self._compiled()
        if program is None:
            self._define(tensors, target)
        else:
            program(known, threads)
        if pytorch.is_tensor(out):
            pytorch.written(out)
        if calling is not None:
            calling.count(given, out, threads)
        return out if isinstance(out, Tensor) else target

    def reference(self, *given: Any, out: Any = None, **named: Any) -> NDArray[np.float64]:
        """The definition, for tensors or logical arrays of any format: the logical result in float64."""
        if len(given) > len(self.inputs):
            raise LayoutError(f"{self.kind} takes {', '.join(self.inputs)}; {len(given)} tensors were given")
        arrays = dict(zip(self.inputs, given, strict=False)) | named
        if out is not None:
            arrays["dst"] = out
        return self._definition({name: logical(data) for name, data in arrays.items()})

    # -- workings -------------------------------------------------------------------------------------------

    def _compiled(self) -> Program | None:
        if not self._lowered:
            with lock(), Usual():
                if not self._lowered:
                    empty = any(0 in desc.dims for desc in self.descs.values())
                    self._program = self._lower() if not empty and supported() else None
                    if self._program is not None:
                        self._calling = self._often(self._program)
                    self._lowered = True
        return self._program

    def _often(self, program: Program) -> Calling:
        """What calls the program once it has been called often."""
        names = (*self.inputs, "dst")
        descs = {name: self.descs[name] for name in names}
        return Calling(descs, self._reach(), self.in_place, self.reads_destination, program)

    def _bound(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Tensor]:
        """The input tensors by name, checked."""
        if len(given) > len(self.inputs):
            raise LayoutError(f"{self.kind} takes {', '.join(self.inputs)}; {len(given)} tensors were given")
        found = dict(zip(self.inputs, given, strict=False))
        for name, value in named.items():
            if name not in self.inputs or name in found:
                what = "was given twice" if name in found else f"is none of {', '.join(self.inputs)}"
                raise LayoutError(f"{self.kind}: the argument {name!r} {what}")
            found[name] = value
        missing = [name for name in self.inputs if name not in found]
        if missing:
            raise LayoutError(f"{self.kind} needs {', '.join(missing)}")
        return {name: self._checked(name, found[name]) for name in self.inputs}

    def _checked(self, name: str, value: Any) -> Tensor:
        """A tensor of the descriptor that an argument must have; arrays are taken as logical ones."""
        desc = self.descs[name]
        if pytorch.is_tensor(value):
            return of_torch(value, desc, f"{self.kind}: {name}")
        try:
            made = value if isinstance(value, Tensor) else tensor(value)
        except (LayoutError, TypeError, ValueError) as error:
            raise LayoutError(f"{self.kind}: {name} is no tensor of {desc}: {error}") from None
        if made.desc is desc or made.desc == desc:
            return private(made)
        alike = made.dims == desc.dims and made.dtype == desc.dtype
        if not alike or not made.layout.same_bytes(desc.layout):
            raise LayoutError(f"{self.kind}: {name} must be {desc}, but {made.desc} was given")
        return private(made)

    def _at(self, name: str, given: Tensor) -> int:
        """The address of an input, whose buffer must be long enough."""
        data, at = located(given)
        if data.nbytes < self._reach()[name][1]:
            desc = self.descs[name]
            raise LayoutError(
                f"{self.kind}: {name} {desc} needs {desc.required_bytes} bytes; its buffer has {data.nbytes}"
            )
        return at

    def _target(self, out: Any) -> Tensor:
        desc = self.descs["dst"]
        if out is None:
            if self.reads_destination:
                raise LayoutError(f"{self.kind} adds to the old destination, but no out was given")
            return Tensor(desc, allocate(desc))
        if pytorch.is_tensor(out):
            target = of_torch(out, desc, f"{self.kind}: dst", writing=True, lasting=True)
        else:
            check_out(out, desc)
            target = self._checked("dst", out if isinstance(out, Tensor) else Tensor(desc, as_bytes(out)))
        data, _ = located(target)
        if data.nbytes < self._reach()["dst"][1]:
            raise LayoutError(f"{self.kind}: out needs {desc.required_bytes} bytes; it has {data.nbytes}")
        if not data.flags.writeable:
            raise LayoutError(f"{self.kind}: the buffer of dst {desc} is read-only")
        return target

    def _check_apart(self, addresses: Mapping[str, int]) -> None:
        """What is written must not be what is read, unless element by element."""
        spans, begin = self._reach(), addresses["dst"]
        low, high = begin + spans["dst"][0], begin + spans["dst"][1]
        for name in self.inputs:
            start = addresses[name]
            near = start + spans[name][0] < high and low < start + spans[name][1]
            if not near or (start == begin and name in self.in_place):
                continue
            if _meet(self.descs[name], self.descs["dst"], begin - start):
                raise LayoutError(f"{self.kind}: {name} and the destination overlap in memory")

    def _reach(self) -> dict[str, tuple[int, int]]:
        """The first and the last byte of each argument, see :func:`span_of`."""
        if self._spans is None:
            self._spans = {name: span_of(desc) for name, desc in self.descs.items()}
        return self._spans

    def _define(self, tensors: Mapping[str, Tensor], target: Tensor) -> None:
        """Run the definition, and lay its result out."""
        with Usual():
            arrays = {name: logical(given) for name, given in tensors.items()}
            if self.reads_destination:
                arrays["dst"] = logical(target)
            reorder(tensor(self._definition(arrays)), target.desc, out=target)

    def __repr__(self) -> str:
        sides = ", ".join(f"{name} {desc}" for name, desc in self.descs.items())
        return f"{type(self).__name__}({sides})"


def private(given: Tensor) -> Tensor:
    """The same tensor for one call alone.

    Another thread may assign the caller's ``buffer`` at any time. This one keeps the buffer that is checked,
    and so keeps its memory alive until the call is over.
    """
    return Tensor(given.desc, located(given)[0])


@lru_cache(maxsize=256)
def _meet(src: MemoryDesc, dst: MemoryDesc, distance: int) -> bool:
    """Whether a source and a destination, so many bytes behind it, have elements in common.

    Their ranges may overlap where they don't: parts of one tensor, such as channels of ``nhwc``.
    """
    return overlap(src, 0, dst, distance)


def logical(data: Any) -> NDArray[np.float64]:
    """A logical array in double precision."""
    array = data.numpy() if isinstance(data, Tensor) else as_array(data, lasting=False)
    return np.asarray(array.astype(np.float64))


def span_of(desc: MemoryDesc) -> tuple[int, int]:
    """The first byte of a tensor, and the one behind its last, counted from its address."""
    bits = desc.dtype.bits
    low, high = desc.layout.bounds() if desc.layout.size else (0, -1)
    return low * bits // 8, -(-(high + 1) * bits // 8)
